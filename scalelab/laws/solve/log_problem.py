"""Derivatives of residuals from those of the law itself, for laws whose derivatives are written by hand.

Legend: R problems, K parameters, P points.
"""

import abc
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.solve.problem import Derivatives, Moved, Problem, weighted_gram


class Linearised(NamedTuple):
    """A law near x: `loss` [R, P], its `slopes` by x [R, K, P], and `parts` that `LogProblem.law_bend` reads."""

    loss: np.ndarray
    slopes: np.ndarray
    parts: Any


class LogProblem(Problem):
    """A problem whose residuals are of logs, or of the values themselves, as the objective has it.

    Subclasses give the law with its first and second derivatives.
    """

    @abc.abstractmethod
    def losses(self, x: np.ndarray) -> np.ndarray:
        """The law [R, P]."""

    @abc.abstractmethod
    def linearise(self, x: np.ndarray) -> Linearised:
        """The law with its first derivatives."""

    @abc.abstractmethod
    def law_bend(self, x: np.ndarray, share: np.ndarray, parts: Any) -> np.ndarray:
        """Second derivatives of the law [R, K, K], summed over points with weights `share` [R, P]."""

    def misfits(self, x: np.ndarray) -> np.ndarray:
        """The residuals [R, P]."""
        return self.objective.target(self.losses(x)) - self.wanted

    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The residuals [R, P] and their derivatives [R, K, P]."""
        loss, slopes, _ = self.linearise(x)
        return self.objective.target(loss) - self.wanted, slopes / loss[:, None] if self.objective.log else slopes

    def derivatives(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        """Gradient, IRLS majoriser and exact Hessian: (log L)'' = L'' / L - (L' / L)^2."""
        objective = self.objective
        with np.errstate(all="ignore"):  # `newton.descend` drops starts whose derivative isn't finite
            loss, slopes, parts = self.linearise(x)
            r = objective.target(loss) - self.wanted - moved
            jac = np.divide(slopes, loss[:, None], out=slopes) if objective.log else slopes
            pull = weights * objective.slope(r)
            majoriser = weighted_gram(jac, weights * objective.weight(r))
            curved, share = (pull, pull / loss) if objective.log else (0.0, pull)
            hessian = weighted_gram(jac, weights * objective.bend(r) - curved) + self.law_bend(x, share, parts)
            return (jac @ pull[..., None])[..., 0], majoriser, hessian
