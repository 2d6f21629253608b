"""Poses a fit with derivatives by hand for Chinchilla's law, by autodiff for any other."""

import numpy as np

from scalelab.laws.law import forms
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import autodiff_problem, chinchilla_problem
from scalelab.laws.solve.problem import Columns, Problem


def pose_problem(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, direct: tuple[str, ...] = ()
) -> Problem:
    """Pose the fit of `law` to `target` [P] at `columns` (each [P]) as a problem for the solver.

    `direct` names linear coefficients that stand in x as they are, uncentred, so that one can be held at a value.
    Chinchilla's law has derivatives by hand (numpy: fast for thousands of resamples); any other law's come from
    autodiff.
    """
    if law.function is forms.chinchilla and objective.log:
        return chinchilla_problem.build_chinchilla_problem(law, columns, target, objective, direct)
    return autodiff_problem.build_autodiff_problem(law, columns, target, objective, direct)
