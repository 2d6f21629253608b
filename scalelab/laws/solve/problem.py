"""A law, its points and an objective as the solver sees them: functions of x [R, K], R problems at once, in float64.

x holds one coordinate a parameter, in which the fit is well conditioned: a linear coefficient is held as the size of its
term at the centre of the data (geometric means of the columns), a scale as its logarithm, an exponent as itself.
Legend: R problems (starts, resamples), K parameters, L linear ones, P points, G seeds.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective

Columns = Mapping[str, np.ndarray]
Derivatives = tuple[np.ndarray, np.ndarray, np.ndarray]


class Problem(NamedTuple):
    """What `solve.descend` and `solve.project` need.

    value(x, weights [R, P]) -> [R]; derivatives(x, weights) -> (gradient [R, K], IRLS majoriser [R, K, K], exact Hessian
    [R, K, K]); basis(searched [G, K - L]) -> (terms [G, L, P] of each linear coordinate at one, offset [G, P]);
    to_params(x) -> {name: [R]}; from_params its inverse. `lower`, `upper` [K] bound x.
    """

    law: Law
    objective: Objective
    columns: Columns
    target: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    value: Callable[[np.ndarray, np.ndarray], np.ndarray]
    derivatives: Callable[[np.ndarray, np.ndarray], Derivatives]
    basis: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    to_params: Callable[[np.ndarray], dict[str, np.ndarray]]
    from_params: Callable[[Mapping[str, Any]], np.ndarray]

    @property
    def points(self) -> int:
        """P."""
        return len(self.target)

    def places(self, names: list[str]) -> list[int]:
        """Where these parameters stand in x."""
        return [list(self.law.params).index(name) for name in names]

    def residuals(self, params: Mapping[str, float]) -> np.ndarray:
        """Target minus law, in the objective's own terms (log loss, as a rule), [P]."""
        return self.objective.target(self.target) - self.objective.target(self.law(self.columns, params))


def coordinate_bounds(law: Law) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) of x."""
    ends = [
        (np.log(kind.low), np.log(kind.high)) if kind.how == "log" else (kind.low, kind.high)
        for kind in law.params.values()
    ]
    lower, upper = np.array(ends, float).T
    return lower, upper
