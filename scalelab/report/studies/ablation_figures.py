"""Figures of an ablation: losses over compute with the gap, the multiplier over scale, the learning rates of all sides.

The figures draw the content of summary.json and compute nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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

VARIANT = "#2f6db3"


def loss_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Select the runs of these sides for the figure of losses."""
    return [{key: row[key] for key in ("side", "C", "seed", "loss")} for row in rows if row["side"] in names]


@styled
def plot_losses(rows: Sequence[Mapping[str, Any]], baseline: str, variant: str, result: Mapping[str, Any]) -> Figure:
    """Draw loss over compute of two sides; the arrow at each rung is the multiplier, to the baseline's equal loss."""
    fig, ax = make_figure(5.6, 3.8)
    for side, colour in ((baseline, INK), (variant, VARIANT)):
        means = _means(rows, side)
        ax.plot([c for c, _ in means], [loss for _, loss in means], color=colour, marker="o", ms=4, label=side)
        lost = [row["C"] for row in rows if row["side"] == side and row["loss"] is None]
        ended = [row for row in rows if row["side"] == side and row["loss"] is not None]
        ax.plot([row["C"] for row in ended], [row["loss"] for row in ended], ".", color=colour, ms=4, alpha=0.6)
        for flops in lost:
            ax.plot(flops, 0.97, "x", color=ACCENT, transform=ax.get_xaxis_transform())
    for rung in result["rungs"]:
        times = rung["m"]["flops"]
        if times and rung["variant"] is not None:
            ends = {"xy": (rung["C"] * times, rung["variant"]), "xytext": (rung["C"], rung["variant"])}
            ax.annotate("", **ends, annotation_clip=False, arrowprops={"arrowstyle": "->", "color": ACCENT, "lw": 1})
    reached = [rung["C"] * rung["m"]["flops"] for rung in result["rungs"] if rung["m"]["flops"]]
    budgets = [rung["C"] for rung in result["rungs"]]
    ax.set_xlim(0.8 * min([*budgets, *reached]), 1.25 * max([*budgets, *reached]))
    set_log_axis(ax, flops=True)
    ax.set(xlabel="training FLOPs", ylabel=LOSS_LABEL, title=f"{variant} and {baseline} over compute")
    add_axes_legend(fig, ax)
    return fig


def _means(rows: Sequence[Mapping[str, Any]], side: str) -> list[tuple[float, float]]:
    budgets = sorted({row["C"] for row in rows if row["side"] == side})
    each = {c: [row["loss"] for row in rows if row["side"] == side and row["C"] == c] for c in budgets}
    return [(c, float(np.mean(losses))) for c, losses in each.items() if None not in losses]


def multiplier_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make the rows behind the multiplier's figure in FLOPs: rungs, the target, and the trend with its band."""
    rows = []
    for rung in result["rungs"]:
        low, high = rung["interval90"]["flops"] or (None, None)
        rows.append({"what": "rung", "C": rung["C"], "m": rung["m"]["flops"], "low": low, "high": high})
    for what, each in (("target", result["target"]), *(("trend", each) for each in result["curve"])):
        low, high = each["interval90"] or (None, None)
        rows.append({"what": what, "C": each["C"], "m": each["m"], "low": low, "high": high})
    return rows


@styled
def plot_multiplier(rows: Sequence[Mapping[str, Any]], scored: Mapping[str, Any], variant: str) -> Figure:
    """Draw the multiplier over scale with intervals, its target, and the prediction for the largest rung."""
    fig, ax = make_figure(5.6, 3.8)
    ax.axhline(1, color=MUTED, lw=0.8)
    trend = [row for row in rows if row["what"] == "trend" and row["m"]]
    ax.plot([row["C"] for row in trend], [row["m"] for row in trend], color=VARIANT, lw=1)
    if trend and trend[0]["low"] is not None:
        ends = ([row[end] for row in trend] for end in ("low", "high"))
        ax.fill_between([row["C"] for row in trend], *ends, color=VARIANT, alpha=0.12, lw=0)
    rungs = [row for row in rows if row["what"] == "rung" and row["m"]]
    _errorbars(ax, rungs, VARIANT, "o", "measured")
    _errorbars(ax, [row for row in rows if row["what"] == "target" and row["m"]], INK, "D", "at the target")
    if rungs and scored.get("predicted"):
        low, high = scored["predicted90"] or (None, None)
        written = {"C": rungs[-1]["C"] * 1.08, "m": scored["predicted"], "low": low, "high": high}
        _errorbars(ax, [written], ACCENT, "s", "written before the largest rung")
    set_log_axis(ax, flops=True)
    ax.set(xlabel="training FLOPs", ylabel="times the baseline's compute", title=f"what {variant} is worth")
    add_axes_legend(fig, ax)
    return fig


def _errorbars(ax: Axes, rows: Sequence[Mapping[str, Any]], colour: str, mark: str, label: str) -> None:
    for i, row in enumerate(rows):
        m, low, high = row["m"], row["low"], row["high"]  # where nothing scatters, m is beyond an end by rounding
        ends = None if low is None else [[max(0.0, m - low)], [max(0.0, high - m)]]
        ax.errorbar([row["C"]], [m], ends, fmt=mark, color=colour, capsize=2.5, ms=5, label=label if i == 0 else None)


def tuning_rows(tuned: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make the rows of the trials behind the figure of learning rates."""
    rows = [{"side": side["name"]} | dict(row) for side in tuned for row in side["rows"]]
    return [{key: value for key, value in row.items() if key != "point"} for row in rows]


@styled
def plot_tuning(rows: Sequence[Mapping[str, Any]], tuned: Sequence[Mapping[str, Any]], key: str) -> Figure:
    """Draw a panel for each side: losses above each rung's best over the tuned key, and the chosen values."""
    fig, axes = make_figure(2.9 * len(tuned) + 1.0, 3.4, len(tuned))
    budgets = sorted({row["C"] for row in rows})
    shades = {c: 0.75 - 0.6 * i / max(1, len(budgets) - 1) for i, c in enumerate(budgets)}
    for ax, side in zip(np.atleast_1d(axes), tuned, strict=True):
        for flops in budgets:
            mine = sorted(
                (row[key], row["loss"]) for row in side["rows"] if row["C"] == flops and row["loss"] is not None
            )
            if mine:
                least = min(loss for _, loss in mine)
                over = [100 * math.log(loss / least) for _, loss in mine]
                ax.plot([x for x, _ in mine], over, "o-", color=str(shades[flops]), ms=3, label=f"{flops:.3g} FLOPs")
        for each in side["settings"]:
            ax.axvline(each["values"][key][0], color=ACCENT, lw=0.8, ls=":")
        set_log_axis(ax)
        ax.set(xlabel=key, ylim=(-0.5, None), title=side["name"])
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("loss above the rung's best (%)")
    add_axes_legend(fig, first)
    return fig
