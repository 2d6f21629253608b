"""The curve of a profile: one coordinate held at values on both sides of the fit, the others fitted again.

Legend: R held values, K parameters.
"""

from typing import NamedTuple

import numpy as np

from scalelab.laws.solve import newton
from scalelab.laws.solve.problem import Problem

FIRST_ITERATIONS = 60  # of every refit; those up to the crossing go on until they converge
STRAIGHT = 3.0  # half widths of the interval over which the other coordinates are started on a straight path
CROSSINGS = 20  # evaluations of each crossing at most
CLOSE = 1e-5  # a crossing is met at this share of the rise's root, or of the first bracket
SURE = 1e-6  # least size of an eigenvalue, relative to the largest, for a straight path


class Side(NamedTuple):
    """One side of a profile: held values [R], objectives [R], and where it crosses the threshold (None: nowhere)."""

    held: np.ndarray
    objective: np.ndarray
    crossing: float | None


class Held(NamedTuple):
    """The coordinate `place` of a problem, to be held; its fit x [K] with objective `least`, the threshold `end`.

    `path` [K]: how the coordinates follow the held one near the fit; `width`: where a parabola crosses `end`, inf where
    the objective is flat.
    """

    problem: Problem
    x: np.ndarray
    place: int
    least: float
    end: float
    path: np.ndarray
    width: float


def hold_coordinate(problem: Problem, x: np.ndarray, place: int, least: float, end: float) -> Held:
    """Prepare a profile from the exact Hessian at the fit x [K]."""
    gradient, _, (hessian,) = problem.derivatives(x[None], np.ones((1, problem.points)))
    free = newton.free_coordinates(x, gradient[0], problem.lower, problem.upper)
    free[place] = True
    scale = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(hessian)), 1e-300))[free]
    values, vectors = np.linalg.eigh(hessian[np.ix_(free, free)] * np.outer(scale, scale))
    path, width = np.eye(len(x))[place], np.inf
    if values[0] > SURE**2 * values[-1]:
        inverse = (vectors / values) @ vectors.T * np.outer(scale, scale)
        row = inverse[np.count_nonzero(free[:place])]
        variance = row[np.count_nonzero(free[:place])]
        path[free] = row / variance
        width = float(np.sqrt(max(2 * (end - least) * variance, 0.0))) or np.inf
    return Held(problem, x, place, least, end, path, width)


def follow_sides(held: Held, falling: np.ndarray, rising: np.ndarray) -> list[Side]:
    """Follow both sides at once: through the held values, each from near the fit outwards, then to the crossings."""
    values, split = np.concatenate([falling, rising]), [len(falling)]
    direct = _refit(held, _start_on_path(held, values), values, FIRST_ITERATIONS)
    # Refit each from its neighbour on the side of the best value: the first descent may have ended in another basin.
    starts = [np.concatenate([held.x[None], part[:-1]]) for part in np.split(direct.x, split)]
    neighbours = _refit(held, np.concatenate(starts), values, FIRST_ITERATIONS)
    lower = neighbours.objective < direct.objective
    x = np.where(lower[:, None], neighbours.x, direct.x)
    objective = np.minimum(neighbours.objective, direct.objective)
    converged = np.where(lower, neighbours.converged, direct.converged)
    needed = [np.arange(len(part)) <= _first_beyond(held, part) for part in np.split(objective, split)]
    (unfinished,) = np.nonzero(np.concatenate(needed) & ~converged)  # beyond the crossing, fits are for the eye alone
    if len(unfinished):
        more = _refit(held, x[unfinished], values[unfinished], 1000)
        x[unfinished], objective[unfinished] = more.x, more.objective
    fits, objectives = np.split(x, split), np.split(objective, split)
    brackets = [_bracket(held, *side) for side in zip((falling, rising), objectives, fits, strict=True)]
    crossings = _cross(held, [bracket for bracket in brackets if bracket])
    ends = [crossings.pop(0) if bracket else None for bracket in brackets]
    return [Side(*side) for side in zip((falling, rising), objectives, ends, strict=True)]


def _start_on_path(held: Held, values: np.ndarray) -> np.ndarray:
    """Starts [R, K] on the straight path where it holds, at the fit farther away."""
    away = values - held.x[held.place]
    near = np.abs(away) <= STRAIGHT * held.width if np.isfinite(held.width) else np.zeros(len(values), bool)
    return held.x + np.where(near, away, 0.0)[:, None] * held.path


def _first_beyond(held: Held, objective: np.ndarray) -> int:
    """Index of the first objective above the threshold; their number if none is."""
    beyond = objective > held.end
    return int(beyond.argmax()) if beyond.any() else len(objective)


class _Bracket(NamedTuple):
    """A crossing lies between `inner` and `outer`; `low`, `high`: their heights; `x` [K]: the fit at `inner`."""

    inner: float
    outer: float
    low: float
    high: float
    x: np.ndarray


def _bracket(held: Held, values: np.ndarray, objective: np.ndarray, fits: np.ndarray) -> _Bracket | None:
    first = _first_beyond(held, objective)
    if first == len(values):
        return None
    high = _height(held, objective[first])
    if first == 0:
        return _Bracket(held.x[held.place], values[0], _height(held, held.least), high, held.x)
    return _Bracket(values[first - 1], values[first], _height(held, objective[first - 1]), high, fits[first - 1])


def _height(held: Held, objective: float) -> float:
    """The root of the rise, in units of the threshold's, less 1: nearly straight in the held value."""
    allowed = held.end - held.least
    if not np.isfinite(objective):
        return 1e3
    return (
        float(np.sqrt(max(objective - held.least, 0.0) / allowed) - 1.0) if allowed > 0 else float(objective > held.end)
    )


def _cross(held: Held, brackets: list[_Bracket]) -> list[float]:
    """Where each profile crosses its threshold: regula falsi with the Illinois rule (Dowell & Jarratt 1971)."""
    first = [abs(bracket.outer - bracket.inner) for bracket in brackets]
    ends: list[float | None] = [None] * len(brackets)
    for step in range(CROSSINGS):
        active = [i for i, end in enumerate(ends) if end is None]
        if not active:
            break
        middles = np.array([_middle(brackets[i], halve=step % 4 == 3) for i in active])
        fits = _refit(held, np.stack([brackets[i].x for i in active]), middles, 1000)
        for i, middle, objective, x in zip(active, middles, fits.objective, fits.x, strict=True):
            height, old = _height(held, objective), brackets[i]
            if objective > held.end:
                brackets[i] = _Bracket(old.inner, middle, old.low / 2, height, old.x)
            else:
                brackets[i] = _Bracket(middle, old.outer, height, old.high / 2, x)
            width = abs(brackets[i].outer - brackets[i].inner)
            if abs(height) < CLOSE or width < CLOSE * first[i]:
                ends[i] = float(middle)
    return [0.5 * (b.inner + b.outer) if end is None else end for b, end in zip(brackets, ends, strict=True)]


def _middle(bracket: _Bracket, halve: bool) -> float:
    """Where a straight line between the bracket's ends crosses zero; every fourth time halfway, as curves may jump."""
    share = 0.5 if halve or bracket.high <= bracket.low else -bracket.low / (bracket.high - bracket.low)
    return bracket.inner + float(np.clip(share, 0.02, 0.98)) * (bracket.outer - bracket.inner)


def _refit(held: Held, starts: np.ndarray, values: np.ndarray, iterations: int) -> newton.Solutions:
    """Fit with the coordinate held at each of `values` [R], from starts [R, K]."""
    problem = held.problem
    lower, upper = (np.tile(bound, (len(values), 1)) for bound in (problem.lower, problem.upper))
    lower[:, held.place] = upper[:, held.place] = values
    weights = np.ones((len(values), problem.points))
    return newton.descend(problem, starts, weights, lower, upper, iterations=iterations)
