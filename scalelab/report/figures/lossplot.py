"""The figure of a fit: losses with the law's curve of each size, contours of the loss, residuals."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.trust.information import sizes_and_tokens
from scalelab.laws.use.decision import optimal_size
from scalelab.report.figures.style import (
    INK,
    LOSS_LABEL,
    MUTED,
    PALETTES,
    make_figure,
    set_log_axis,
    styled,
    value_colours,
)
from scalelab.report.tables import format_short

CURVE_POINTS = 60  # points of a drawn line
MOST_NAMED = 20  # sizes that a legend lists; of more a colour bar says them all, and MOST_CURVES have a curve
MOST_CURVES = 9
REACH = 1.6  # how far, as a factor, a size's curve goes beyond its rows
LEVELS = 9  # contours of the loss
Drawn = tuple[Figure, list[dict[str, Any]]]


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
    """Draw the fit over compute (else the law's first column): losses and curves of each size, contours, residuals.

    Contours are drawn where the law splits a budget, with the best size of each budget.
    """
    law, columns = fitted.law, fitted.problem.columns
    x_name = "C" if len(fitted_budgets(fitted)) else law.columns[0]
    x = fitted_budgets(fitted) if x_name == "C" else columns[x_name]
    measured, predicted = fitted.problem.target, law(columns, fitted.params)
    shade_by = next((name for name in ("N", "width") if name in columns and name != x_name), None)
    sizes = np.asarray(columns[shade_by] if shade_by else np.zeros(len(x)), float)
    colours = value_colours(sizes.tolist()) if shade_by else {}
    colour = [colours[value] for value in sizes.tolist()] if shade_by else MUTED
    splits = splits_budget(fitted, held)
    fig, axes = make_figure(13.2 if splits else 9.6, 4.0, 3 if splits else 2)
    left, right = axes[0], axes[-1]
    left.scatter(x, measured, c=colour, s=18, linewidths=0.3, edgecolors="white", zorder=3)
    right.scatter(x, 100 * (measured / predicted - 1), c=colour, s=18, linewidths=0.3, edgecolors="white", zorder=3)
    line = _best_line(fitted, held, x_name, x)
    if line:
        where = "".join(f", {name} = {format_short(value)}" for name, value in held.items())
        label = f"the law at the best N{where}" if x_name == "C" and len(law.columns) > 1 else "the law"
        left.plot(*line[:2], color=INK, lw=1.6, label=label, zorder=4)
        left.legend(loc="best")
    curves = _size_curves(fitted, held, x, sizes) if splits and shade_by == "N" else {}
    for size, (at, values) in curves.items():
        left.plot(at, values, color=colours[size], lw=0.9, zorder=2)
    right.axhline(0, color=INK, lw=0.8)
    for ax in (left, right):
        set_log_axis(ax, flops=x_name == "C")
        ax.set(xlabel="C (FLOPs)" if x_name == "C" else x_name)
    left.set(ylabel=LOSS_LABEL if law.target == "loss" else law.target, title=f"{law.name}: {len(x)} rows")
    right.set(ylabel="measured / fitted − 1 (%)", title="Residuals")
    rows = [{"kind": "row", **{name: columns[name][i] for name in columns}, x_name: x[i], "measured": measured[i],
             "fitted": predicted[i]} for i in range(len(x))]  # fmt: skip
    rows += [{"kind": "law", x_name: at, "fitted": value} for at, value in zip(*line[:2], strict=True)] if line else []
    rows += [
        {"kind": "curve", "N": n, "C": c, "fitted": y} for n, c_y in curves.items() for c, y in zip(*c_y, strict=True)
    ]
    if splits and line:
        rows += _contours(axes[1], fitted, held, line)
        N, _ = sizes_and_tokens(columns, fitted.k)
        axes[1].scatter(x, N, c=colour if shade_by else INK, s=14, linewidths=0.3, edgecolors="white", zorder=3)
    if shade_by:
        _name_sizes(fig, axes, colours, shade_by)
    return fig, rows


def _best_line(
    fitted: Fitted, held: Mapping[str, float], x_name: str, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Evaluate the law over x: (x, loss, N) at each budget's best N, or over its only column; None for other laws."""
    at = np.geomspace(x.min(), x.max(), CURVE_POINTS)
    if fitted.law.columns == (x_name,):
        return at, fitted.law({x_name: at}, fitted.params), np.full(len(at), np.nan)
    if not splits_budget(fitted, held):
        return None
    N = np.array([optimal_size(fitted.law, fitted.params, C, fitted.k, held)[0] for C in at])
    N = np.where((N > 0) & np.isfinite(N), N, np.nan)  # a budget without a best size leaves a gap in the line
    return at, _loss(fitted, held, at, N), N


def _loss(fitted: Fitted, held: Mapping[str, float], C: np.ndarray, N: np.ndarray) -> np.ndarray:
    D = C / (fitted.k * N)
    others = {name: np.full(np.shape(C), value) for name, value in held.items()}
    return np.asarray(fitted.law({**others, "N": N, "D": D, "C": C, "M": D / N}, fitted.params))


def _size_curves(
    fitted: Fitted, held: Mapping[str, float], C: np.ndarray, sizes: np.ndarray
) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """{N: (C, loss)} of the law at each size, around its own rows; of many sizes at some, spread evenly."""
    known = np.unique(sizes)
    if len(known) > MOST_NAMED:
        at = np.geomspace(known[0], known[-1], MOST_CURVES)
        known = known[np.unique(np.abs(np.log(known[:, None] / at)).argmin(0))]
    curves = {}
    for size in known.tolist():
        budgets = C[sizes == size]
        at = np.geomspace(budgets.min() / REACH, budgets.max() * REACH, CURVE_POINTS)
        curves[size] = at, _loss(fitted, held, at, np.full(len(at), size))
    return curves


def _contours(
    ax: Axes, fitted: Fitted, held: Mapping[str, float], line: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> list[dict[str, Any]]:
    """Draw lines of equal loss over C and N, and the best size of each budget; returns the grid behind them."""
    C, N = fitted_budgets(fitted), sizes_and_tokens(fitted.problem.columns, fitted.k)[0]
    C_at = np.geomspace(C.min() / REACH, C.max() * REACH, CURVE_POINTS)
    N_at = np.geomspace(N.min() / REACH, N.max() * REACH, CURVE_POINTS)
    grid_C, grid_N = np.meshgrid(C_at, N_at)
    loss = _loss(fitted, held, grid_C, grid_N)
    ends = np.nanmin(fitted.problem.target), np.nanmax(fitted.problem.target)
    levels = np.unique(np.geomspace(*ends, LEVELS))  # one where all losses are equal
    lines = ax.contour(grid_C, grid_N, loss, levels=levels, colors=MUTED, linewidths=0.8)
    ax.clabel(lines, fmt="%.3g", fontsize=7)
    ax.plot(line[0], line[2], color=INK, lw=1.6, label="best size")
    ax.legend(loc="upper left")
    set_log_axis(ax, "x", flops=True)
    set_log_axis(ax, "y")
    ax.set(xlabel="C (FLOPs)", ylabel=f"N ({fitted.n_convention})", title=f"Contours of the fitted {fitted.law.target}")
    ax.set(xlim=(C_at[0], C_at[-1]), ylim=(N_at[0], N_at[-1]))
    return [
        {"kind": "contour", "C": c, "N": n, "fitted": y}
        for c, n, y in zip(grid_C.ravel(), grid_N.ravel(), loss.ravel(), strict=True)
    ]


def _name_sizes(fig: Figure, axes: Sequence[Axes], colours: Mapping[Any, str], title: str) -> None:
    """Name every size: in a legend, or where they are too many for one by a colour bar."""
    if len(colours) <= MOST_NAMED:
        handles = [Line2D([], [], color=c, marker="o", ls="", label=format_short(v)) for v, c in colours.items()]
        fig.legend(handles=handles, title=title, loc="outside right upper", title_fontsize=8)
        return
    name, darkest, lightest = PALETTES["value"]
    part = matplotlib.colormaps[name].resampled(256)(np.linspace(darkest, lightest, 256))
    known = sorted(colours)
    shades = ScalarMappable(LogNorm(known[0], known[-1]), matplotlib.colors.ListedColormap(part))
    fig.colorbar(shades, ax=list(axes), label=f"{title} of {len(known)} sizes", pad=0.01)
