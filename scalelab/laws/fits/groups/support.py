"""Test of shared exponents against separate ones, by tables simulated from the fit with shared ones.

Legend: R tables, P points.
"""

from typing import NamedTuple

import numpy as np

from scalelab.laws.fits.groups import joint_fit
from scalelab.laws.fits.groups.joint_problem import JointProblem
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.trust.dependence import Dependence

TABLES = 200  # simulated; 1 of 200 is the least chance that can be told
SUPPORTED = 0.05  # separate exponents are supported if `p` is below this


class SeparateTest(NamedTuple):
    """How much lower the objective is with separate exponents: `lower_by`, as a share.

    `by_chance`: the 95th percentile of this share in `tables` simulated with shared exponents; `p`: the fraction of
    these tables that reach `lower_by`.
    """

    lower_by: float
    by_chance: float
    p: float
    tables: int

    @property
    def supported(self) -> bool:
        """Whether separate exponents gain more than chance gives."""
        return self.p < SUPPORTED


def check_separate(
    shared: JointProblem, best: Optimum, separate: JointProblem, wide: Optimum, dependence: Dependence | None, seed: int
) -> SeparateTest:
    """Compare the fits with shared and with separate exponents by the ratio of their objectives.

    The distribution of that ratio under shared exponents comes from simulated tables, fitted both ways: so it holds for
    any objective and for rows that depend. BadInput and FitError are not raised: a table that doesn't converge is left
    out.
    """
    residuals = shared.problem.residuals(best.params)
    simulated = dependence.simulate_errors(TABLES, seed + 1) if dependence else None
    errors = _draw_errors(shared, residuals, seed + 1) if simulated is None else simulated
    weights, moved = np.ones_like(errors), errors - residuals
    start = separate.problem.from_params({name: shared_value(best, name) for name in separate.problem.law.params})
    values = []
    for joint, x in ((shared, best.x), (separate, start)):
        refits, converged = joint_fit.refit(joint, x, weights, moved, seeded=False)
        values.append(np.where(converged, joint.problem.value(refits, weights, moved), np.nan))
    ratios = 1.0 - values[1] / values[0]
    ratios = ratios[np.isfinite(ratios)]
    lower_by = 1.0 - wide.value / best.value if best.value > 0 else 0.0
    p = (1 + int(np.sum(ratios >= lower_by))) / (1 + len(ratios))
    return SeparateTest(float(lower_by), float(np.quantile(ratios, 0.95)) if len(ratios) else 1.0, p, len(ratios))


def shared_value(best: Optimum, name: str) -> float:
    """A parameter's value in the fit of a joint law that shares at least as much: its own, or the shared one."""
    return best.params[name] if name in best.params else best.params[name.partition("[")[0]]


def _draw_errors(joint: JointProblem, residuals: np.ndarray, seed: int) -> np.ndarray:
    """Residuals of each group [R, P], drawn with replacement, centred, and widened by the degrees of freedom lost."""
    random, errors = np.random.default_rng(seed), np.zeros((TABLES, len(residuals)))
    spare = len(residuals) - len(joint.problem.law.params)
    wider = np.sqrt(len(residuals) / max(spare, 1))
    for part in joint.parts:
        rows = np.flatnonzero(part.mask)
        own = (residuals[rows] - residuals[rows].mean()) * wider
        errors[:, rows] = random.choice(own, size=(TABLES, len(rows)))
    return errors
