"""A law, its points and an objective as the solver sees them: functions of x [R, K], R problems at once, in float64.

x holds one coordinate per parameter, in which the fit is well conditioned: for a linear coefficient the size of its
term at the centre of the data (geometric means of the columns), for a scale its logarithm, for an exponent its value.
Legend: R problems (starts, resamples), K parameters, L linear ones, P points, G seeds.
"""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective

Columns = Mapping[str, np.ndarray]
Derivatives = tuple[np.ndarray, np.ndarray, np.ndarray]
Moved = np.ndarray | float


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

    def residuals(self, params: Mapping[str, float]) -> np.ndarray:
        """Target minus law [P], in the objective's terms (usually log loss)."""
        return self.wanted - self.objective.target(self.law(self.columns, params))


def coordinate_bounds(law: Law) -> tuple[np.ndarray, np.ndarray]:
    """Bounds (lower [K], upper [K]) of x."""
    ranges = [(kind.how, (kind.low, kind.high)) for kind in law.params.values()]
    ends = [np.log(pair) if how == "log" else pair for how, pair in ranges]
    lower, upper = np.array(ends, float).T
    return lower, upper


def weighted_gram(jac: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Sums over points [R, K, K] of products of derivatives `jac` [R, K, P], each point times `scale` [R, P]."""
    return (jac * scale[:, None]) @ jac.transpose(0, 2, 1)
