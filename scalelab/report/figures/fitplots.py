"""Figures of any fitted law: the fit with its residuals, the profile of each parameter, the decision against compute.

Each is written as PNG and PDF with the numbers behind it as CSV, whose column `kind` says what a row is.
"""

import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.trust.information import sizes_and_tokens
from scalelab.laws.trust.uncertainty import central_interval
from scalelab.laws.use.decision import optimal_size
from scalelab.laws.use.isoflop import IsoFlop, group_budgets
from scalelab.report.figures.lawplots import STAR_MARK, plot_isoflops
from scalelab.report.figures.profileplots import plot_profiles
from scalelab.report.figures.style import (
    ACCENT,
    INK,
    LOSS_LABEL,
    MUTED,
    make_figure,
    save_figure,
    set_log_axis,
    styled,
    value_colours,
    write_pdf_and_csv,
)
from scalelab.report.tables import format_scientific, format_short

DOTS_PER_INCH = 130
CURVE_POINTS = 60  # points of a drawn line
BAND_RESAMPLES = 300  # resamples behind a decision's band: few suffice, as its edges are only drawn
EXTRAPOLATION_FACTOR = 10.0  # multiple of the largest known budget up to which a decision is drawn
Drawn = tuple[Figure, list[dict[str, Any]]]


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


def splits_budget(fitted: Fitted, held: Mapping[str, float]) -> bool:
    """Whether the law, with its other columns held, splits a budget between N and D."""
    columns = set(fitted.law.columns)
    size = {"N", "D"} <= columns or {"C", "M"} <= columns
    return size and fitted.law.target == "loss" and columns <= {"N", "D", "C", "M", *held}


def fitted_budgets(fitted: Fitted) -> np.ndarray:
    """C of every fitted row [P] (k N D if the law has no C); empty for a law without either."""
    N, D = sizes_and_tokens(fitted.problem.columns, fitted.k)
    return np.asarray(fitted.problem.columns.get("C", fitted.k * N * D), float)


@styled
def plot_fit(fitted: Fitted, held: Mapping[str, float]) -> Drawn:
    """Draw the fit: left measured losses and the law over compute (else its first column), right the residuals."""
    law, columns = fitted.law, fitted.problem.columns
    x_name = "C" if len(fitted_budgets(fitted)) else law.columns[0]
    x = fitted_budgets(fitted) if x_name == "C" else columns[x_name]
    measured, predicted = fitted.problem.target, law(columns, fitted.params)
    shade_by = next((name for name in ("N", "width") if name in columns and name != x_name), None)
    colours = value_colours(columns[shade_by].tolist()) if shade_by else {}
    colour = [colours[value] for value in columns[shade_by].tolist()] if shade_by else MUTED
    fig, (left, right) = make_figure(9.6, 4.0, 2)
    left.scatter(x, measured, c=colour, s=18, linewidths=0.3, edgecolors="white", zorder=3)
    right.scatter(x, 100 * (measured / predicted - 1), c=colour, s=18, linewidths=0.3, edgecolors="white", zorder=3)
    line = _curve(fitted, held, x_name, x)
    if line:
        at = "".join(f", {name} = {format_short(value)}" for name, value in held.items())
        label = f"the law at the best N{at}" if x_name == "C" and len(law.columns) > 1 else "the law"
        left.plot(*line, color=INK, lw=1.6, label=label, zorder=4)
        left.legend(loc="best")
    right.axhline(0, color=INK, lw=0.8)
    target = LOSS_LABEL if law.target == "loss" else law.target
    for ax in (left, right):
        set_log_axis(ax, flops=x_name == "C")
        ax.set(xlabel="C (FLOPs)" if x_name == "C" else x_name)
    left.set(ylabel=target, title=f"{law.name}: {fitted.problem.points} rows")
    right.set(ylabel="measured / fitted − 1 (%)", title="Residuals")
    if shade_by:
        _shade_legend(fig, colours, shade_by)
    rows = [{"kind": "row", **{name: columns[name][i] for name in columns}, x_name: x[i], "measured": measured[i],
             "fitted": predicted[i]} for i in range(len(x))]  # fmt: skip
    rows += [{"kind": "law", x_name: at, "fitted": value} for at, value in zip(*line, strict=True)] if line else []
    return fig, rows


def _curve(
    fitted: Fitted, held: Mapping[str, float], x_name: str, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Evaluate the law over x: at each budget's best N, or over its only column; None for several other columns."""
    at = np.geomspace(x.min(), x.max(), CURVE_POINTS)
    if fitted.law.columns == (x_name,):
        return at, fitted.law({x_name: at}, fitted.params)
    if not splits_budget(fitted, held):
        return None
    N = np.array([optimal_size(fitted.law, fitted.params, C, fitted.k, held)[0] for C in at])
    N = np.where((N > 0) & np.isfinite(N), N, np.nan)  # a budget without a best size leaves a gap in the line
    D = at / (fitted.k * N)
    return at, fitted.law({**held, "N": N, "D": D, "C": at, "M": D / N}, fitted.params)


def _shade_legend(fig: Figure, colours: Mapping[Any, str], title: str) -> None:
    known = list(colours)
    known = [known[round(i)] for i in np.linspace(0, len(known) - 1, min(5, len(known)))]
    handles = [Line2D([], [], color=colours[value], marker="o", ls="", label=format_short(value)) for value in known]
    fig.legend(handles=handles, title=title, loc="outside right upper", title_fontsize=8)


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
    axes[0].legend(loc="upper left")
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
