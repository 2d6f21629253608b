"""Partial pooling: exponents of several groups, each shrunk towards their mean, the more the larger its error.

A random-effects model: the estimate of group g is normal about its true value with a known error s_g, and true values
are normal about a common mean with a standard deviation between groups (DerSimonian & Laird 1986; Gelman et al. 2013,
Bayesian Data Analysis, sec. 5.4). Legend: G groups, R draws, T values of the deviation between groups.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

FEWEST_GROUPS = 3  # of two, the spread between groups has one degree of freedom: any value would do
GRID = 400  # values of the deviation between groups, up to TOP times the estimates' own spread
TOP = 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class Pooled:
    """One parameter of several groups: `estimates` and their `errors` [G], pooled.

    `mean`, `mean_error`: of all groups. `between`: the estimated standard deviation between groups (REML); `interval`
    holds it. `shrunk` [G]: the groups' values, each moved by the share `moved` [G] of the way to the mean.
    """

    estimates: np.ndarray
    errors: np.ndarray
    mean: float
    mean_error: float
    between: float
    interval: tuple[float, float]
    shrunk: np.ndarray
    moved: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in dataclasses.asdict(self).items()
        }


def pool(estimates: np.ndarray, errors: np.ndarray, level: float = 0.9) -> Pooled:
    """Pool estimates [G] with known standard errors [G] by the between-group variance of highest restricted likelihood.

    With equal errors s that variance is max(0, sample variance - s^2), and each value moves to the mean by the share
    s^2 / (s^2 + variance).
    """
    between = estimate_between(estimates, errors)
    mean, mean_error = pooled_mean(estimates, errors, between)
    moved = errors**2 / (errors**2 + between**2)
    grid, density = between_density(estimates, errors)
    total = np.cumsum(density) / density.sum()
    low, high = (float(grid[np.searchsorted(total, share)]) for share in ((1 - level) / 2, (1 + level) / 2))
    shrunk = estimates + moved * (mean - estimates)
    return Pooled(estimates, errors, float(mean), float(mean_error), between, (low, high), shrunk, moved)


def pooled_mean(estimates: np.ndarray, errors: np.ndarray, between: Any) -> tuple[Any, Any]:
    """(mean, its standard error) of estimates [G], each weighted by 1 / (its variance + that between groups).

    `between`: a number, or [T, 1] for results [T].
    """
    weights = 1.0 / (errors**2 + np.square(between))
    total = weights.sum(axis=-1)
    return (weights * estimates).sum(axis=-1) / total, 1.0 / np.sqrt(total)


def restricted_likelihood(estimates: np.ndarray, errors: np.ndarray, between: np.ndarray) -> np.ndarray:
    """Log restricted likelihood [T] of standard deviations between groups [T] (Gelman et al. 2013, eq. 5.21)."""
    column = np.asarray(between, float)[:, None]
    mean, error = pooled_mean(estimates, errors, column)
    variances = errors**2 + column**2
    squares = (estimates - mean[:, None]) ** 2 / variances
    return np.log(error) - 0.5 * np.sum(np.log(variances) + squares, axis=1)


def estimate_between(estimates: np.ndarray, errors: np.ndarray) -> float:
    """The standard deviation between groups that has the highest restricted likelihood (REML)."""
    grid = _grid(estimates, errors)
    at = int(restricted_likelihood(estimates, errors, grid).argmax())
    if at == 0:
        return 0.0

    def worse(between: float) -> float:
        return -float(restricted_likelihood(estimates, errors, np.array([between]))[0])

    ends = grid[at - 1], grid[min(at + 1, len(grid) - 1)]
    result = minimize_scalar(worse, bounds=ends, method="bounded", options={"xatol": 1e-9 * ends[1]})
    return float(result.x)


def between_density(estimates: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(grid [T], posterior density [T]) of the deviation between groups, for a flat prior (Gelman 2006)."""
    grid = _grid(estimates, errors)
    log = restricted_likelihood(estimates, errors, grid)
    return grid, np.exp(log - log.max())


def draw_pooled(estimates: np.ndarray, errors: np.ndarray, draws: np.ndarray, seed: int) -> np.ndarray:
    """Draws [R, G] of the groups' values, from resampled estimates `draws` [R, G] and the model's uncertainty.

    Each draw has a deviation between groups of its own, so intervals carry how little a few groups say about it. Where
    it is large, the draw is the resampled estimate itself.
    """
    random = np.random.default_rng(seed)
    grid, density = between_density(estimates, errors)
    between = random.choice(grid, size=len(draws), p=density / density.sum())[:, None]
    mean, error = pooled_mean(estimates, errors, between)
    mean = mean + error * random.standard_normal(len(draws))
    moved = errors**2 / (errors**2 + between**2)
    centre = estimates + moved * (mean[:, None] - estimates)
    return centre + np.sqrt(1.0 - moved) * (draws - estimates)


def _grid(estimates: np.ndarray, errors: np.ndarray) -> np.ndarray:
    spread = max(float(np.std(estimates, ddof=1)), float(np.median(errors)))
    return np.linspace(0.0, TOP * spread, GRID)
