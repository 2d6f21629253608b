"""Figures of any fitted law: the fit with its residuals, the profile of each parameter, the decision against compute.

Each is written as PNG and PDF with the numbers behind it as CSV, whose column `kind` says what a row is.
"""

import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.trust.information import sizes_and_tokens
from scalelab.laws.trust.profile import ParamProfile
from scalelab.laws.trust.uncertainty import central_interval
from scalelab.laws.use.decision import optimal_size
from scalelab.laws.use.isoflop import IsoFlop, group_budgets
from scalelab.report.figures.lawplots import STAR_MARK, plot_isoflops
from scalelab.report.figures.lossplot import CURVE_POINTS, Drawn, fitted_budgets, plot_fit, splits_budget
from scalelab.report.figures.style import (
    ACCENT,
    INK,
    MUTED,
    make_figure,
    save_figure,
    set_log_axis,
    styled,
    write_pdf_and_csv,
)
from scalelab.report.tables import format_scientific, format_short

DOTS_PER_INCH = 130
BAND_RESAMPLES = 300  # resamples behind a decision's band: few suffice, as its edges are only drawn
EXTRAPOLATION_FACTOR = 10.0  # multiple of the largest known budget up to which a decision is drawn
PANEL_RISE_FACTOR = 4.0  # height of a profile's panel, in rises to the threshold
HISTOGRAM_BINS = 30
LOG_AXIS_RATIO = 20.0  # ratio of high to low from which a profile's axis is logarithmic


def write_fit_figures(folder: str | os.PathLike[str], fitted: Fitted, held: Mapping[str, float]) -> list[str]:
    """Draw `fitted` into the folder: fit, profiles, and the decision where the law splits a budget; returns the paths.

    `held` fixes the law's columns other than N, D, C, M for the decision.
    """
    figures = {"fit": plot_fit(fitted, held), "profiles": plot_profiles(fitted)}
    if splits_budget(fitted, held) and fitted.bootstrap:
        figures["decision"] = plot_decision(fitted, held)
    return [path for name, drawn in figures.items() for path in write_drawn(folder, name, drawn)]


def write_isoflop_figure(
    folder: str | os.PathLike[str], fitted: IsoFlop, C: np.ndarray, N: np.ndarray, loss: np.ndarray, n_label: str
) -> list[str]:
    """Draw approach 2 into the folder: the rows [P] and the curve and minimum of each budget; returns the paths."""
    budget = group_budgets(C)
    rows = [{"kind": "row", "budget": b, "N": n, "loss": y} for b, n, y in zip(budget, N, loss, strict=True)]
    minima = [{"kind": "minimum", **profile.to_json()} for profile in fitted.profiles]
    fig = plot_isoflops(rows, minima, n_label, f"N_opt ~ C^{fitted.a:.3f}, minima by {fitted.method}")
    rows += [{key: value for key, value in each.items() if key != "curve"} for each in minima]
    rows += [
        {"kind": "curve", "budget": p.C, "N": n, "loss": y}
        for p in fitted.profiles
        for n, y in zip(*p.curve, strict=True)
    ]
    return write_drawn(folder, "isoflop", (fig, rows))


def write_drawn(folder: str | os.PathLike[str], name: str, drawn: Drawn) -> list[str]:
    """Write a figure as PNG and PDF, and the rows behind it as CSV; returns the paths."""
    fig, rows = drawn
    written = write_pdf_and_csv(folder, name, fig, rows)
    return [_png(folder, name, fig), *written]


@styled
def _png(folder: str | os.PathLike[str], name: str, fig: Figure) -> str:
    path = pathlib.Path(folder) / f"{name}.png"
    save_figure(path, fig, dpi=DOTS_PER_INCH, metadata={"Software": "scalelab"})
    return str(path)


@styled
def plot_decision(fitted: Fitted, held: Mapping[str, float]) -> Drawn:
    """Draw the best N and D of each budget with intervals, the fitted rows, and the budgets asked for."""
    C, (N, D) = fitted_budgets(fitted), sizes_and_tokens(fitted.problem.columns, fitted.k)
    top = max([float(C.max()), *(each.C for each in fitted.decisions)]) * EXTRAPOLATION_FACTOR
    at = np.geomspace(C.min(), top, CURVE_POINTS // 2)
    best, low, high = _band(fitted, held, at)
    fig, axes = make_figure(9.6, 4.0, 2)
    tokens = [at / (fitted.k * size) for size in (best, high, low)]
    for ax, values, (middle, bottom, upper) in zip(axes, (N, D), ((best, low, high), tokens), strict=True):
        ax.scatter(C, values, s=10, color=MUTED, alpha=0.6, lw=0, label="fitted rows")
        ax.fill_between(at, bottom, upper, color=ACCENT, alpha=0.18, lw=0, label=f"{fitted.level:.0%} interval")
        ax.plot(at, middle, color=INK, lw=1.6, label="best split")
    for decision in fitted.decisions:
        for ax, (value, least, most) in zip(axes, (decision.N, decision.D), strict=True):
            ax.errorbar(
                [decision.C], [value], [[value - least], [most - value]], fmt="none", ecolor=INK, capsize=4, lw=1.4
            )
            ax.plot(decision.C, value, **STAR_MARK, color=ACCENT)
            ax.annotate(
                f"{format_scientific(decision.C)}: {format_short(value)}",
                (decision.C, most),
                xytext=(-6, 5),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )
    for ax, label in zip(axes, (f"N ({fitted.n_convention})", "D (tokens)"), strict=True):
        set_log_axis(ax, "x", flops=True)
        set_log_axis(ax, "y")
        ax.set(xlabel=f"C (FLOPs), C = {fitted.k:.4g} N D", ylabel=label)
    axes[0].set(title="Best size for the budget")
    axes[1].set(title="Best number of tokens")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    rows = [{"kind": "best split", "C": at[i], "N": best[i], "N_low": low[i], "N_high": high[i], "D": tokens[0][i],
             "D_low": tokens[1][i], "D_high": tokens[2][i]} for i in range(len(at))]  # fmt: skip
    rows += [{"kind": "target", "C": d.C, "N": d.N.value, "N_low": d.N.low, "N_high": d.N.high, "D": d.D.value,
              "D_low": d.D.low, "D_high": d.D.high} for d in fitted.decisions]  # fmt: skip
    return fig, rows + [{"kind": "row", "C": c, "N": n, "D": d} for c, n, d in zip(C, N, D, strict=True)]


def _band(fitted: Fitted, held: Mapping[str, float], at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute (best N, its lower and upper end) at each budget [S]; nan if the law has no best size."""
    assert fitted.bootstrap
    some = {name: values[:BAND_RESAMPLES] for name, values in fitted.bootstrap.params.items()}
    intervals = []
    for C in at:
        point = float(optimal_size(fitted.law, fitted.params, C, fitted.k, held)[0])
        point = point if 0 < point < math.inf else math.nan
        sizes = optimal_size(fitted.law, some, C, fitted.k, held)
        sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
        intervals.append((point, *(central_interval(sizes, fitted.level) if len(sizes) else (math.nan, math.nan))))
    best, low, high = np.array(intervals).T
    return best, low, high


@styled
def plot_profiles(fitted: Fitted) -> tuple[Figure, list[dict[str, Any]]]:
    """Draw profiles: how much worse the best fit is with one parameter held fixed; bars: resamples."""
    names = list(fitted.identifiability)
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    fig = Figure(figsize=(3.3 * columns, 2.7 * lines), layout="constrained")
    axes = fig.subplots(lines, columns, squeeze=False)
    rows: list[dict[str, Any]] = []
    for ax, name in zip(axes.flat, names, strict=False):
        rows += _profile_panel(ax, fitted, name, fitted.identifiability[name])
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set(ylabel="rise of the objective (%)")
    handles = [Line2D([], [], color=INK, marker="o", ms=3, label="profile"),
               Line2D([], [], color=ACCENT, ls="--", label=f"threshold, {fitted.level:.0%}"),
               Line2D([], [], color=MUTED, lw=6, alpha=0.4, label="resamples")]  # fmt: skip
    fig.legend(handles=handles[: 2 + bool(fitted.bootstrap)], loc="outside lower center", ncols=3)
    return fig, rows


def _profile_panel(ax: Axes, fitted: Fitted, name: str, profile: ParamProfile) -> list[dict[str, Any]]:
    least, best = fitted.best.value, fitted.params[name]
    scale = 100 / abs(least) if least else 1.0
    end = (profile.threshold - least) * scale
    ends = [at for at in profile.interval if at is not None]  # more exact than the points beside them
    values, objective = np.append(profile.values, ends), np.append(profile.objective, [profile.threshold] * len(ends))
    order = np.argsort(values)
    values, objective = values[order], objective[order]
    rise = (objective - least) * scale
    resamples = fitted.bootstrap.params[name] if fitted.bootstrap else np.empty(0)
    shown = _window(values, rise, PANEL_RISE_FACTOR * end, resamples, fitted.level)
    log = shown[0] > 0 and shown[1] / shown[0] > LOG_AXIS_RATIO
    ax.plot(values, rise, color=INK, marker="o", ms=2.5, lw=1.2, zorder=3)
    ax.axhline(end, color=ACCENT, ls="--", lw=1.1)
    low, high = (edge if at is None else at for at, edge in zip(profile.interval, shown, strict=True))
    ax.axvspan(max(low, shown[0]), min(high, shown[1]), color=ACCENT, alpha=0.10, lw=0)
    known = profile.verdict == "identified"
    ax.plot(best, 0.0, **STAR_MARK, color=ACCENT if known else "white")
    bars = _bars(ax, resamples, shown, log) if len(resamples) else []
    ax.set(xlim=shown, ylim=(-0.06 * PANEL_RISE_FACTOR * end, PANEL_RISE_FACTOR * end) if end > 0 else None)
    ax.set_title(f"{name}: {profile.verdict}", color=INK if known else ACCENT)
    if log:
        set_log_axis(ax)
    rows = [
        {"kind": "profile", "parameter": name, "value": value, "objective": at, "threshold": profile.threshold}
        for value, at in zip(values, objective, strict=True)
    ]
    return rows + [{"kind": "resamples", "parameter": name, **bar} for bar in bars]


def _window(
    values: np.ndarray, rise: np.ndarray, top: float, resamples: np.ndarray, level: float
) -> tuple[float, float]:
    """Choose the part of the axis to show: where the profile is below `top`, and the resamples' interval."""
    below = np.flatnonzero(rise <= top)
    first, last = (below[0], below[-1]) if len(below) else (0, len(values) - 1)
    low, high = values[first], values[last]
    if first > 0:
        low = np.interp(-top, -rise[first - 1 : first + 1], values[first - 1 : first + 1])
    if last < len(values) - 1:
        high = np.interp(top, rise[last : last + 2], values[last : last + 2])
    if len(resamples):
        ends = central_interval(resamples, level)
        low, high = min(low, ends[0]), max(high, ends[1])
    return (float(low), float(high)) if low < high else (float(low) - 1e-3, float(high) + 1e-3)


def _bars(ax: Axes, values: np.ndarray, shown: tuple[float, float], log: bool) -> list[dict[str, Any]]:
    """Draw a histogram of the resamples behind the curve, on its own axis; returns its bars."""
    edges = np.geomspace(*shown, HISTOGRAM_BINS + 1) if log else np.linspace(*shown, HISTOGRAM_BINS + 1)
    counts, _ = np.histogram(values, edges)
    behind = ax.twinx()
    behind.stairs(counts, edges, fill=True, color=MUTED, alpha=0.35)
    behind.set(ylim=(0, 2.2 * max(counts.max(), 1)), yticks=[])
    behind.spines["right"].set_visible(False)
    behind.grid(False)
    ax.set_zorder(behind.get_zorder() + 1)
    ax.patch.set_visible(False)
    return [{"low": low, "high": high, "count": n} for low, high, n in zip(edges, edges[1:], counts, strict=False)]
