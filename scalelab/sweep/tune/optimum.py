"""Where the best values lie, and how surely: a quadratic surface through the trials of a search."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from scalelab.laws.use.settings.optima import GroupOptimum, find_optima
from scalelab.laws.use.settings.surface import Rows
from scalelab.sweep.tune.space import Point, Space

NEAR = 0.6  # share of the trials, those nearest to the lowest point, that a second surface goes through


@dataclasses.dataclass(frozen=True)
class Tried:
    """A point that was tried in a round, and its loss; inf if it was infeasible."""

    round: int
    point: Point
    loss: float

    @property
    def feasible(self) -> bool:
        """Whether the trial ended, and had learned something."""
        return math.isfinite(self.loss)


@dataclasses.dataclass(frozen=True)
class Located:
    """The best values by the surface: `point` (kept within what was tried), the `intervals` of each, and `status`.

    `status`: used; edge (the lowest point lies at or beyond an end of what was tried); flat or few (none can be told:
    then the point is the best trial's, and an interval is the whole range tried). `why` says it in words. `beyond`: -1
    or 1 for each value whose lowest point lies at or beyond the low or high end of what was tried, else 0.
    """

    point: Point
    intervals: tuple[tuple[float, float], ...]
    status: str
    why: str
    beyond: tuple[int, ...]


def locate_best(space: Space, tried: Sequence[Tried], level: float = 0.9) -> Located:
    """Find the lowest point of the losses of all feasible trials; there must be one. `space`: any round's.

    No surface is quite quadratic: how far the lowest point moves if only the nearest trials count is part of its error.
    """
    ended = [each for each in tried if each.feasible]
    best = min(ended, key=lambda each: (each.loss, each.point))
    x = np.array([[d.to_axis(value) for d, value in zip(space, each.point, strict=True)] for each in ended])
    y = np.log([each.loss for each in ended])
    low, high = x.min(axis=0), x.max(axis=0)
    found = _lowest(space, x, y)
    errors = found.standard_errors
    if found.at is None or errors is None or not found.df or found.status not in ("used", "edge"):
        whole = tuple((d.to_value(float(a)), d.to_value(float(b))) for d, a, b in zip(space, low, high, strict=True))
        return Located(best.point, whole, found.status, found.why or "no noise can be told", (0,) * len(space))
    at, errors = found.at, np.hypot(errors, _moved_by_far_trials(space, x, y, found))
    half = special.stdtrit(found.df, (1 + level) / 2) * errors
    ends = np.clip([at - half, at + half], low, high)
    intervals = tuple((d.to_value(float(a)), d.to_value(float(b))) for d, a, b in zip(space, *ends, strict=True))
    point = tuple(d.to_value(float(each)) for d, each in zip(space, np.clip(at, low, high), strict=True))
    return Located(point, intervals, found.status, found.why, tuple(found.ends.tolist()))


def _lowest(space: Space, x: np.ndarray, y: np.ndarray) -> GroupOptimum:
    optima, _ = find_optima([Rows(x, y, np.zeros(len(x), int))], [dimension.key for dimension in space])
    return optima[0]


def _moved_by_far_trials(space: Space, x: np.ndarray, y: np.ndarray, found: GroupOptimum) -> np.ndarray:
    """How far [K] the lowest point moves when only the trials near to it count; 0 where they are too few to tell."""
    assert found.at is not None and found.surface is not None
    offset = x - found.at
    away = np.einsum("pi,ij,pj->p", offset, found.surface.hessian, offset)
    near = away <= np.quantile(away, NEAR)
    other = _lowest(space, x[near], y[near])
    if other.at is None or other.status not in ("used", "edge"):
        return np.zeros(len(space))
    return np.abs(np.clip(other.at, x.min(axis=0), x.max(axis=0)) - found.at)
