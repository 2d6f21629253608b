"""Derivatives of log residuals from those of the law itself, for laws whose derivatives are written by hand.

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
    """A problem whose residuals are of logs: subclasses give the law with its first and second derivatives."""

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
        """The log residuals [R, P]."""
        return np.log(self.losses(x)) - self.wanted

    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log residuals [R, P] and their derivatives [R, K, P]."""
        loss, slopes, _ = self.linearise(x)
        return np.log(loss) - self.wanted, slopes / loss[:, None]

    def derivatives(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        """Gradient, IRLS majoriser and exact Hessian: (log L)'' = L'' / L - (L' / L)^2."""
        objective = self.objective
        with np.errstate(all="ignore"):  # `newton.descend` drops starts whose derivative isn't finite
            loss, slopes, parts = self.linearise(x)
            jac, r = slopes / loss[:, None], np.log(loss) - self.wanted - moved
            pull = weights * objective.slope(r)
            majoriser = weighted_gram(jac, weights * objective.weight(r))
            hessian = weighted_gram(jac, weights * objective.bend(r) - pull) + self.law_bend(x, pull / loss, parts)
            return (jac @ pull[..., None])[..., 0], majoriser, hessian
