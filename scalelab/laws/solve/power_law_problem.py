"""Laws E + sum of A_i/x_i^alpha_i with derivatives by hand: thousands of resamples a second, nothing compiled.

Chinchilla's law has two such terms, Gemstones' law of width and depth four. Coordinates are (E, a_1, …, alpha_1, …)
with a_i = A_i exp(-alpha_i mean log x_i): each term at the centre of the data.
Legend: R problems, T terms, P points, G seeds.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.problem import Columns, Derivatives, Moved, Problem, coordinate_bounds


def build_power_law_problem(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, direct: tuple[str, ...],
    centre_at: Columns | None = None,
) -> Problem:  # fmt: skip
    """Build the problem for E, T coefficients and T exponents in the order of the columns.

    Arguments as in `pose.pose_problem`; residuals are of logs.
    """
    count = len(law.columns)
    logs, y = [np.log(columns[name]) for name in law.columns], np.log(target)
    coefficients = list(law.params)[1 : 1 + count]
    middles = [np.log((centre_at or columns)[name]).mean() for name in law.columns]
    means = [0.0 if name in direct else middle for name, middle in zip(coefficients, middles, strict=True)]
    sizes = [log - mean for log, mean in zip(logs, means, strict=True)]
    places = range(1, 1 + count)

    def model(x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """(loss, the centred powers x_i^-alpha_i), each [R, P]."""
        powers = [np.exp(-x[:, i + count : i + count + 1] * size) for i, size in zip(places, sizes, strict=True)]
        loss = x[:, 0:1]
        for i, power in zip(places, powers, strict=True):
            loss = loss + x[:, i : i + 1] * power
        return loss, powers

    def value(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):  # a law that is 0 everywhere gets value inf
            total = np.sum(weights * objective.penalty(np.log(model(x)[0]) - y - moved), axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def linearise(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
        loss, powers = model(x)
        by_exponent = [-x[:, i : i + 1] * size * u for i, size, u in zip(places, sizes, powers, strict=True)]
        jac = np.stack([np.ones_like(loss), *powers, *by_exponent], axis=1) / loss[:, None]
        return np.log(loss) - y, jac, loss, powers

    def derivatives(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        r, jac, loss, powers = linearise(x)
        r = r - moved
        pull = weights * objective.slope(r)
        gradient = (jac @ pull[..., None])[..., 0]

        def gram(scale: np.ndarray) -> np.ndarray:
            return (jac * scale[:, None]) @ jac.transpose(0, 2, 1)

        majoriser = gram(weights * objective.weight(r))
        hessian = gram(weights * objective.bend(r) - pull)
        for term, size, power in zip(places, sizes, powers, strict=True):
            slope = term + count
            share = pull / loss * power * size
            hessian[:, term, slope] -= share.sum(axis=1)
            hessian[:, slope, term] -= share.sum(axis=1)
            hessian[:, slope, slope] += x[:, term] * (share @ size)
        return gradient, majoriser, hessian

    def basis(exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ones = np.ones((len(exponents), len(y)))
        powers = [np.exp(-exponents[:, i : i + 1] * size) for i, size in enumerate(sizes)]
        return np.stack([ones, *powers], axis=1), 0 * ones

    def to_params(x: np.ndarray) -> dict[str, np.ndarray]:
        E, *others = np.moveaxis(x, -1, 0)
        terms, exponents = others[:count], others[count:]
        scaled = [a * np.exp(alpha * mean) for a, alpha, mean in zip(terms, exponents, means, strict=True)]
        return dict(zip(law.params, [E, *scaled, *exponents], strict=True))

    def from_params(params: Mapping[str, Any]) -> np.ndarray:
        E, *others = (np.asarray(params[name], float) for name in law.params)
        terms, exponents = others[:count], others[count:]
        scaled = [A * np.exp(-alpha * mean) for A, alpha, mean in zip(terms, exponents, means, strict=True)]
        return np.stack(np.broadcast_arrays(E, *scaled, *exponents), -1)

    return Problem(
        law, objective, columns, target, *coordinate_bounds(law), value, derivatives, basis, to_params, from_params,
        lambda x: linearise(x)[:2],
    )  # fmt: skip
