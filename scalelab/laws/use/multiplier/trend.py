"""The trend of a multiplier: a line through log m over log C, and the value at the target with its interval."""

import math
from typing import Any

import numpy as np

from scalelab.laws.use.multiplier.cells import Pair
from scalelab.laws.use.multiplier.result import Interval

# s.d. of the bend of log m over log C, over its slope. A multiplier that falls to 1 as c C^-k bends by k; exponents of
# losses are 0.05 to 0.3. Chosen by the coverage of simulated studies (checks/results/multiplier.md).
BEND = 0.15


def fit_trend(
    pair: Pair, logs: np.ndarray, drawn: np.ndarray | None, target: float, level: float, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(trend, target): a line through log m over log C, weighted by each rung's error.

    The target's interval allows for a line that bends beyond the rungs, as much as BEND says.
    """
    x = np.log([cell.flops for cell in pair.variant]) if pair.variant else np.zeros(0)
    finite = np.isfinite(logs)
    empty: dict[str, Any] = {"a": None, "b": None, "centre": None, "interval90": None, "p_b": None}
    at_target: dict[str, Any] = {"C": target, "m": None, "interval90": None, "p_better": None, "beyond": None}
    if not finite.any():
        return empty, at_target
    x, logs, drawn = x[finite], logs[finite], None if drawn is None else drawn[:, finite]
    errors = np.ones(len(x)) if drawn is None else np.maximum(_spread(drawn), 1e-12)
    line = _line(x, errors, math.log(target))
    (a, b, there), centre = line @ logs, float(np.exp((x / errors**2).sum() / (1 / errors**2).sum()))
    trend = empty | {"a": float(a), "b": float(b) if len(x) > 1 else None, "centre": centre}
    at_target |= {"m": float(np.exp(there)), "beyond": target / float(np.exp(x[-1]))}
    if drawn is not None:
        _, slopes, ends = line @ drawn.T
        strayed = (math.log(target) ** 2 - line[2] @ x**2) / 2
        ends = ends + BEND * np.abs(slopes) * strayed * rng.standard_normal(len(slopes))
        if len(x) > 1:
            low, high = _quantiles(slopes, level)
            trend |= {
                "interval90": [low, high],
                "p_b": float(min(1.0, 2 * min((slopes > 0).mean(), (slopes < 0).mean()))),
            }
        at_target |= {"interval90": list(log_interval(ends, level)), "p_better": _share_above(ends)}
    return trend, at_target


def trend_curve(
    pair: Pair, logs: np.ndarray, drawn: np.ndarray | None, target: float, level: float, points: int
) -> tuple[dict[str, Any], ...]:
    """The trend with its band at so many points from the smallest rung to the target, for a figure."""
    flops = [cell.flops for cell in pair.variant]
    if len(flops) < 2 or not points:
        return ()
    ends = min(flops[0], target), max(flops[-1], target)
    places = [
        fit_trend(pair, logs, drawn, float(at), level, np.random.default_rng(0))[1]
        for at in np.geomspace(*ends, points)
    ]
    return tuple({"C": each["C"], "m": each["m"], "interval90": each["interval90"]} for each in places)


def _spread(drawn: np.ndarray) -> np.ndarray:
    """Robust standard deviations of draws [B, R]: half the width of the middle 68 %."""
    low, high = np.quantile(drawn, [0.16, 0.84], axis=0)
    return (high - low) / 2


def _line(x: np.ndarray, errors: np.ndarray, at: float) -> np.ndarray:
    """The matrix [3, R] that takes values to (middle, slope, value at `at`) of their weighted line; one rung: flat."""
    w = errors**-2 / (errors**-2).sum()
    dx = x - (w * x).sum()
    spread = (w * dx**2).sum()
    slope = w * dx / spread if len(x) > 1 else np.zeros(1)
    return np.stack([w, slope, w + slope * (at - (w * x).sum())])


def _quantiles(values: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def log_interval(logs: np.ndarray, level: float) -> Interval:
    """The interval of m from draws of log m."""
    low, high = _quantiles(logs, level)
    return math.exp(min(low, 700.0)), math.exp(min(high, 700.0))


def _share_above(logs: np.ndarray) -> float:
    """P(m > 1), where ties count half."""
    return float((logs > 0).mean() + (logs == 0).mean() / 2)
