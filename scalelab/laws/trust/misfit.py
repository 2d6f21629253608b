"""What to do where a law's form fails: how far it misses beyond its data, and whether a wider law does better.

The larger rows are left out again and again, the law is fitted to the smaller ones, and its errors on the larger ones
are divided by how far beyond the fitted rows they lie. The worst of these rates, times the distance of a new run, is
added to the new run's interval, as independent errors add. The rule was chosen among thirty by how many larger runs the
intervals hold on 28 public tables (checks/results/holdouts.md). Legend: P points.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.law import forms
from scalelab.laws.law.names import LAWS
from scalelab.laws.solve import optimum
from scalelab.laws.solve.optimum import FitError, Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import form, identifiable, profile
from scalelab.laws.trust.dependence import Dependence, estimate_dependence
from scalelab.laws.trust.form import OWN_DISTANCE, FormTest, Misfit
from scalelab.laws.trust.information import run_sizes
from scalelab.laws.trust.uncertainty import Bootstrap, Progress, bootstrap_fit

LEFT_OUT = (0.15, 0.25, 0.35, 0.45, 0.55)  # shares of the rows, the largest, that the law forecast
FEWEST_ROWS = 10
WIDER: dict[Any, tuple[Any, str]] = {  # a law as a special case of a wider one, and the parameter that tells them apart
    forms.chinchilla: (forms.chinchilla_gamma, "gamma"),
    forms.saturating: (forms.broken_power, "shift"),
}
NESTED_LEVEL = 0.99


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
    level: float,
    progress: Progress | None = None,
) -> tuple[Bootstrap | None, FormTest | None]:
    """Resample a fit (not if `count` is 0) and test its form; where that fails, predictions carry the misfit."""
    boot = bootstrap_fit(problem, best, count, seed, dependence, progress) if count else None
    tested = form.judge_form(problem, best, dependence, seed)
    if boot is None or tested is None or not tested.fails:
        return boot, tested
    return dataclasses.replace(boot, misfit=measure_misfit(problem, level)), tested


def measure_misfit(problem: Problem, level: float) -> Misfit | None:
    """Measure the misfit by forecasts of the larger rows from the smaller ones; None where no forecast is possible.

    Of each forecast's errors, over their distances, the `level` quantile counts.
    """
    sizes = run_sizes(problem.columns)
    order = np.argsort(sizes, kind="stable")
    needed = max(FEWEST_ROWS, 2 * len(problem.law.params))
    rates = []
    for share in LEFT_OUT:
        left = int(share * problem.points)
        if left >= 2 and problem.points - left >= needed:
            rates += _forecast_rate(problem, order[: problem.points - left], order[problem.points - left :], level)
    return Misfit(max(rates), float(sizes.max()), len(rates)) if rates else None


def _forecast_rate(problem: Problem, fitted: np.ndarray, left: np.ndarray, level: float) -> list[float]:
    """[the level quantile of |error| / distance] of rows `left`, forecast from `fitted`; [] if these fix no law."""
    weights = np.zeros(problem.points)
    weights[fitted] = 1.0
    try:
        identifiable.check_identifiable(problem.law, problem.columns, problem.target, weights, problem.objective.log)
        params = optimum.minimise_objective(problem, weights).params
    except (BadInput, FitError):
        return []
    sizes = run_sizes(problem.columns)
    distance = np.maximum(np.log(sizes[left] / sizes[fitted].max()), 0.0) + OWN_DISTANCE
    return [float(np.quantile(np.abs(problem.residuals(params)[left]) / distance, level))]


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
