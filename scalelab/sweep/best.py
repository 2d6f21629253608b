"""The best learning rate of a packed sweep: a parabola through the lowest losses over log2 LR, with its spread."""

import dataclasses

import numpy as np
from scipy import stats

from scalelab.laws.use.isoflop_minima import parabola

INTERVAL_LEVEL = 0.9
NEAR_OCTAVES = 1.0  # the parabola is fitted to points within this distance of the lowest, and to its two neighbours


@dataclasses.dataclass(frozen=True)
class BestLr:
    """`log2_lr` where the mean loss over seeds is least, its 90 % interval [low, high], and the loss there.

    `interior`: False if the first or last value tried is the best, so that a better one may lie beyond.
    """

    log2_lr: float
    low: float
    high: float
    loss: float
    interior: bool


def find_best_lr(log2_lrs: np.ndarray, losses: np.ndarray) -> BestLr:
    """Find the best LR from losses [seeds, K] at K ascending log2_lrs; a non-finite loss (a diverged run) is infinite.

    The interval is Student's t over the minima of the single seeds (each seed has one initialisation for all LRs). With
    one seed, or if a neighbour of the lowest point diverged, it is at least half a grid step each way.
    """
    x = np.asarray(log2_lrs, float)
    y = np.where(np.isfinite(losses), losses, np.inf)
    best_x, loss, interior = _vertex(x, y.mean(0))
    minima = np.array([_vertex(x, row)[0] for row in y])
    half_width = float(np.min(np.diff(x))) / 2 if len(minima) == 1 or best_x in x else 0.0
    if len(minima) > 1:
        error = minima.std(ddof=1) / len(minima) ** 0.5
        half_width = max(half_width, float(stats.t.ppf((1 + INTERVAL_LEVEL) / 2, len(minima) - 1) * error))
    return BestLr(best_x, best_x - half_width, best_x + half_width, loss, interior)


def _vertex(x: np.ndarray, y: np.ndarray) -> tuple[float, float, bool]:
    """(x, value, interior) of the minimum of one curve y [K]."""
    lowest = int(np.argmin(y))
    neighbours = np.abs(np.arange(len(x)) - lowest) <= 1
    near = (neighbours | (np.abs(x - x[lowest]) <= NEAR_OCTAVES + 1e-9)) & np.isfinite(y)
    interior = 0 < lowest < len(x) - 1
    if not interior or near.sum() < 3:
        return float(x[lowest]), float(y[lowest]), interior
    minimum = parabola(x[near], y[near, None])
    return float(minimum.at[0]), float(minimum.value[0]), bool(minimum.interior[0])
