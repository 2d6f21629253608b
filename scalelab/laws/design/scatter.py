"""Whether the rows' noise changes with their size: one noise for all then makes some intervals too narrow.

A score test (Cook & Weisberg 1983; Glejser 1969): the sizes of residuals are correlated with the log of the runs' size.
Its null distribution is that of the same residuals in random order, so that heavy tails don't reject. P points.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from scalelab.laws.design.outliers import LEAST_NOISE, Residuals, least_squares, take_out_groups
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Columns, Problem
from scalelab.laws.trust.dependence import Dependence
from scalelab.laws.trust.information import run_sizes

ORDERS = 999
MOST_ORDERED = 2_000_000  # orders x rows: with more the correlation is as good as normal
REJECT = 0.02  # tables of one noise that are said to have two
FEWEST_SPARE = 3  # rows beyond the parameters
STEEPEST = 1.0  # of the slopes tried: noise as size to this power


class Scatter(NamedTuple):
    """Noise that goes as (size of the run)^`slope`; `p`: of a correlation as large by chance."""

    slope: float
    p: float

    @property
    def per_decade(self) -> float:
        """The noise of a run ten times as large, over that of this one."""
        return float(10.0**self.slope)

    @property
    def changes(self) -> bool:
        """Whether chance does not explain the change."""
        return self.p < REJECT

    def at(self, columns: Columns) -> np.ndarray:
        """The noise [P] at these rows, up to a factor: its geometric mean is 1."""
        logs = np.log(run_sizes(columns))
        return np.exp(self.slope * (logs - logs.mean()))


def measure_scatter(
    problem: Problem, best: Optimum, dependence: Dependence | None = None, seed: int = 0
) -> Scatter | None:
    """How the noise changes with the size of the runs; None where too few rows, or no error at all, tell."""
    fitted = least_squares(problem, best)
    fitted = take_out_groups(fitted, dependence) if dependence else fitted
    logs = np.log(run_sizes(problem.columns))
    spare = problem.points - fitted.basis.shape[1]
    if spare < FEWEST_SPARE or np.ptp(logs) == 0 or np.sqrt(np.mean(fitted.errors**2)) < LEAST_NOISE:
        return None
    return Scatter(_likeliest_slope(fitted, logs - logs.mean()), _chance(fitted, logs - logs.mean(), seed))


def _chance(fitted: Residuals, logs: np.ndarray, seed: int) -> float:
    """The share of random orders of the residuals with as large a correlation of their sizes with `logs` [P]."""
    left = np.sqrt(np.maximum(fitted.left, 1e-6))
    standard = fitted.errors / left
    count = min(ORDERS, MOST_ORDERED // len(logs))
    if count < ORDERS // 5:
        correlation = np.corrcoef(np.abs(standard), logs)[0, 1]
        return float(2 * special.ndtr(-abs(correlation) * np.sqrt(len(logs))))
    random = np.random.default_rng(seed)
    errors = np.concatenate([standard[None], random.permuted(np.tile(standard, (count, 1)), axis=1)])
    errors[1:] -= (errors[1:] @ fitted.basis) @ fitted.basis.T
    errors[1:] /= left
    sizes = np.abs(errors)
    sizes -= sizes.mean(axis=1, keepdims=True)
    correlations = np.abs(sizes @ logs) / np.maximum(np.linalg.norm(sizes, axis=1), 1e-300)
    return float(np.mean(correlations >= correlations[0] * (1 - 1e-12)))


def _likeliest_slope(fitted: Residuals, logs: np.ndarray) -> float:
    """The power of the size by which Gaussian noise is likeliest to change."""
    squares = fitted.errors**2 / np.maximum(fitted.left, 1e-6)

    def minus_log_likelihood(slope: float) -> float:  # the logs' mean is zero, so that of the noise does not change
        return float(np.log(np.mean(squares * np.exp(-2 * slope * logs))))

    return float(optimize.minimize_scalar(minus_log_likelihood, bounds=(-STEEPEST, STEEPEST), method="bounded").x)
