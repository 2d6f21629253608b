"""Pose a fit: choose the derivatives written out for Chinchilla's law, or autodiff for any other."""

import numpy as np

from scalelab.laws.law import forms
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import autodiff_problem, chinchilla_problem
from scalelab.laws.solve.problem import Columns, Problem


def pose_problem(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, direct: tuple[str, ...] = ()
) -> Problem:
    """The problem of fitting `law` to `target` [P] at `columns` (each [P]).

    `direct` names linear coefficients that stand in x as they are, uncentred: to hold one at a value. Chinchilla's law has
    its derivatives written out (numpy, the fast way for thousands of resamples); any other's come from autodiff.
    """
    if law.function is forms.chinchilla and objective.log:
        return chinchilla_problem.build_chinchilla_problem(law, columns, target, objective, direct)
    return autodiff_problem.build_autodiff_problem(law, columns, target, objective, direct)
