"""The noise of a loss over seeds, for approach 2: measured in the table itself, or Porian's model of it.

Legend: P runs, S sizes of one budget, Q contrasts.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput

ENOUGH_DOF = 3  # degrees of freedom of repeated runs; with fewer, the residuals of neighbours count too
NEIGHBOURS = 4  # runs in a contrast: a parabola goes through three of them, the fourth is left over
NEAR_BEST = 0.05  # ... all within this share of the budget's least loss: further off, the curve is not a parabola


@dataclasses.dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of a run's loss over seeds (Porian et al. 2024, app. D), in nats per token.

    It is `low` at losses up to `easy`, `high` from `hard` on, and linear in logs of both between them. `dof`: the
    degrees of freedom of the estimate; infinite, as this is a model that is taken as known.
    """

    low: float = 0.005
    high: float = 0.1
    easy: float = 3.0
    hard: float = 6.0
    dof: float = np.inf

    def std(self, loss: ArrayLike) -> np.ndarray:
        """The standard deviation at these losses."""
        ends = np.log([self.easy, self.hard]), np.log([self.low, self.high])
        return np.exp(np.interp(np.log(loss), *ends))


@dataclasses.dataclass(frozen=True)
class MeasuredNoise:
    """The noise that a table shows: a standard deviation as a `share` of the loss, with `dof` degrees of freedom.

    `source`: "repeats" of a setting or "residuals" of neighbouring sizes; `count`: settings or residuals used.
    """

    share: float
    dof: float
    source: str
    count: int

    def std(self, loss: ArrayLike) -> np.ndarray:
        """The standard deviation at these losses, in their unit."""
        return self.share * np.asarray(loss, float)


def measure_noise(budget: ArrayLike, N: ArrayLike, loss: ArrayLike, seeds: ArrayLike | None = None) -> MeasuredNoise:
    """Measure the noise of one run from runs of equal `budget` and N, or from neighbouring sizes; each argument [P].

    Repeated runs count if there are enough; where `seeds` [P] are known, those of a setting must differ: else something
    other than the seed was varied there. Else every four neighbouring sizes of a budget give the residual of a parabola
    through their log losses (as Gasser, Sroka & Jennen-Steinmetz 1986 do with three and a line): no curve of the whole
    budget is needed. BadInput where neither is possible.
    """
    budget, N, log_loss = np.asarray(budget), np.asarray(N, float), np.log(np.asarray(loss, float))
    repeats = _measure_repeats(budget, N, log_loss, None if seeds is None else np.asarray(seeds))
    if repeats and repeats.dof >= ENOUGH_DOF:
        return repeats
    near = [_measure_neighbours(budget, N, log_loss, share) for share in (NEAR_BEST, np.inf)]
    noise = near[0] or repeats or near[1]
    if noise is None:
        raise BadInput(
            "--seed-noise: no setting has repeated runs, and no budget four sizes, so the table shows no noise; "
            "nearest: leave it out"
        )
    return noise


def _measure_repeats(
    budget: np.ndarray, N: np.ndarray, log_loss: np.ndarray, seeds: np.ndarray | None
) -> MeasuredNoise | None:
    """The pooled spread of log loss in settings that were run more than once; None if there are none."""
    squares, dof, settings = 0.0, 0, 0
    for pair in {(b, n) for b, n in zip(budget, N, strict=True)}:
        rows = np.flatnonzero((budget == pair[0]) & (pair[1] == N))
        if len(rows) < 2 or (seeds is not None and len(set(seeds[rows])) < len(rows)):
            continue
        squares += float(np.sum((log_loss[rows] - log_loss[rows].mean()) ** 2))
        dof, settings = dof + len(rows) - 1, settings + 1
    return MeasuredNoise(float(np.sqrt(squares / dof)), float(dof), "repeats", settings) if dof else None


def _measure_neighbours(budget: np.ndarray, N: np.ndarray, log_loss: np.ndarray, near: float) -> MeasuredNoise | None:
    """The noise by residuals of a fourth size from parabolas through three neighbours; None if no budget has four.

    Log losses of all four are within `near` of the budget's least.
    """
    values, overlap, count = 0.0, 0.0, 0
    for each in np.unique(budget):
        rows = budget == each
        log_n, which, repeats = np.unique(np.log(N[rows]), return_inverse=True, return_counts=True)
        if len(log_n) < NEIGHBOURS:
            continue
        means = np.bincount(which, log_loss[rows]) / repeats
        contrasts = _contrasts(log_n)
        contrasts = contrasts[((contrasts != 0) <= (means <= means.min() + near)).all(axis=1)]
        contrasts = contrasts * np.sqrt(repeats.min())  # the mean of repeated runs is less noisy
        values += float(np.sum((contrasts @ means) ** 2))
        overlap += float(np.sum((contrasts @ contrasts.T / repeats.min()) ** 2))
        count += len(contrasts)
    return MeasuredNoise(float(np.sqrt(values / count)), count**2 / overlap, "residuals", count) if count else None


def _contrasts(log_n: np.ndarray) -> np.ndarray:
    """Weights [Q, S] of length 1, each on four neighbouring sizes, that take any parabola in log N to zero."""
    weights = np.zeros((len(log_n) - NEIGHBOURS + 1, len(log_n)))
    for i in range(len(weights)):
        at = log_n[i : i + NEIGHBOURS]
        powers = np.vander((at - at.mean()) / np.ptp(at), NEIGHBOURS - 1)
        weights[i, i : i + NEIGHBOURS] = np.linalg.svd(powers.T)[2][-1]
    return weights
