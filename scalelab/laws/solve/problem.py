"""A law, its points and an objective as the solver sees them: functions of x [R, K], R problems at once, in float64.

x holds one coordinate per parameter, in which the fit is well conditioned: for a linear coefficient the size of its
term at the centre of the data (geometric means of the columns), for a scale its logarithm, for an exponent its value.
Legend: R problems (starts, resamples), K parameters, L linear ones, P points, G seeds.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective

Columns = Mapping[str, np.ndarray]
Derivatives = tuple[np.ndarray, np.ndarray, np.ndarray]
Moved = np.ndarray | float


class Problem(NamedTuple):
    """A fit as `newton.descend` and `newton.variable_projection` need it.

    value(x, weights [R, P], moved=0.0) -> [R]; derivatives(x, weights, moved=0.0) -> (gradient [R, K], IRLS majoriser
    [R, K, K], exact Hessian [R, K, K]), where `moved` [R, P] is added to the targets, in the objective's terms;
    basis(searched [G, K - L]) -> (terms [G, L, P] with each linear coordinate at 1, offset [G, P]);
    to_params(x) -> {name: [R]}; from_params is its inverse. `lower`, `upper` [K] bound x. slopes(x) -> (residuals
    [R, P], their derivatives [R, K, P]). `mixed`: parameters whose place in x holds another quantity, unless direct.
    """

    law: Law
    objective: Objective
    columns: Columns
    target: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    value: Callable[..., np.ndarray]
    derivatives: Callable[..., Derivatives]
    basis: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    to_params: Callable[[np.ndarray], dict[str, np.ndarray]]
    from_params: Callable[[Mapping[str, Any]], np.ndarray]
    slopes: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    mixed: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """Number of points P."""
        return len(self.target)

    def places(self, names: list[str]) -> list[int]:
        """Indices of these parameters in x."""
        return [list(self.law.params).index(name) for name in names]

    def residuals(self, params: Mapping[str, float]) -> np.ndarray:
        """Target minus law [P], in the objective's terms (usually log loss)."""
        return self.objective.target(self.target) - self.objective.target(self.law(self.columns, params))


def coordinate_bounds(law: Law) -> tuple[np.ndarray, np.ndarray]:
    """Bounds (lower [K], upper [K]) of x."""
    ranges = [(kind.how, (kind.low, kind.high)) for kind in law.params.values()]
    ends = [np.log(pair) if how == "log" else pair for how, pair in ranges]
    lower, upper = np.array(ends, float).T
    return lower, upper
