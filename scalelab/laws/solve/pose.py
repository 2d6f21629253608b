"""Poses a fit with derivatives by hand for laws that sum powers and for Farseer's, by autodiff for any other."""

import numpy as np

from scalelab.laws.law import forms
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.autodiff_problem import AutodiffProblem
from scalelab.laws.solve.farseer_problem import UNITS, FarseerProblem
from scalelab.laws.solve.power_law_problem import PowerLawProblem
from scalelab.laws.solve.problem import Columns, Problem

POWER_LAWS = (
    forms.chinchilla,
    forms.width_depth,
    forms.vocabulary,
)  # E, coefficients and exponents in the order of the columns


def pose_problem(
    law: Law,
    columns: Columns,
    target: np.ndarray,
    objective: Objective,
    direct: tuple[str, ...] = (),
    centre_at: Columns | None = None,
    like: Problem | None = None,
) -> Problem:
    """Pose the fit of `law` to `target` [P] at `columns` (each [P]) as a problem for the solver.

    `direct` names parameters that stand in x as they are, uncentred, so that one can be held at a value. `centre_at`:
    columns of the rows about which the others are centred, by default these. `like`: a problem of these rows, whose
    noise they have. Derivatives by hand are in numpy: fast for thousands of resamples, with nothing to compile; any
    other law's come from autodiff.
    """
    plain = _problem_class(law)(law, columns, target, objective, direct, centre_at)
    return like.weigh(plain) if like else plain


def has_own_derivatives(law: Law, objective: Objective) -> bool:
    """Whether the law's derivatives are by hand, so that nothing is compiled for another number of rows."""
    return _problem_class(law) is not AutodiffProblem


def _problem_class(law: Law) -> type[PowerLawProblem] | type[FarseerProblem] | type[AutodiffProblem]:
    if law.function in POWER_LAWS:
        return PowerLawProblem
    return FarseerProblem if law.function in UNITS else AutodiffProblem
