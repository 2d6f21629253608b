"""Profile likelihood: which parameters the data determine, and the interval of each.

A parameter is held at a value, all others are fitted again, and the objective's rise is judged by the likelihood for
which the objective stands: residuals of density exp(-penalty / s), s free. Legend: R held values, K parameters.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special
from scipy.optimize import brentq

from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import near_fit
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import information, profile_curve
from scalelab.laws.trust.dependence import Dependence
from scalelab.laws.trust.discrepancy import Discrepancy

STEPS = 14  # held values per side, from one per mille to the whole of the parameter's range
MOST_INFLATION = 10.0
SMALL = 1e-3  # a term of this share of the target counts as small
FIRST = 0.3  # of the interval's half width: the first held value
NEAR_STEPS = np.array([0.3, 0.7, 1.0, 1.4, 2.0, 3.0])  # half widths at which the coordinate is held, with many rows
WIDE = {"linear": 1e1, "log": 1e2, "direct": 1e1}  # intervals with high / low beyond this determine no digit
NEAR = 3.0  # an end within this factor of the best value still counts if the other side is open


@dataclasses.dataclass(frozen=True, eq=False)
class ParamProfile:
    """One parameter's `verdict` (identified, one-sided or not identified) and interval (None: open on that side).

    `values`, `objective` [R]: the curve itself; `threshold`: the objective at which the interval ends; `tighten`: the
    run {N, D, C} that would narrow the interval most, for laws of N and D (see `information.most_informative_runs`).
    """

    verdict: str
    interval: tuple[float | None, float | None]
    values: np.ndarray
    objective: np.ndarray
    threshold: float
    tighten: dict[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, with the curve for a plot."""
        curve = {"values": self.values.tolist(), "objective": self.objective.tolist()}
        return {
            "verdict": self.verdict, "interval": list(self.interval), "threshold": self.threshold, "curve": curve,
            "tighten": self.tighten,
        }  # fmt: skip


def likeliest_scale(value: float, count: float, objective: Objective) -> float:
    """The scale s at which -value / s - count log Z(s) is highest."""

    def slope(log_s: float) -> float:  # derivative of the likelihood by log s; falls from + to -
        step = 1e-5
        z = objective.log_normaliser(np.exp(log_s + step)) - objective.log_normaliser(np.exp(log_s - step))
        return value / np.exp(log_s) - count * z / (2 * step)

    value = max(value, 1e-300)  # a fit without error gets the smallest possible scale
    centre = np.log(2 * value / count)
    return float(np.exp(brentq(slope, centre - 10, centre + 10)))


def log_likelihood(value: float, count: float, objective: Objective) -> float:
    """The log likelihood of an objective's value, its scale profiled out."""
    s = likeliest_scale(value, count, objective)
    return -value / s - count * objective.log_normaliser(s)


def likelihood_inflation(residuals: np.ndarray, params: int, objective: Objective) -> float:
    """Factor (1 or more) by which a fall of the likelihood is too great if the residuals don't follow its density.

    Twice the fall is this factor times chi-square: the ratio of the score's variance to its mean slope (White 1982),
    pi / 2 for Gaussian residuals under a small delta. The mean slope is a density near zero, so it is taken over a
    kernel's width (Silverman's rule), without the `params` points through which a fit of small delta runs.
    """
    count = len(residuals) - params
    size = 1.4826 * np.median(np.abs(residuals))
    width = max(objective.delta, 1.06 * size * count**-0.2)
    near = np.abs(residuals) <= width
    share = (np.sum(objective.side(residuals) * near) - params) / count * min(1.0, objective.delta / width)
    scale = likeliest_scale(float(objective.penalty(residuals).sum()), count, objective)
    variance = np.sum(objective.slope(residuals) ** 2) / count
    return float(np.clip(variance / (scale * max(share, 1e-12)), 1.0, MOST_INFLATION))


def interval_threshold(
    value: float, points: int, params: int, objective: Objective, level: float, inflated: float = 1.0
) -> float:
    """The objective's value at which the interval of one parameter ends.

    There twice the fall of the log likelihood is n log(1 + F / n), with n = P - K and F the `level` quantile of F(1, n)
    times `inflated`: for least squares exactly the t-interval of n degrees of freedom, for large P that of chi-square.
    """
    count = points - params
    if count < 1 or not value > 0:
        return value
    allowed = count * np.log1p(inflated * special.fdtri(1, count, level) / count)
    top = log_likelihood(value, count, objective)

    def excess(log_ratio: float) -> float:
        return 2 * (top - log_likelihood(value * np.exp(log_ratio), count, objective)) - allowed

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(value * np.exp(brentq(excess, 0.0, high)))


def profile_end(fitted: Problem, best: Optimum, level: float) -> float:
    """Find the objective's height at the ends of a profile's interval, where rows are independent."""
    least = least_value(fitted, best)
    spare = fitted.points > len(best.params) and least > 0
    factor = likelihood_inflation(fitted.residuals(best.params), len(best.params), fitted.objective) if spare else 1.0
    return interval_threshold(least, fitted.points, len(best.params), fitted.objective, level, factor)


def least_value(fitted: Problem, best: Optimum) -> float:
    """Evaluate the objective at the fit: `best.value` may be a log likelihood."""
    return float(fitted.value(best.x[None], np.ones((1, fitted.points)))[0])


def profile_params(
    fitted: Problem,
    best: Optimum,
    level: float = 0.9,
    k: float = FLOPS_PER_PARAM_TOKEN,
    dependence: Dependence | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    misfit: Discrepancy | None = None,
) -> dict[str, ParamProfile]:
    """Profile every parameter of the law, with its interval at `level`; C = k N D.

    Where rows depend, each parameter's curve ends its interval at a height of its own (`Dependence.objective_rise`).
    The law's own error raises that height by its share of the parameter's variance.
    """
    least, end = least_value(fitted, best), profile_end(fitted, best, level)
    runs = information.most_informative_runs(fitted, best, k)
    ends = dict.fromkeys(best.params, end)
    if dependence:
        ends = {name: least + dependence.objective_rise(name, fitted.objective, level) for name in best.params}
    if misfit:
        factors = misfit_factors(fitted, best, level, dependence, misfit)
        ends = {name: least + factors[name] * (height - least) for name, height in ends.items()}
    profiles = {}
    for count, name in enumerate(best.params, 1):
        profile = _profile_param(fitted, best, name, least, ends[name])
        profiles[name] = dataclasses.replace(profile, tighten=runs.get(name))
        if progress:
            progress("profiles", count, len(best.params))
    return profiles


def misfit_factors(
    fitted: Problem, best: Optimum, level: float, dependence: Dependence | None, misfit: Discrepancy
) -> dict[str, float]:
    """Factor (1 or more) of each parameter's variance if the law errs as `misfit` does, linearised at the fit.

    The variance by misfit is that of a normal distribution whose central `level` is as wide as the draws'.
    """
    slopes = information.law_sensitivity(fitted, best, fitted.columns, 1.0)
    spread = information.covariance_matrix(slopes.T @ slopes + np.diag((np.abs(slopes).max(axis=0) == 0).astype(float)))
    variance = float(np.sum(fitted.residuals(best.params) ** 2)) / max(fitted.points - len(best.x), 1)
    factors = {}
    for place, name in enumerate(fitted.law.params):
        gradient = information.param_gradient(fitted, best, name, place)
        sampling = variance * float(gradient @ spread @ gradient)
        sampling *= dependence.design_effect(name) if dependence else 1.0
        reach = float(np.quantile(np.abs(misfit.shift @ gradient), level)) / special.ndtri((1 + level) / 2)
        factors[name] = 1.0 + reach**2 / sampling if sampling > 0 else 1.0
    return factors


def _profile_param(fitted: Problem, best: Optimum, name: str, least: float, end: float) -> ParamProfile:
    law = fitted.law
    direct = (name,) if law.params[name].how == "linear" or name in fitted.mixed else ()
    problem = (
        pose_problem(law, fitted.columns, fitted.target, fitted.objective, direct, like=fitted) if direct else fitted
    )
    place = list(law.params).index(name)
    x = problem.from_params(best.params)
    linear = law.params[name].how == "linear"
    least_size = SMALL * fitted.target.mean() / fitted.from_params({**best.params, name: 1.0})[place] if linear else 0.0
    held = profile_curve.hold_coordinate(problem, x, place, least, end)
    sides: list[profile_curve.Side] = []
    if fitted.points > near_fit.MANY_ROWS and np.isfinite(
        held.width
    ):  # many rows: intervals are narrow, and refits are dear
        sides = profile_curve.follow_sides(held, _near_values(held, up=False), _near_values(held, up=True))
    if not sides or any(side.crossing is None for side in sides):
        how = law.params[name].how
        values = [_held_values(held, how, up, least_size) for up in (False, True)]
        sides = profile_curve.follow_sides(held, *values)
    (low_at, low_value, low), (high_at, high_value, high) = sides
    values_at = np.concatenate([low_at[::-1], x[place : place + 1], high_at])
    objective = np.concatenate([low_value[::-1], [least], high_value])
    to_param = np.exp if law.params[name].how == "log" else np.asarray
    interval = (None if low is None else float(to_param(low)), None if high is None else float(to_param(high)))
    return ParamProfile(
        judge_interval(law.params[name].how, best.params[name], interval), interval, to_param(values_at), objective, end
    )


def judge_interval(how: str, value: float, interval: tuple[float | None, float | None]) -> str:
    """The verdict on a parameter searched as `how` with this value and interval."""
    low, high = interval
    if low is not None and high is not None:
        near, far = sorted((abs(low), abs(high)))
        same_sign = low * high > 0  # an interval that reaches or holds zero leaves even the sign open
        return "identified" if same_sign and far / near <= WIDE[how] else "not identified"
    end = high if low is None else low
    close = end is not None and (value == 0 or max(end / value, value / end if end else np.inf) <= NEAR)
    return "one-sided" if close else "not identified"


def _held_values(held: profile_curve.Held, how: str, up: bool, least_size: float) -> np.ndarray:
    """Values to hold, from near the fit to the bound: by factors for positive coordinates, by differences for others.

    The first lies well inside the interval, if a parabola tells its width. `least_size`: the step's unit for a
    coefficient that is zero or nearly so.
    """
    at, inside = held.x[held.place], FIRST * held.width
    if how == "linear":
        size = max(abs(at), least_size)
        nearest = min(1e-3, inside / size) if size > 0 else 1e-3
        if up:
            return at + size * np.geomspace(nearest, 1e6, STEPS)
        return np.append(at * (1 - np.geomspace(nearest, 1.0, STEPS)[:-1]), 0.0)
    reach = (held.problem.upper if up else held.problem.lower)[held.place] - at
    nearest = min(1e-3, inside / abs(reach)) if reach else 1e-3
    return at + reach * np.geomspace(nearest, 1.0, STEPS)


def _near_values(held: profile_curve.Held, up: bool) -> np.ndarray:
    """Few values to hold about the parabola's crossing, within the bounds."""
    away = held.width * NEAR_STEPS * (1 if up else -1)
    return np.clip(held.x[held.place] + away, held.problem.lower[held.place], held.problem.upper[held.place])
