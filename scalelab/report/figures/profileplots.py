"""Draw the profile of each parameter of a fitted law, with threshold, interval and bootstrap resamples."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.trust.profile import ParamProfile
from scalelab.laws.trust.uncertainty import central_interval
from scalelab.report.figures.lawplots import STAR_MARK
from scalelab.report.figures.style import ACCENT, INK, MUTED, set_log_axis, styled

PANEL_RISE_FACTOR = 4.0  # height of a profile's panel, in rises to the threshold
HISTOGRAM_BINS = 30
LOG_AXIS_RATIO = 20.0  # ratio of high to low from which a profile's axis is logarithmic


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
