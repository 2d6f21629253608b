"""Profile likelihood: which parameters the data determine, before any digit of them is believed.

A parameter is held at a value, all others are fitted again, and the objective's rise is judged by the likelihood for
which the objective stands: residuals of density exp(-penalty / s), s free. Legend: R held values, K parameters.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import f as f_distribution

from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import newton
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import information
from scalelab.laws.trust.dependence import Dependence

STEPS = 14  # held values per side, from one per mille to the whole of the parameter's range
MOST_INFLATION = 10.0
SMALL = 1e-3  # a term of this share of the target counts as small
REFINE = 12  # bisections of each crossing
WIDE = {"linear": 1e3, "log": 1e2, "direct": 1e1}  # intervals with high / low beyond this determine no digit
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
    allowed = count * np.log1p(inflated * f_distribution.ppf(level, 1, count) / count)
    top = log_likelihood(value, count, objective)

    def excess(log_ratio: float) -> float:
        return 2 * (top - log_likelihood(value * np.exp(log_ratio), count, objective)) - allowed

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(value * np.exp(brentq(excess, 0.0, high)))


def profile_params(
    fitted: Problem, best: Optimum, level: float = 0.9, k: float = FLOPS_PER_PARAM_TOKEN,
    dependence: Dependence | None = None,
) -> dict[str, ParamProfile]:  # fmt: skip
    """Profile every parameter of the law, with its interval at `level`; C = k N D.

    Where rows depend, each parameter's curve ends its interval at a height of its own (`Dependence.objective_rise`).
    """
    least = float(fitted.value(best.x[None], np.ones((1, fitted.points)))[0])  # `best.value` may be a log likelihood
    spare = fitted.points > len(best.params) and least > 0
    factor = likelihood_inflation(fitted.residuals(best.params), len(best.params), fitted.objective) if spare else 1.0
    end = interval_threshold(least, fitted.points, len(best.params), fitted.objective, level, factor)
    runs = information.most_informative_runs(fitted, best, k)
    ends = dict.fromkeys(best.params, end)
    if dependence:
        ends = {name: least + dependence.objective_rise(name, fitted.objective, level) for name in best.params}
    return {
        name: dataclasses.replace(_profile_param(fitted, best, name, least, ends[name]), tighten=runs.get(name))
        for name in best.params
    }


def _profile_param(fitted: Problem, best: Optimum, name: str, least: float, end: float) -> ParamProfile:
    law = fitted.law
    direct = (name,) if law.params[name].how == "linear" else ()
    problem = pose_problem(law, fitted.columns, fitted.target, fitted.objective, direct) if direct else fitted
    place = list(law.params).index(name)
    x = problem.from_params(best.params)
    least_size = SMALL * fitted.target.mean() / fitted.from_params({**best.params, name: 1.0})[place] if direct else 0.0
    sides = [_profile_side(problem, x, place, end, up, least_size) for up in (False, True)]
    (low, low_at, low_value), (high, high_at, high_value) = sides
    values = np.concatenate([low_at[::-1], x[place : place + 1], high_at])
    objective = np.concatenate([low_value[::-1], [least], high_value])
    to_param = np.exp if law.params[name].how == "log" else np.asarray
    interval = (None if low is None else float(to_param(low)), None if high is None else float(to_param(high)))
    return ParamProfile(
        _verdict(law.params[name].how, best.params[name], interval), interval, to_param(values), objective, end
    )


def _verdict(how: str, value: float, interval: tuple[float | None, float | None]) -> str:
    low, high = interval
    if low is not None and high is not None:
        narrow = low <= 0 or high / low <= WIDE[how]
        return "identified" if narrow else "not identified"
    end = high if low is None else low
    close = end is not None and (value == 0 or max(end / value, value / end if end else np.inf) <= NEAR)
    return "one-sided" if close else "not identified"


def _profile_side(
    problem: Problem, x: np.ndarray, place: int, end: float, up: bool, least_size: float
) -> tuple[float | None, np.ndarray, np.ndarray]:
    """One side of a profile: (where it crosses `end`, None if never; held values [R]; objectives [R])."""
    how = list(problem.law.params.values())[place].how
    held = _held_values(x[place], problem.lower[place], problem.upper[place], how, up, least_size)
    refits = _refit_held(problem, np.broadcast_to(x, (len(held), len(x))), place, held)
    # Refit each from its neighbour on the side of the best value: the first descent may have ended in another basin.
    starts = np.concatenate([x[None], refits.x[:-1]])
    neighbour_refits = _refit_held(problem, starts, place, held)
    value = np.minimum(refits.objective, neighbour_refits.objective)
    beyond = np.flatnonzero(value > end)
    if not len(beyond):
        return None, held, value
    first = beyond[0]
    inner, outer = (x[place] if first == 0 else held[first - 1]), held[first]
    start = x
    if first > 0:
        lower = refits.objective[first - 1] <= neighbour_refits.objective[first - 1]
        start = (refits if lower else neighbour_refits).x[first - 1]
    return _bisect_crossing(problem, start, place, end, inner, outer), held, value


def _bisect_crossing(problem: Problem, start: np.ndarray, place: int, end: float, inner: float, outer: float) -> float:
    """Where the profile crosses `end`, between held values `inner` and `outer`; `start` [K] is the fit at `inner`."""
    for _ in range(REFINE):
        middle = 0.5 * (inner + outer)
        solution = _refit_held(problem, start[None], place, np.array([middle]))
        if solution.objective[0] > end:
            outer = middle
        else:
            inner, start = middle, solution.x[0]
    return 0.5 * (inner + outer)


def _held_values(at: float, lower: float, upper: float, how: str, up: bool, least_size: float) -> np.ndarray:
    """Values to hold, from near `at` to the bound: by factors for positive coordinates, by differences for the others.

    `least_size`: the step's unit for a coefficient that is zero or nearly so.
    """
    reach = np.geomspace(1e-3, 1.0, STEPS)
    if how == "linear":
        size = max(abs(at), least_size)
        return at + size * np.geomspace(1e-3, 1e6, STEPS) if up else np.append(at * (1 - reach[:-1]), 0.0)
    bound = upper if up else lower
    return at + (bound - at) * reach


def _refit_held(problem: Problem, starts: np.ndarray, place: int, held: np.ndarray) -> newton.Solutions:
    """Fit with coordinate `place` held at each value of `held` [R], from starts [R, K]."""
    lower, upper = (np.tile(bound, (len(held), 1)) for bound in (problem.lower, problem.upper))
    lower[:, place] = upper[:, place] = held
    return newton.descend(problem, starts, np.ones((len(held), problem.points)), lower, upper)
