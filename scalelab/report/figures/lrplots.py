"""Figures of losses over learning rates: one panel a parametrization, a curve a width, and where each is lowest."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.report.figures.style import (
    ACCENT,
    LOSS_LABEL,
    MUTED,
    format_short,
    make_figure,
    styled,
    value_colours,
    write_figure,
)

MOST_NAMED = 8  # curves in a legend, ticks on an axis
MARKERS = ("o", "s", "D", "^")


@styled
def plot_lr_transfer(rows: Sequence[dict[str, Any]]) -> Figure:
    """A panel of curves a parametrization, and one of the best log2 LR over d_model with its interval.

    rows: `parametrization`, `d_model`, `log2_lrs` [K], `losses` [seeds][K] (None: diverged), `log2_lr`, `interval90`
    (None: there is none), `loss`.
    """
    kinds = list(dict.fromkeys(row["parametrization"] for row in rows))
    colours = value_colours(row["d_model"] for row in rows)
    fig, axes = make_figure(3.9 * (len(kinds) + 1), 3.8, len(kinds) + 1)
    for ax, kind in zip(axes, kinds, strict=False):
        for row in (row for row in rows if row["parametrization"] == kind):
            add_lr_curve(ax, row, colours[row["d_model"]])
        ax.set_title(kind)
    low, high = (f(row["loss"] for row in rows) for f in (min, max))
    for ax in axes[:-1]:  # what diverged may leave the panel
        ax.set_ylim(low - 0.2 * (high - low) - 0.01, high + 1.6 * (high - low) + 0.02)
    handles = [Line2D([], [], color=colour, lw=2, label=f"{width}") for width, colour in colours.items()]
    axes[0].legend(handles=handles, title="d_model", loc="upper center", ncols=2)
    _best(axes[-1], rows, kinds)
    return fig


@styled
def plot_lr_optima(rows: Sequence[dict[str, Any]], title: str = "") -> Figure:
    """Losses of a sweep over its learning rates, a curve for each `label`; a star where the parabola is lowest.

    rows: `label`, and those of `plot_lr_transfer` without the parametrization; `interior` false: no star.
    """
    fig, ax = make_figure(5.4, 3.6)
    colours = value_colours(row["label"] for row in rows)
    for row in rows:
        add_lr_curve(ax, row, colours[row["label"]])
    if 1 < len(rows) <= MOST_NAMED:
        handles = [Line2D([], [], color=colour, lw=2, label=label) for label, colour in colours.items()]
        ax.legend(handles=handles, fontsize=7)
    ticks = sorted({x for row in rows for x in row["log2_lrs"]})
    ticks = ticks[:: -(-len(ticks) // MOST_NAMED)]
    ax.set_xticks(ticks, [format_short(2**x) for x in ticks])
    ax.set(xlabel="peak learning rate", title=title)
    return fig


def add_lr_curve(ax: Axes, row: dict[str, Any], colour: str) -> None:
    """Mean over seeds as a line, every seed as a dot, the best as a star with its interval."""
    x, losses = np.asarray(row["log2_lrs"], float), np.asarray(row["losses"], float)
    ax.plot(x, losses.mean(0), color=colour)
    for one in losses:
        ax.plot(x, one, ".", color=colour, ms=3, alpha=0.6)
    if row["interval90"]:
        ax.plot(row["interval90"], [row["loss"]] * 2, color=ACCENT, lw=1)
    if row.get("interior", True):
        ax.plot(row["log2_lr"], row["loss"], "*", color=ACCENT, ms=9, mec="white", mew=0.6, zorder=5)
    ax.set(xlabel="log2 of the peak learning rate", ylabel=LOSS_LABEL)


def _best(ax: Axes, rows: Sequence[dict[str, Any]], kinds: Sequence[str]) -> None:
    colours = value_colours(kinds)
    for kind, mark in zip(kinds, MARKERS, strict=False):
        rows_of_kind = [row for row in rows if row["parametrization"] == kind]
        x, y = np.log2([row["d_model"] for row in rows_of_kind]), np.array([row["log2_lr"] for row in rows_of_kind])
        ends = np.array([row["interval90"] or [row["log2_lr"]] * 2 for row in rows_of_kind]).T
        ax.errorbar(x, y, np.abs(ends - y), marker=mark, color=colours[kind], capsize=2.5, label=kind)
    widths = sorted({row["d_model"] for row in rows})
    top = max(row["log2_lr"] for row in rows)
    ax.plot(np.log2(widths), top - np.log2(np.array(widths) / widths[0]), ":", color=MUTED, label="1 / width")
    ax.set_xticks(np.log2(widths), [str(width) for width in widths])
    ax.set(xlabel="d_model", ylabel="best log2 learning rate", title="where it is lowest")
    ax.legend()


def write_lr_figure(path: str, fig: Figure, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Write a figure to `path` (.pdf, with the CSV of its numbers beside it, or .png); returns what was written."""
    numbers = [
        {key: row[key] for key in ("parametrization", "d_model") if key in row}
        | {"log2_lr": x, "seed_index": i, "loss": one[k]}
        for row in rows
        for i, one in enumerate(row["losses"])
        for k, x in enumerate(row["log2_lrs"])
    ]
    return write_figure(path, fig, numbers)
