"""What to do where a law's form fails: resamples carry what it gets wrong, and a wider law may do better."""

from typing import Any, NamedTuple

from scalelab.errors import BadInput
from scalelab.laws.law import forms
from scalelab.laws.law.names import LAWS
from scalelab.laws.solve import optimum
from scalelab.laws.solve.optimum import FitError, Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import form, identifiable, profile
from scalelab.laws.trust.dependence import Dependence, estimate_dependence
from scalelab.laws.trust.discrepancy import Discrepancy, find_discrepancy
from scalelab.laws.trust.form import FormTest
from scalelab.laws.trust.uncertainty import Bootstrap, Progress, bootstrap_fit

WIDER: dict[Any, tuple[Any, str]] = {  # a law as a special case of a wider one, and the parameter that tells them apart
    forms.chinchilla: (forms.chinchilla_gamma, "gamma"),
    forms.saturating: (forms.broken_power, "shift"),
}
NESTED_LEVEL = 0.99
PROFILE_DRAWS = 400  # of the law's error, where nothing is resampled


class WiderLaw(NamedTuple):
    """A wider law that fits better than chance allows: its name, what it adds, and the share by which it is better."""

    name: str
    param: str
    value: float
    lower_by: float


def resample_fit(
    problem: Problem,
    best: Optimum,
    count: int,
    seed: int,
    dependence: Dependence | None,
    progress: Progress | None = None,
) -> tuple[Bootstrap | None, FormTest | None, Discrepancy | None]:
    """Resample a fit (not if `count` is 0), test its form, and draw the error of its law, which the resamples carry."""
    tested = form.judge_form(problem, best, dependence, seed)
    law_error = find_discrepancy(problem, best, count or PROFILE_DRAWS, seed, dependence)
    boot = bootstrap_fit(problem, best, count, seed, dependence, progress, law_error) if count else None
    return boot, tested, law_error


def find_wider_law(problem: Problem, best: Optimum, dependence: Dependence | None) -> WiderLaw | None:
    """Find a wider law for which the likelihood ratio rejects the narrow one at NESTED_LEVEL; None if there is none."""
    if problem.law.function not in WIDER or problem.law.held:
        return None
    function, name = WIDER[problem.law.function]
    law = LAWS[function.__name__]
    try:
        identifiable.check_identifiable(law, problem.columns, problem.target, log=problem.objective.log)
        posed = pose_problem(law, problem.columns, problem.target, problem.objective, like=problem)
        wide = optimum.minimise_objective(posed)
    except (BadInput, FitError):
        return None
    if dependence:
        shared = estimate_dependence(posed, wide, dependence.labels)
        end = wide.value + shared.objective_rise(name, problem.objective, NESTED_LEVEL)
    else:
        end = profile.profile_end(posed, wide, NESTED_LEVEL)
    narrow = profile.least_value(problem, best)
    return WiderLaw(law.name, name, wide.params[name], 1.0 - wide.value / narrow) if narrow > end else None
