"""The figure: IsoFLOP curves of both arms, their differences by cell, and drops against the fall of the rate."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalelab.experiments.studies.one_trunk import grid
from scalelab.report.figures.style import (
    ACCENT,
    INK,
    LOSS_LABEL,
    MUTED,
    add_axes_legend,
    make_figure,
    set_log_axis,
    styled,
)
from scalelab.report.tables import format_scientific

MARKERS = "o^sDv"


@styled
def plot_result(result: Mapping[str, Any]) -> Figure:
    """Three panels."""
    fig, axes = make_figure(10.5, 3.5, columns=3)
    _plot_isoflop(fig, axes[0], result)
    _plot_differences(fig, axes[1], result)
    _plot_drops(fig, axes[2], result)
    return fig


def _plot_isoflop(fig: Figure, ax: Axes, result: Mapping[str, Any]) -> None:
    cells = {(each["width"], each["steps"]): each for each in result["cells"]}
    for factor, marker in zip(grid.DOUBLINGS, MARKERS, strict=False):
        rows = [
            cells[width, steps * factor] for width, steps in grid.SHORTEST.items() if (width, steps * factor) in cells
        ]
        sizes = [grid.count_parameters(row["width"]) for row in rows]
        if rows:
            label = f"{format_scientific(float(np.mean([row['flops'] for row in rows])), 1)} FLOPs"
            ax.plot(sizes, [row["own"] for row in rows], marker + "-", ms=4, color=INK, label=label)
            ax.plot(sizes, [row["branch"] for row in rows], marker + "--", ms=4, mfc="none", color=ACCENT)
    ax.plot([], [], "--", color=ACCENT, label="one trunk")
    set_log_axis(ax)
    ax.set(xlabel="parameters", ylabel=LOSS_LABEL, title="IsoFLOP curves")
    add_axes_legend(fig, ax)


def _plot_differences(fig: Figure, ax: Axes, result: Mapping[str, Any]) -> None:
    for width, marker in zip(grid.SHORTEST, MARKERS, strict=False):
        rows = [each for each in result["cells"] if each["width"] == width]
        at = [row["steps"] for row in rows]
        ax.errorbar(
            at,
            [row["mean"] for row in rows],
            [row["error"] for row in rows],
            fmt=marker + ":",
            ms=4,
            lw=0.8,
            capsize=2,
            label=f"width {width}",
        )
    ax.axhline(0, color=MUTED, lw=0.8)
    set_log_axis(ax)
    ax.set(xlabel="steps", ylabel="difference (nats)", title="branch less independent run")
    add_axes_legend(fig, ax)


def _plot_drops(fig: Figure, ax: Axes, result: Mapping[str, Any]) -> None:
    lrs = sorted({row["lr"] for row in result["drops"]})
    for lr, marker, colour in zip(lrs, MARKERS, (INK, "#2f6db3", ACCENT), strict=False):
        rows = sorted((row for row in result["drops"] if row["lr"] == lr), key=lambda row: row["fall"])
        drops = np.array([row["drops"] for row in rows])
        errors = drops.std(axis=1, ddof=1) / drops.shape[1] ** 0.5
        ax.errorbar(
            [row["fall"] for row in rows],
            drops.mean(axis=1),
            errors,
            fmt=marker + "-",
            ms=4,
            capsize=2,
            color=colour,
            label=f"rate {lr:g}",
        )
    ax.set(xlabel="fall of the rate", ylabel="drop of the loss (nats)", title="what a decay gains")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    add_axes_legend(fig, ax)
