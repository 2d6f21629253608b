"""Laws E + sum of A_i/x_i^alpha_i with derivatives by hand: thousands of resamples a second, nothing compiled.

Chinchilla's law has two such terms, Gemstones' law of width and depth four. Coordinates are (E, a_1, …, alpha_1, …)
with a_i = A_i exp(-alpha_i mean log x_i): each term at the centre of the data.
Legend: R problems, T terms, K = 1 + 2 T parameters, P points, G seeds.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.solve.log_problem import Linearised, LogProblem
from scalelab.laws.solve.problem import Columns


@dataclasses.dataclass(frozen=True, eq=False)
class PowerLawProblem(LogProblem):
    """The fit of E, T coefficients and T exponents in the order of the columns; arguments as in `pose.pose_problem`."""

    direct: tuple[str, ...] = ()
    centre_at: Columns | None = None

    @functools.cached_property
    def count(self) -> int:
        """Number of terms T."""
        return len(self.law.columns)

    @functools.cached_property
    def centres(self) -> list[float]:
        """Mean logarithm of each column; 0 where the coefficient stands in x as it is."""
        coefficients = list(self.law.params)[1 : 1 + self.count]
        means = [np.log((self.centre_at or self.columns)[name]).mean() for name in self.law.columns]
        return [0.0 if name in self.direct else mean for name, mean in zip(coefficients, means, strict=True)]

    @functools.cached_property
    def sizes(self) -> list[np.ndarray]:
        """Logarithm of each column less its centre [P]."""
        columns = zip(self.law.columns, self.centres, strict=True)
        return [np.log(self.columns[name]) - centre for name, centre in columns]

    def losses(self, x: np.ndarray) -> np.ndarray:
        """The law [R, P]."""
        return self._sum_terms(x, self._powers(x[:, 1 + self.count :]))

    def linearise(self, x: np.ndarray) -> Linearised:
        """The law with its first derivatives, and the centred powers."""
        powers = self._powers(x[:, 1 + self.count :])
        loss = self._sum_terms(x, powers)
        terms = enumerate(zip(self.sizes, powers, strict=True), 1)
        by_exponent = [-x[:, i : i + 1] * size * power for i, (size, power) in terms]
        return Linearised(loss, np.stack([np.ones_like(loss), *powers, *by_exponent], axis=1), powers)

    def law_bend(self, x: np.ndarray, share: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
        """Second derivatives of the law by (a_i, alpha_i) and (alpha_i, alpha_i), summed over points."""
        bend = np.zeros((len(x), x.shape[1], x.shape[1]))
        for term, (size, power) in enumerate(zip(self.sizes, parts, strict=True), 1):
            exponent = term + self.count
            pulled = share * power * size
            bend[:, term, exponent] = bend[:, exponent, term] = -pulled.sum(axis=1)
            bend[:, exponent, exponent] = x[:, term] * (pulled @ size)
        return bend

    def basis(self, searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A constant and the centred powers [G, 1 + T, P]; no offset."""
        ones = np.ones((len(searched), self.points))
        return np.stack([ones, *self._powers(searched)], axis=1), 0 * ones

    def to_params(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """E, A_i = a_i exp(alpha_i mean log x_i), alpha_i."""
        return dict(zip(self.law.params, self._scale(np.moveaxis(x, -1, 0), 1.0), strict=True))

    def from_params(self, params: Mapping[str, Any]) -> np.ndarray:
        """The inverse of `to_params`."""
        values = [np.asarray(params[name], float) for name in self.law.params]
        return np.stack(np.broadcast_arrays(*self._scale(values, -1.0)), -1)

    def _powers(self, exponents: np.ndarray) -> list[np.ndarray]:
        """The centred powers x_i^-alpha_i, each [R, P]."""
        return [np.exp(-exponents[:, i : i + 1] * size) for i, size in enumerate(self.sizes)]

    def _sum_terms(self, x: np.ndarray, powers: list[np.ndarray]) -> np.ndarray:
        loss = x[:, 0:1]
        for i, power in enumerate(powers, 1):
            loss = loss + x[:, i : i + 1] * power
        return loss

    def _scale(self, values: Any, sign: float) -> list[np.ndarray]:
        """E, coefficients times exp(sign alpha_i mean log x_i), exponents."""
        first, *others = values
        terms, exponents = others[: self.count], others[self.count :]
        each = zip(terms, exponents, self.centres, strict=True)
        return [first, *(term * np.exp(sign * exponent * centre) for term, exponent, centre in each), *exponents]
