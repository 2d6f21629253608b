"""Figures of a fitted law: IsoFLOP curves, the surface L(N, D), residuals, and the held-out run against its prediction.

Rows are dicts with `run`, `role` (fit | holdout | ...), `N`, `D`, `C` (FLOPs), `loss` and, for a fitted law,
`predicted`; losses in nats/token. `flops_per_nd` is k in C = k N D, the median of the runs drawn.
"""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, TwoSlopeNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at, optimal_allocation
from scalelab.report.figures.style import (
    ACCENT,
    INK,
    LOSS_LABEL,
    MUTED,
    add_legend,
    figure_title,
    is_narrow,
    make_figure,
    set_log_axis,
    styled,
    value_colours,
)
from scalelab.report.tables import format_scientific

_warm = matplotlib.colormaps["viridis"](np.linspace(0.35, 1.0, 256))
STAR_MARK: dict[str, Any] = {"marker": "*", "ls": "", "ms": 13, "mec": INK, "mew": 0.8, "zorder": 4}
EDGE_MARK: dict[str, Any] = STAR_MARK | {"mfc": "white", "mec": ACCENT, "mew": 1.4}
PALE_COLORMAP = ListedColormap(0.45 * _warm + 0.55, name="pale")  # drawn behind the runs

FIELD_INK = "#212121"  # lines over the surface, which stays pale on a dark page
RESIDUAL_COLORMAP = matplotlib.colormaps["coolwarm"].resampled(41)  # few enough for a bar drawn as shapes
# Colours of values, which no colour scheme may change.
VALUE_COLOURS = {FIELD_INK, *(to_hex(each(i)) for each in (PALE_COLORMAP, RESIDUAL_COLORMAP) for i in range(each.N))}


@styled
def plot_isoflops(
    rows: Sequence[dict], fits: Sequence[dict], n_label: str, title: str = "", beside: Sequence[dict] = ()
) -> Figure:
    """Draw loss over N, one curve for each budget with its minimum; a minimum at the edge is flagged.

    rows: `budget`, `N`, `loss`. fits: `budget`, `N` and `loss` (the minimum), `curve` (two lists: N, loss), `edge`.
    beside: fits by parabola, of which dashed curves are drawn.
    """
    fig, ax = make_figure(7.2, 4.4)
    colours = value_colours((row["budget"] for row in rows), "budget")
    for budget, colour in colours.items():
        rows_of_budget = [row for row in rows if row["budget"] == budget]
        ax.plot(
            [r["N"] for r in rows_of_budget],
            [r["loss"] for r in rows_of_budget],
            "o",
            color=colour,
            ms=5.5,
            mec="white",
            mew=0.6,
        )
    for fit in fits:
        colour = colours[min(colours, key=lambda budget: abs(math.log(budget / fit["budget"])))]
        ax.plot(*fit["curve"], color=colour, lw=1.2)
        for other in (other for other in beside if other["budget"] == fit["budget"]):
            ax.plot(*other["curve"], color=colour, lw=0.9, ls="--", alpha=0.8)
        ax.plot(fit["N"], fit["loss"], **(EDGE_MARK if fit["edge"] else STAR_MARK | {"color": colour}))
    handles = [Line2D([], [], label="minimum", **(STAR_MARK | {"color": MUTED}))] if fits else []
    handles += [Line2D([], [], color=MUTED, lw=0.9, ls="--", label="parabola")] if beside else []
    if any(fit["edge"] for fit in fits):
        handles.append(Line2D([], [], label="minimum at the edge", **EDGE_MARK))
    set_log_axis(ax)
    ax.margins(y=0.12)
    add_legend(
        fig, ax, {format_scientific(budget): colour for budget, colour in colours.items()}, "budget (FLOPs)", handles
    )
    ax.set(xlabel=n_label, ylabel=LOSS_LABEL, title=figure_title(title))
    return fig


@styled
def plot_surface(
    rows: Sequence[dict], params: ChinchillaParams, flops_per_nd: float, n_label: str, title: str = ""
) -> Figure:
    """Draw the fitted L(N, D) as contours, the runs coloured by residual, and the compute-optimal line."""
    fig, ax = make_figure(7.2, 4.8)
    n, d = (np.array([row[key] for row in rows], float) for key in "ND")
    grid_n, grid_d = (np.geomspace(v.min() / 1.5, v.max() * 1.5, 160) for v in (n, d))
    loss = loss_at(params, grid_n[None, :], grid_d[:, None])
    levels = np.geomspace(loss.min(), np.quantile(loss, 0.97), 14)
    ax.contourf(grid_n, grid_d, loss, levels=levels, cmap=PALE_COLORMAP.reversed(), extend="both")
    lines = ax.contour(grid_n, grid_d, loss, levels=levels[::2], colors=FIELD_INK, linewidths=0.5, alpha=0.6)
    _optimal_line(ax, params, flops_per_nd, grid_n, grid_d)
    _residual_points(fig, ax, rows)
    ax.set(xlim=grid_n[[0, -1]], ylim=grid_d[[0, -1]])
    set_log_axis(ax, "x")
    set_log_axis(ax, "y")
    ax.clabel(lines, fmt="%.2f", fontsize=7)
    ax.grid(False)
    fig.legend(loc="outside lower center", ncols=1 if is_narrow() else 3)  # outside the axes, where it hides no runs
    ax.set(xlabel=n_label, ylabel="D (tokens)", title=figure_title(title))
    return fig


def _optimal_line(
    ax: Axes, params: ChinchillaParams, flops_per_nd: float, grid_n: np.ndarray, grid_d: np.ndarray
) -> None:
    flops = np.geomspace(grid_n[0] * grid_d[0], grid_n[-1] * grid_d[-1], 80) * flops_per_nd
    best = optimal_allocation(params, flops, flops_per_nd)
    ax.plot(best.N, best.D, color=FIELD_INK, lw=1.6, ls="--")
    ax.plot([], [], color=INK, lw=1.6, ls="--", label=f"compute-optimal (C = {flops_per_nd:.2f} N D)")


def _residual_points(fig: Figure, ax: Axes, rows: Sequence[dict]) -> None:
    percent = np.array([100 * (row["loss"] / row["predicted"] - 1) for row in rows])
    span = max(0.1, float(np.abs(percent).max()))
    norm = TwoSlopeNorm(0.0, -span, span)
    held = np.array([row["role"] == "holdout" for row in rows])
    for mask, marker, size, edge, width, label in (
        (~held, "o", 44, FIELD_INK, 0.7, "fitted run"),
        (held, "D", 70, ACCENT, 1.4, "held-out run"),
    ):
        if mask.any():
            n, d = ([row[key] for row, on in zip(rows, mask, strict=True) if on] for key in "ND")
            shape: dict[str, Any] = {"s": size, "marker": marker, "edgecolors": edge, "linewidths": width}
            drawn = ax.scatter(n, d, c=percent[mask], cmap=RESIDUAL_COLORMAP, norm=norm, zorder=4, label=label, **shape)
    fig.colorbar(drawn, ax=ax, label="measured / predicted − 1 (%)", shrink=0.85, aspect=28)


@styled
def plot_residuals(
    rows: Sequence[dict], n_label: str, title: str = "", colours: dict[Any, str] | None = None
) -> Figure:
    """Draw measured over predicted loss in % against C, N and D: a good law has no pattern. Rows with `predicted`."""
    fig, axes = make_figure(9.6, 3.0, 3)
    colours = colours or value_colours((row["N"] for row in rows), "size")
    for ax, (key, label) in zip(axes, (("C", "C (FLOPs, exact)"), ("N", n_label), ("D", "D (tokens)")), strict=True):
        ax.axhline(0, color=INK, lw=0.8)
        for row in rows:
            held = row["role"] == "holdout"
            look: dict[str, Any] = (
                {"marker": "D", "ms": 8, "mec": ACCENT, "mew": 1.5} if held else {"marker": "o", "ms": 5.5}
            )
            ax.plot(row[key], 100 * (row["loss"] / row["predicted"] - 1), ls="", color=colours[row["N"]], **look)
        set_log_axis(ax, flops=key == "C")
        ax.set(xlabel=label)
    axes[0].set(ylabel="measured / predicted − 1 (%)", title=figure_title(title))
    handles = [
        Line2D([], [], marker="o", ls="", color=MUTED, label="fitted"),
        Line2D([], [], marker="D", ls="", color=MUTED, mec=ACCENT, mew=1.5, label="held out"),
    ]
    add_legend(fig, axes[1], colours, "N", handles[: 1 + any(row["role"] == "holdout" for row in rows)])
    return fig


@styled
def plot_held_out(
    rows: Sequence[dict],
    held: dict,
    params: ChinchillaParams,
    flops_per_nd: float,
    band: dict | None = None,
    floor: float | None = None,
    title: str = "",
    colours: dict[Any, str] | None = None,
) -> Figure:
    """Left: losses over compute, the fitted frontier L(C) and its extrapolation. Right: interval and measured loss.

    held: `C`, `predicted_loss`, `interval90` (low, high), `measured_loss` (None while it trains).
    band: `C`, `low`, `high` (lists), the 90 % interval along the frontier, where known. `floor`: the corpus's entropy
    rate.
    """
    fig, (wide, close) = make_figure(8.6, 3.9, 2, ratios=(2.6, 1))
    fitted = [row for row in rows if row["role"] != "holdout"]
    colours = colours or value_colours((row["N"] for row in fitted), "size")
    for row in fitted:
        wide.plot(row["C"], row["loss"], "o", color=colours[row["N"]], ms=5.5, mec="white", mew=0.6)
    _frontier_line(wide, fitted, held, params, flops_per_nd)
    if band:
        wide.fill_between(band["C"], band["low"], band["high"], color=ACCENT, alpha=0.12, lw=0, label="90 % interval")
    _interval(wide, held["C"], held)
    if floor is not None:
        wide.axhline(floor, color=INK, ls=":", lw=1.2, label=f"entropy rate: {floor:.4g}")
    set_log_axis(wide, flops=True)
    add_legend(fig, wide, colours, "N", wide.get_legend_handles_labels()[0])
    wide.set(xlabel="C (FLOPs, exact)", ylabel=LOSS_LABEL, title=figure_title(title))
    _interval(close, 0.0, held, wide=True)
    close.set(xlim=(-1, 1.6), xticks=[], title="close up")
    close.margins(y=0.25)
    close.grid(axis="x", visible=False)
    return fig


def _frontier_line(ax: Axes, fitted: Sequence[dict], held: dict, params: ChinchillaParams, flops_per_nd: float) -> None:
    """Draw the frontier: solid over the fitted budgets, dashed from there to the held-out run."""
    low, high = min(row["C"] for row in fitted), max(row["C"] for row in fitted)
    end = max(high, held["C"] or high) * 1.15
    for start, stop, style, label in ((low, high, "-", "fitted frontier L(C)"), (high, end, "--", "extrapolated")):
        flops = np.geomspace(start, stop, 60)
        ax.plot(flops, optimal_allocation(params, flops, flops_per_nd).loss, style, color=INK, lw=1.4, label=label)


def _interval(ax: Axes, at: float, held: dict, wide: bool = False) -> None:
    """Draw the 90 % interval with the point prediction, and the measured loss if there is one."""
    low, high = held["interval90"]
    point, measured = held["predicted_loss"], held.get("measured_loss")
    bars = [[point - low], [high - point]]
    ms, cap, lw = (14, 8, 5) if wide else (9, 4, 2)
    look: dict[str, Any] = {"fmt": "_", "color": ACCENT, "capthick": 2, "alpha": 0.85}
    look |= {"ms": ms, "capsize": cap, "elinewidth": lw}
    ax.errorbar([at], [point], yerr=bars, label="prediction, 90 %", **look)
    if measured is not None and math.isfinite(measured):
        ax.plot([at], [measured], "D", color=INK, ms=9 if wide else 7, mec="white", label="measured", zorder=5)
    if not wide:
        return
    names = [(high, f"{high:.3f}"), (low, f"{low:.3f}"), (point, f"predicted {point:.4f}")]
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
    for level, text in names:
        ax.annotate(text, (at, level), xytext=(14, 0), color=ACCENT, **style)
    if measured is not None:
        text = f"measured {measured:.4f}"
        ax.annotate(text, (at, measured), xytext=(-10, 0), ha="right", color=INK, rotation=90, **style)
