"""Refits of large tables: a resample of many rows has its optimum a few Newton steps from the whole table's.

One resample at a time, so that memory holds a few columns. Legend: R resamples, P points, K parameters.
"""

import numpy as np

from scalelab.laws.solve import newton
from scalelab.laws.solve.problem import Problem

MANY_ROWS = 5000  # the law of a resample of more rows lies within a few per cent of an interval's width of Newton's
STEPS = 12  # gradients at most; then the safe solver takes over


def refit_near(
    problem: Problem, weights: np.ndarray, x: np.ndarray, moved: np.ndarray | None = None
) -> newton.Solutions:
    """Fit each row of weights [R, P] from x [K], as exactly as `newton.descend`; `moved` [R, P] as there.

    Each resample's Hessian is taken once, at x, and serves all its steps; it differs from that at the resample's own
    optimum by one part in the root of P. Rows where this fails, or that meet a bound, go to `newton.descend`.
    """
    ones = np.ones((1, problem.points))
    residuals, jac = problem.slopes(x[None])
    bend = problem.objective.bend(residuals)
    second = problem.derivatives(x[None], ones)[2][0] - (jac[0] * bend) @ jac[0].T  # what the law's own bend adds
    result = newton.Solutions(
        np.tile(x, (len(weights), 1)), np.full(len(weights), np.inf), np.zeros(len(weights), bool)
    )
    for i, row in enumerate(weights):
        shift = None if moved is None else moved[i]
        solution = _refit_row(problem, row, x, second, 0.0 if shift is None else shift)
        if solution is None:
            start = x[None], row[None]
            fits = newton.descend(problem, *start, moved=None if shift is None else shift[None])
            solution = fits.x[0], fits.objective[0], bool(fits.converged[0])
        result.x[i], result.objective[i], result.converged[i] = solution
    return result


def _refit_row(
    problem: Problem, weights: np.ndarray, x: np.ndarray, second: np.ndarray, moved: np.ndarray | float
) -> tuple[np.ndarray, float, bool] | None:
    """(x, objective, True) of one resample; None where these steps don't lead to its optimum inside the bounds."""
    objective, inverse, before = problem.objective, None, np.inf
    for _ in range(STEPS):
        (r,), (jac,) = problem.slopes(x[None])
        r = r - moved
        if inverse is None:
            values, vectors = np.linalg.eigh((jac * (weights * objective.bend(r))) @ jac.T + second)
            if values[0] <= newton.SINGULAR * values[-1]:
                return None
            inverse = (vectors / values) @ vectors.T
        gradient = jac @ (weights * objective.slope(r))
        step = -inverse @ gradient
        promise = -0.5 * float(gradient @ step)
        value = float(weights @ objective.penalty(r))
        if promise <= newton.TOLERANCE * value + newton.ROUNDING * weights.sum():
            return x, value, True
        x = x + step
        if not promise < before or (x <= problem.lower).any() or (x >= problem.upper).any():
            return None
        before = promise
    return None
