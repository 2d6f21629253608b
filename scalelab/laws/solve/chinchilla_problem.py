"""Chinchilla's law with derivatives by hand: thousands of resamples a second in float64 numpy, nothing compiled.

x = (E, a, b, alpha, beta) with a = A exp(-alpha mean log N), b = B exp(-beta mean log D): the two terms at the centre
of the data. Legend: R problems, P points, G seeds.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.problem import Columns, Derivatives, Moved, Problem, coordinate_bounds


def build_chinchilla_problem(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, direct: tuple[str, ...]
) -> Problem:
    """Build the problem for Chinchilla's law; arguments as in `pose.pose_problem`."""
    log_n, log_d, y = np.log(columns["N"]), np.log(columns["D"]), np.log(target)
    n_mean = 0.0 if "A" in direct else log_n.mean()
    d_mean = 0.0 if "B" in direct else log_d.mean()
    n, d = log_n - n_mean, log_d - d_mean

    def model(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(loss, N^-alpha, D^-beta), each [R, P], the powers centred."""
        u, v = np.exp(-x[:, 3:4] * n), np.exp(-x[:, 4:5] * d)
        return x[:, 0:1] + x[:, 1:2] * u + x[:, 2:3] * v, u, v

    def value(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):  # a law that is 0 everywhere gets value inf
            total = np.sum(weights * objective.penalty(np.log(model(x)[0]) - y - moved), axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def derivatives(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        loss, u, v = model(x)
        r = np.log(loss) - y - moved
        pull = weights * objective.slope(r)
        jac = np.stack([np.ones_like(u), u, v, -x[:, 1:2] * n * u, -x[:, 2:3] * d * v], axis=1) / loss[:, None]
        gradient = (jac @ pull[..., None])[..., 0]

        def gram(scale: np.ndarray) -> np.ndarray:
            return (jac * scale[:, None]) @ jac.transpose(0, 2, 1)

        majoriser = gram(weights * objective.weight(r))
        hessian = gram(weights * objective.bend(r) - pull)
        for term, slope, log_size, power in ((1, 3, n, u), (2, 4, d, v)):
            share = pull / loss * power * log_size
            hessian[:, term, slope] -= share.sum(axis=1)
            hessian[:, slope, term] -= share.sum(axis=1)
            hessian[:, slope, slope] += x[:, term] * (share @ log_size)
        return gradient, majoriser, hessian

    def basis(exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ones = np.ones((len(exponents), len(y)))
        return np.stack([ones, np.exp(-exponents[:, :1] * n), np.exp(-exponents[:, 1:] * d)], axis=1), 0 * ones

    def to_params(x: np.ndarray) -> dict[str, np.ndarray]:
        E, a, b, alpha, beta = np.moveaxis(x, -1, 0)
        return {
            "E": E, "A": a * np.exp(alpha * n_mean), "B": b * np.exp(beta * d_mean), "alpha": alpha, "beta": beta,
        }  # fmt: skip

    def from_params(params: Mapping[str, Any]) -> np.ndarray:
        E, A, B, alpha, beta = (np.asarray(params[name], float) for name in law.params)
        return np.stack(
            np.broadcast_arrays(E, A * np.exp(-alpha * n_mean), B * np.exp(-beta * d_mean), alpha, beta), -1
        )

    return Problem(
        law, objective, columns, target, *coordinate_bounds(law), value, derivatives, basis, to_params, from_params
    )
