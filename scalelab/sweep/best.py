"""The best learning rate of a packed sweep: a parabola through the lowest losses over log2 LR, and its spread over seeds."""

import dataclasses

import numpy as np
from scipy import stats

from scalelab.laws.use.isoflop_minima import parabola

INTERVAL_LEVEL = 0.9
NEAR_OCTAVES = 1.0  # points as near as this to the lowest one are fitted, and its two neighbours


@dataclasses.dataclass(frozen=True)
class BestLr:
    """`log2_lr` of the least loss of the mean over seeds, with a 90 % interval [low, high], and the loss there.

    Not `interior`: the lowest of the values tried is the first or last one, so the best may lie beyond.
    """

    log2_lr: float
    low: float
    high: float
    loss: float
    interior: bool


def find_best_lr(log2_lrs: np.ndarray, losses: np.ndarray) -> BestLr:
    """From losses [seeds, K] at K ascending log2_lrs; a loss that is not finite (a diverged run) counts as infinite.

    The interval is Student's over the seeds' own minima, which see the same initialisations at every LR. With one seed, or
    where a neighbour of the lowest diverged, it is half a step of the grid each way or more.
    """
    x = np.asarray(log2_lrs, float)
    y = np.where(np.isfinite(losses), losses, np.inf)
    at, loss, interior = _vertex(x, y.mean(0))
    each = np.array([_vertex(x, row)[0] for row in y])
    half = float(np.min(np.diff(x))) / 2 if len(each) == 1 or at in x else 0.0
    if len(each) > 1:
        error = each.std(ddof=1) / len(each) ** 0.5
        half = max(half, float(stats.t.ppf((1 + INTERVAL_LEVEL) / 2, len(each) - 1) * error))
    return BestLr(at, at - half, at + half, loss, interior)


def _vertex(x: np.ndarray, y: np.ndarray) -> tuple[float, float, bool]:
    """(place, value, inside?) of the least of one curve y [K]."""
    lowest = int(np.argmin(y))
    beside = np.abs(np.arange(len(x)) - lowest) <= 1
    near = (beside | (np.abs(x - x[lowest]) <= NEAR_OCTAVES + 1e-9)) & np.isfinite(y)
    inside = 0 < lowest < len(x) - 1
    if not inside or near.sum() < 3:
        return float(x[lowest]), float(y[lowest]), inside
    found = parabola(x[near], y[near, None])
    return float(found.at[0]), float(found.value[0]), bool(found.interior[0])
