"""Rows that lie farther off the law of the others than chance allows.

Each row's residual is divided by its standard error from a law fitted without it (externally studentised residuals:
Belsley, Kuh & Welsch 1980, ch. 2), so that a row can't hide by drawing the law to itself, and the largest is judged
among all rows. Rows are taken out one after the other, as one can hide another (Rosner 1983, Technometrics 25(2)).
Legend: P points, K parameters.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy import special

from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import newton
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import information
from scalelab.laws.trust.dependence import Dependence

CHANCE = 0.01  # tables of Gaussian noise in which some row is accused (rates measured: checks/results/claims.md)
HEAVY_CHANCE = 0.02  # ... of Laplace noise, whose tails are heavier
MOST = 0.1  # share of the rows that may be accused, but at least one
MOST_ROWS = 50
FEWEST_SPARE = 2  # degrees of freedom of the noise that must be left
ITS_OWN = 1e-6  # a row that leaves less than this share of its error to its residual fixes a parameter alone
LEAST_NOISE = 1e-9  # of losses without error
FLAT = 1e-9  # a direction of this length, beside the longest, takes up nothing


class Residuals(NamedTuple):
    """Residuals [P] of a fit by least squares, and an orthonormal basis [P, <= K] of what its parameters take up."""

    errors: np.ndarray
    basis: np.ndarray

    @property
    def left(self) -> np.ndarray:
        """The share [P] of each row's error variance that is left in its residual."""
        return 1.0 - np.sum(self.basis**2, axis=1)


class Outliers(NamedTuple):
    """`rows`: the accused, the farthest first; `off`: how far each lies off the law fitted without them."""

    rows: tuple[int, ...]
    off: tuple[float, ...]


def find_outliers(
    problem: Problem, best: Optimum, dependence: Dependence | None = None, scale: np.ndarray | None = None
) -> Outliers:
    """The rows that lie off the law of the others by more than chance gives in CHANCE of tables.

    `dependence`: what rows of a group share is taken out first. `scale` [P]: the rows' own standard deviations, up to a
    factor.
    """
    plain = least_squares(problem, best)
    fitted = plain if scale is None else _weigh(plain, scale)
    order, accused = _order_by_distance(*(take_out_groups(fitted, dependence) if dependence else fitted))
    rest = np.setdiff1d(np.arange(problem.points), order[:accused])
    off = plain.errors - plain.basis @ np.linalg.lstsq(plain.basis[rest], plain.errors[rest])[0]
    off = off if problem.scale is None else off * problem.scale
    rows = sorted(order[:accused], key=lambda row: -abs(off[row]))
    return Outliers(tuple(rows), tuple(float(off[row]) for row in rows))


def least_squares(problem: Problem, best: Optimum) -> Residuals:
    """Residuals of the law fitted by least squares: those of a fit with a small Huber threshold are zero at K rows."""
    plain = Objective("least squares", np.inf, log=problem.objective.log)
    squares = dataclasses.replace(problem, objective=plain)
    x = newton.descend(squares, best.x[None], np.ones((1, problem.points))).x[0]
    params = {name: float(value) for name, value in squares.to_params(x).items()}
    at = dataclasses.replace(best, params=params, x=x)
    return _project(squares.residuals(params), information.law_sensitivity(squares, at, squares.columns, 1.0))


def take_out_groups(fitted: Residuals, dependence: Dependence) -> Residuals:
    """Residuals with independent errors: each group's mean is taken out as far as its rows share it."""
    labels, row = dependence.labels, dependence.row_sd**2
    sizes = np.bincount(labels)
    part = (1.0 - np.sqrt(row / (row + sizes * dependence.group_sd**2)))[labels, None]
    both = np.column_stack([fitted.errors, fitted.basis])
    means = np.stack([np.bincount(labels, column) / sizes for column in both.T], axis=1)[labels]
    both = both - part * means
    return _project(both[:, 0], both[:, 1:])


def _weigh(fitted: Residuals, scale: np.ndarray) -> Residuals:
    """The residuals in units of the rows' own noise, of a law fitted with weights to match."""
    relative = scale / np.exp(np.mean(np.log(scale)))
    return _project(fitted.errors / relative, fitted.basis / relative[:, None])


def _project(errors: np.ndarray, slopes: np.ndarray) -> Residuals:
    """The errors [P] less what the slopes [P, K] hold of them, and an orthonormal basis of these."""
    sizes = np.linalg.norm(slopes, axis=0)
    vectors, values, _ = np.linalg.svd(slopes[:, sizes > 0] / sizes[sizes > 0], full_matrices=False)
    basis = vectors[:, values > FLAT * values[:1]]
    return Residuals(errors - basis @ (basis.T @ errors), basis)


def _order_by_distance(errors: np.ndarray, basis: np.ndarray) -> tuple[list[int], int]:
    """(rows in the order in which they are taken out, how many of them lie too far off for chance)."""
    count, params = basis.shape
    most = min(max(1, int(MOST * count)), MOST_ROWS, count - params - 1 - FEWEST_SPARE)
    left, order, accused = np.ones(count, bool), list[int](), 0
    for _ in range(most):
        spare = int(left.sum()) - params
        gram = np.linalg.pinv(basis[left].T @ basis[left])
        residuals = errors - basis @ (gram @ (basis[left].T @ errors[left]))
        share = 1.0 - np.einsum("pk,kl,pl->p", basis, gram, basis)
        noise = max(float(residuals[left] @ residuals[left]), spare * LEAST_NOISE**2)
        squares = np.where(left & (share > ITS_OWN), residuals**2 / np.maximum(share, ITS_OWN), 0.0)
        worst = int(squares.argmax())
        order.append(worst)
        others = max(noise - squares[worst], (spare - 1) * LEAST_NOISE**2)
        t = float(np.sqrt(squares[worst] / others * (spare - 1)))
        gaussian, laplace = 2 * special.stdtr(spare - 1, -t), np.exp(-np.sqrt(2) * t)
        if left.sum() * gaussian < CHANCE and left.sum() * laplace < HEAVY_CHANCE:
            accused = len(order)
        left[worst] = False
    return order, accused
