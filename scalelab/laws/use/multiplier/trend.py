"""The multiplier over scale: a line through log m over log C, its lack of fit, and a curve that leads beyond the rungs.

The curve is the line and a discrepancy of two parts: a slope that wanders (an integrated Wiener process, so that what
is bent goes on bending) and a scatter of whole rungs. Their sizes are averaged over on a grid, by how well each
explains the rungs.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from scalelab.laws.use.multiplier.cells import Pair
from scalelab.laws.use.multiplier.result import Interval

# Priors of the discrepancy: log m per (e-fold of compute)^1.5, and log m. Chosen by simulated studies of other shapes
# than those that score them (checks/statistics/ablation_rules.py).
BENDS = np.array([0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16])
BEND_WEIGHTS = np.array([0.2, 0.2, 0.25, 0.2, 0.1, 0.03, 0.02])
JUMPS = np.array([0.0, 0.01, 0.02, 0.04, 0.08, 0.16])
JUMP_WEIGHTS = np.array([0.5, 0.2, 0.15, 0.09, 0.04, 0.02])
SLOPE_SD = 0.1  # of the line's slope, before the rungs are seen
LEAST_ERROR = 0.003  # of log m: the law's exponent is one of a grid
ROUNDING = 1e-9  # of LEAST_ERROR: draws that scatter by no more are equal
POOR_FIT = 0.05  # p below which the line is said not to fit


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """log m at the rungs, [R] over `x`, its draws [B, R], their covariance, and the weight of each discrepancy, [G]."""

    x: np.ndarray
    logs: np.ndarray
    drawn: np.ndarray
    noise: np.ndarray
    grid: np.ndarray
    weights: np.ndarray

    @property
    def discrepancy(self) -> tuple[float, float]:
        """The root mean squares of bend and jump."""
        bend, jump = (self.weights @ self.grid**2) ** 0.5
        return float(bend), float(jump)


def fit_line(pair: Pair, logs: np.ndarray, drawn: np.ndarray | None, level: float) -> dict[str, Any]:
    """log m = a + b log(C / centre), weighted by each rung's error, with b's interval and the line's lack of fit.

    `p_fit`: how often noise alone would leave the rungs as far off the line; `off`: the largest distance in log m.
    """
    x, logs, drawn = _finite(pair, logs, drawn)
    keys = ("a", "b", "centre", "interval90", "p_b", "p_fit", "off")
    trend: dict[str, Any] = dict.fromkeys(keys)
    if not len(x):
        return trend
    errors = np.ones(len(x)) if drawn is None else _spread(drawn)
    line, centre = _line(x, errors, float(x[-1])), float(np.exp((x / errors**2).sum() / (1 / errors**2).sum()))
    a, b, _ = line @ logs
    trend |= {"a": float(a), "b": float(b) if len(x) > 1 else None, "centre": centre}
    if drawn is None or len(x) < 2:
        return trend
    _, slopes, _ = line @ drawn.T
    if len(x) > 2:
        off = _residuals(x, errors, logs[None])[0]
        noise = ((_residuals(x, errors, drawn - logs) / errors) ** 2).sum(1)
        misfit = float(((off / errors) ** 2).sum())
        trend |= {"p_fit": float((1 + (noise >= misfit).sum()) / (1 + len(noise))), "off": float(np.abs(off).max())}
        if trend["p_fit"] < POOR_FIT:  # as wide as the rungs scatter about the line
            slopes = b + (slopes - b) * max(1.0, misfit / (len(x) - 2)) ** 0.5
    low, high = _quantiles(slopes, level)
    p_b = float(min(1.0, 2 * min((slopes > 0).mean(), (slopes < 0).mean())))
    return trend | {"interval90": [low, high], "p_b": p_b}


def line_at(pair: Pair, logs: np.ndarray, drawn: np.ndarray | None, flops: float, level: float) -> dict[str, Any]:
    """m of the straight line at this budget, with an interval that holds only if the truth is straight."""
    x, logs, drawn = _finite(pair, logs, drawn)
    if len(x) < 2:
        return {"m": None, "interval90": None}
    line = _line(x, np.ones(len(x)) if drawn is None else _spread(drawn), math.log(flops))[2]
    ends = None if drawn is None else list(log_interval(drawn @ line, level))
    return {"m": math.exp(float(line @ logs)), "interval90": ends}


def fit_curve(pair: Pair, logs: np.ndarray, drawn: np.ndarray) -> Curve | None:
    """Weigh the sizes of the discrepancy by the rungs; None where no rung has a multiplier."""
    x, logs, known = _finite(pair, logs, drawn)
    if not len(x) or known is None:
        return None
    drawn = known
    noise = _covariance(logs, drawn)
    grid = np.stack([each.ravel() for each in np.meshgrid(BENDS, JUMPS, indexing="ij")], 1)
    prior = np.outer(BEND_WEIGHTS, JUMP_WEIGHTS).ravel()
    V = noise + _discrepancy(x, grid)  # [G, R, R]
    inverse = np.linalg.inv(V)
    total = inverse.sum((1, 2))
    off = logs - (inverse.sum(1) @ logs / total)[:, None]
    fit = np.einsum("gi,gij,gj->g", off, inverse, off)
    likelihood = -0.5 * (np.linalg.slogdet(V)[1] + np.log(total) + fit)
    weights = prior * np.exp(likelihood - likelihood.max())
    return Curve(x, logs, drawn, noise, grid, weights / weights.sum())


def curve_at(curve: Curve, flops: float, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """(log m at this budget, draws of it): what the rungs say of it, and what a discrepancy leaves open."""
    x = np.append(curve.x, math.log(flops))
    prior = _discrepancy(x, curve.grid)  # [G, R + 1, R + 1], the last one the target
    shares, left = _predictor(prior, curve.noise)
    middle = float(curve.weights @ shares @ curve.logs)
    each = rng.choice(len(curve.weights), len(curve.drawn), p=curve.weights)
    drawn = (shares[each] * curve.drawn).sum(1) + left[each] ** 0.5 * rng.standard_normal(len(each))
    return middle, drawn


def predict_error(x: np.ndarray, errors: np.ndarray, at: float, discrepancy: tuple[float, float]) -> float:
    """The standard error of log m at `at` by rungs of these errors [R], for a known discrepancy."""
    prior = _discrepancy(np.append(x, at), np.array([discrepancy]))
    shares, left = _predictor(prior, np.diag(errors**2))
    return float((left[0] + (shares[0] ** 2 * errors**2).sum()) ** 0.5)


def _predictor(prior: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(weights of the rungs in a prediction [G, R], the variance that the discrepancy adds [G]); the level is free."""
    inside, beside, there = prior[:, :-1, :-1], prior[:, :-1, -1], prior[:, -1, -1]
    inverse = np.linalg.inv(inside + noise)
    ones = inverse.sum(2)  # V^-1 1
    pull = np.einsum("gij,gj->gi", inverse, beside)
    shares = pull + ones * ((1 - pull.sum(1)) / ones.sum(1))[:, None]
    left = there - 2 * (shares * beside).sum(1) + np.einsum("gi,gij,gj->g", shares, inside, shares)
    return shares, np.maximum(left, 0)


def _discrepancy(x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Covariances [G, R, R] of log m at `x`: a slope of SLOPE_SD, a wandering slope, and jumps of whole rungs."""
    t = x - x.min()
    low, high = np.minimum.outer(t, t), np.maximum.outer(t, t)
    wander = low**3 / 3 + low**2 * (high - low) / 2
    bend, jump = grid.T[:, :, None, None]
    return np.asarray(SLOPE_SD**2 * np.outer(t, t) + bend**2 * wander + jump**2 * np.eye(len(x)))


def trend_curve(curve: Curve | None, target: float, level: float, points: int) -> tuple[dict[str, Any], ...]:
    """The curve with its band at so many points from the smallest rung to the target, for a figure."""
    if curve is None or len(curve.x) < 2 or not points:
        return ()
    ends = min(math.exp(curve.x[0]), target), max(math.exp(curve.x[-1]), target)
    out = []
    for flops in np.geomspace(*ends, points):
        middle, drawn = curve_at(curve, float(flops), np.random.default_rng(0))
        out.append({"C": float(flops), "m": math.exp(middle), "interval90": list(log_interval(drawn, level))})
    return tuple(out)


def _finite(pair: Pair, logs: np.ndarray, drawn: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(log FLOPs, log m, draws) of the rungs that have a multiplier."""
    x = np.log([cell.flops for cell in pair.variant]) if pair.variant else np.zeros(0)
    finite = np.isfinite(logs)
    return x[finite], logs[finite], None if drawn is None else drawn[:, finite]


def _spread(drawn: np.ndarray) -> np.ndarray:
    """Robust standard deviations of draws [B, R]: half the width of the middle 68 %."""
    low, high = np.quantile(drawn, [0.16, 0.84], axis=0)
    return np.asarray(np.maximum((high - low) / 2, LEAST_ERROR))


def _covariance(logs: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The covariance of draws [B, R] about `logs`, of which few far ones do not decide."""
    errors = _spread(drawn)
    scaled = np.clip((drawn - logs) / errors, -3, 3)
    together = scaled.T @ scaled
    root = np.diag(together) ** 0.5
    scatters = root.min() > ROUNDING * len(drawn) ** 0.5  # of equal draws rounding alone would be correlated
    equal = together / np.outer(root, root) if scatters else np.eye(len(logs))
    return np.asarray(equal * np.outer(errors, errors))


def _line(x: np.ndarray, errors: np.ndarray, at: float) -> np.ndarray:
    """The matrix [3, R] that takes values to (middle, slope, value at `at`) of their weighted line; one rung: flat."""
    w = errors**-2 / (errors**-2).sum()
    dx = x - (w * x).sum()
    spread = (w * dx**2).sum()
    slope = w * dx / spread if len(x) > 1 else np.zeros(1)
    return np.stack([w, slope, w + slope * (at - (w * x).sum())])


def _residuals(x: np.ndarray, errors: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values [B, R] less their weighted line."""
    return np.asarray(values - np.stack([values @ _line(x, errors, float(at))[2] for at in x], 1))


def _quantiles(values: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def log_interval(logs: np.ndarray, level: float, middle: float = 0.0, stretch: float = 1.0) -> Interval:
    """The interval of m from draws of log m, stretched from its middle."""
    low, high = (middle + stretch * (end - middle) for end in _quantiles(logs, level))
    return math.exp(min(low, 700.0)), math.exp(min(high, 700.0))


def share_above(logs: np.ndarray) -> float:
    """P(m > 1), where ties count half."""
    return float((logs > 0).mean() + (logs == 0).mean() / 2)
