"""A law, its points and an objective as the solver sees them: functions of x [R, K], R problems at once, in float64.

x holds one coordinate per parameter, in which the fit is well conditioned: for a linear coefficient the size of its
term at the centre of the data (geometric means of the columns), for a scale its logarithm, for an exponent its value.
Legend: R problems (starts, resamples), K parameters, L linear ones, P points, G seeds.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective

Columns = Mapping[str, np.ndarray]
Derivatives = tuple[np.ndarray, np.ndarray, np.ndarray]
Moved = np.ndarray | float
SAME_SIZE = 0.01  # rows whose sizes differ by less, in logs, are equally near to a new run


@dataclasses.dataclass(frozen=True, eq=False)
class Problem(abc.ABC):
    """The fit of `law` to `target` [P] at `columns`, as `newton.descend` and `newton.variable_projection` need it."""

    law: Law
    columns: Columns
    target: np.ndarray
    objective: Objective

    @abc.abstractmethod
    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals, law minus target in the objective's terms [R, P], and their derivatives by x [R, K, P]."""

    @abc.abstractmethod
    def derivatives(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        """Derivatives of `value`: gradient [R, K], IRLS majoriser [R, K, K], exact Hessian [R, K, K]."""

    @abc.abstractmethod
    def basis(self, searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Terms [G, L, P] with each linear coordinate at 1, offset [G, P], for the other coordinates [G, K - L]."""

    @abc.abstractmethod
    def to_params(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters {name: [R]} of the coordinates x."""

    @abc.abstractmethod
    def from_params(self, params: Mapping[str, Any]) -> np.ndarray:
        """Coordinates of parameters: the inverse of `to_params`."""

    def misfits(self, x: np.ndarray) -> np.ndarray:
        """The residuals alone [R, P], where they cost less without their derivatives."""
        return self.slopes(x)[0]

    def value(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> np.ndarray:
        """The objective [R] with weights [R, P]; infinite where the law is not defined.

        `moved` [R, P] is added to the targets, in the objective's terms.
        """
        with np.errstate(all="ignore"):
            total = np.sum(weights * self.objective.penalty(self.misfits(x) - moved), axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    @property
    def mixed(self) -> tuple[str, ...]:
        """Parameters whose place in x holds another quantity, unless they are held as they are."""
        return ()

    @functools.cached_property
    def lower(self) -> np.ndarray:
        """The least x [K]."""
        return coordinate_bounds(self.law)[0]

    @functools.cached_property
    def upper(self) -> np.ndarray:
        """The largest x [K]."""
        return coordinate_bounds(self.law)[1]

    @functools.cached_property
    def wanted(self) -> np.ndarray:
        """The target in the objective's terms: usually log loss [P]."""
        return self.objective.target(self.target)

    @property
    def points(self) -> int:
        """Number of points P."""
        return len(self.target)

    def places(self, names: list[str]) -> list[int]:
        """Indices of these parameters in x."""
        return [list(self.law.params).index(name) for name in names]

    @property
    def scale(self) -> np.ndarray | None:
        """Each row's own noise [P], up to a factor, in whose units residuals are; None if all rows have the same."""
        return None

    def scale_at(self, columns: Mapping[str, Any]) -> float:
        """The noise of a new run at these columns, in the same units."""
        return 1.0

    def weigh(self, plain: "Problem") -> "Problem":
        """Another problem of these rows, whose rows have the noise that they have here."""
        return plain

    def residuals(self, params: Mapping[str, float]) -> np.ndarray:
        """Target minus law [P], in the objective's terms (usually log loss)."""
        return self.wanted - self.objective.target(self.law(self.columns, params))


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedProblem(Problem):
    """The fit of `plain` to rows with a noise of their own: residuals are divided by `row_scale` [P].

    A new run has the noise of the fitted rows nearest to it in size, as `measure` has it.
    """

    plain: Problem
    row_scale: np.ndarray
    measure: Callable[[Columns], np.ndarray]

    @property
    def scale(self) -> np.ndarray:
        """Each row's own noise [P]; its geometric mean is 1."""
        return self.row_scale

    def scale_at(self, columns: Mapping[str, Any]) -> float:
        """The noise of a new run: that of the fitted rows nearest in size."""
        point = {name: np.atleast_1d(np.asarray(columns[name], float)) for name in self.law.columns}
        away = np.abs(np.log(self.measure(self.columns) / self.measure(point)))
        return float(np.exp(np.log(self.row_scale[away <= away.min() + SAME_SIZE]).mean()))

    def weigh(self, plain: Problem) -> Problem:
        """Another problem of these rows, with their noise."""
        return weigh_rows(plain, self.row_scale, self.measure)

    def misfits(self, x: np.ndarray) -> np.ndarray:
        """The residuals [R, P]."""
        return self.plain.misfits(x) / self.row_scale

    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals [R, P] and their derivatives [R, K, P]."""
        residuals, jac = self.plain.slopes(x)
        return residuals / self.row_scale, jac / self.row_scale

    def derivatives(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        """Those of the plain problem: Huber(delta) of r / s is Huber(s delta) of r, over s^2."""
        return self._plain_objective.derivatives(x, weights / self.row_scale**2, moved * self.row_scale)

    @functools.cached_property
    def _plain_objective(self) -> Problem:
        thresholds: Any = self.objective.delta * self.row_scale
        return dataclasses.replace(self.plain, objective=dataclasses.replace(self.objective, delta=thresholds))

    def basis(self, searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The linear terms of the plain problem, and its offset."""
        return self.plain.basis(searched)

    def to_params(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters of the coordinates x."""
        return self.plain.to_params(x)

    def from_params(self, params: Mapping[str, Any]) -> np.ndarray:
        """The inverse of `to_params`."""
        return self.plain.from_params(params)

    @property
    def mixed(self) -> tuple[str, ...]:
        """Those of the plain problem."""
        return self.plain.mixed

    def residuals(self, params: Mapping[str, float]) -> np.ndarray:
        """Target minus law [P] over each row's noise, in the objective's terms."""
        return self.plain.residuals(params) / self.row_scale


def weigh_rows(plain: Problem, scale: np.ndarray, measure: Callable[[Columns], np.ndarray]) -> WeightedProblem:
    """The problem with the rows' own noise `scale` [P], up to a factor; `measure`: the size of rows."""
    relative = scale / np.exp(np.log(scale).mean())
    return WeightedProblem(plain.law, plain.columns, plain.target, plain.objective, plain, relative, measure)


def coordinate_bounds(law: Law) -> tuple[np.ndarray, np.ndarray]:
    """Bounds (lower [K], upper [K]) of x."""
    ranges = [(kind.how, (kind.low, kind.high)) for kind in law.params.values()]
    ends = [np.log(pair) if how == "log" else pair for how, pair in ranges]
    lower, upper = np.array(ends, float).T
    return lower, upper


def weighted_gram(jac: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Sums over points [R, K, K] of products of derivatives `jac` [R, K, P], each point times `scale` [R, P]."""
    return (jac * scale[:, None]) @ jac.transpose(0, 2, 1)
