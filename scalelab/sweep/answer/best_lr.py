"""The best learning rate of a sweep: a parabola through the lowest losses over log2 LR, its interval over seeds."""

import dataclasses

import numpy as np
from scipy import special

from scalelab.laws.use.isoflop_minima import lowest_parabola

INTERVAL_LEVEL = 0.9
ONE_SEED = "one seed"


@dataclasses.dataclass(frozen=True)
class BestLr:
    """`log2_lr` where the mean loss over seeds is least, the `loss` there, and its 90 % `interval` (low, high).

    `interval` is None if there is none, and `refusal` says why. `interior`: False if the first or last value tried is
    the best, so that a better one may lie beyond.
    """

    log2_lr: float
    loss: float
    interior: bool
    interval: tuple[float, float] | None = None
    refusal: str = ""


def find_best_lr(log2_lrs: np.ndarray, losses: np.ndarray) -> BestLr:
    """Find the best LR from losses [seeds, K] at K ascending log2_lrs; a non-finite loss (a diverged run) is infinite.

    The interval is Student's t over the minima of the single seeds (each seed has one initialisation for all LRs). It
    is refused at the edge of the LRs tried, for one seed, and where a neighbour of the lowest point diverged.
    """
    x = np.asarray(log2_lrs, float)
    y = np.where(np.isfinite(losses), losses, np.inf)
    best, loss, interior, bent = lowest_parabola(x, y.mean(0))
    if refusal := _refusal(x, y, best, interior, bent):
        return BestLr(best, loss, interior, refusal=refusal)
    minima = np.array([lowest_parabola(x, row)[0] for row in y])
    half_width = float(special.stdtrit(len(y) - 1, (1 + INTERVAL_LEVEL) / 2) * minima.std(ddof=1) / len(y) ** 0.5)
    return BestLr(best, loss, interior, (best - half_width, best + half_width))


def _refusal(x: np.ndarray, y: np.ndarray, best: float, interior: bool, bent: bool) -> str:
    """Why the optimum of y [seeds, K] has no interval; "" if it has one."""
    if not np.isfinite(y.mean(0)).any():
        return "at every LR a seed was lost"
    if not interior and best in x[[0, -1]]:
        return f"the optimum is at the grid's edge: {2**best:.4g} is the {'smallest' if best == x[0] else 'largest'} LR"
    if not interior:
        return "the lowest losses do not bend like a parabola"
    if not bent:
        return "a neighbour of the lowest LR lost a seed"
    if len(y) == 1:
        return ONE_SEED
    edges = [i + 1 for i, row in enumerate(y) if not lowest_parabola(x, row)[2]]
    return f"{len(edges)} of {len(y)} seeds have their own lowest loss at the grid's edge" if edges else ""
