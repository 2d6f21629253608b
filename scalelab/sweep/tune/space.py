"""What is searched: a config's tune(), checked, and the space of nuisances, drawn from, narrowed and widened.

def tune():
    return {
        "scientific": {"optim.name": ["adamw", "lion"]},       # compared; each value gets a search of its own
        "nuisance": {"optim.peak_lr": (1e-4, 1e-1, "log")},    # searched for each
        "fixed": ["train.global_batch"],                       # held as they are: named, so that the page says so
    }
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.errors import BadInput, nearest_hint

SCALES = ("log", "linear", "one_minus")
OCTAVES_OF_LINEAR = 4.0  # a linear range counts as so many octaves, where ranges are compared
GROUPS = ("scientific", "nuisance", "fixed")
EDGE = 0.1  # a best point within this share of the range is at its edge
WIDER, NARROWER = 0.5, 0.6  # shares of a range: added at an edge, kept where the best lies inside


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A searched key: its range and scale.

    `scale`: log; linear; or one_minus, which is log in 1 - value (betas). `whole`: an integer key. `limits`: the least
    and largest value that the key is declared with, which no round leaves.
    """

    key: str
    low: float
    high: float
    scale: str
    whole: bool = False
    limits: tuple[float, float] = (-math.inf, math.inf)

    def to_axis(self, value: float) -> float:
        """The place of a value on an axis on which the search is even: a logarithm, or a value of a linear range."""
        if self.scale == "log":
            return math.log(value)
        if self.scale == "one_minus":
            return -math.log1p(-value)
        return value / self._unit

    def to_value(self, place: float) -> float:
        """The value at a place of the axis."""
        if self.scale == "log":
            value = math.exp(place)
        elif self.scale == "one_minus":
            value = -math.expm1(-place)
        else:
            value = place * self._unit
        return round(value) if self.whole else value

    @property
    def _unit(self) -> float:
        return max(abs(self.low), abs(self.high)) / (OCTAVES_OF_LINEAR * math.log(2))

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends on the axis."""
        return self.to_axis(self.low), self.to_axis(self.high)

    def with_ends(self, low: float, high: float) -> "Dimension":
        """Another range within `limits`, its ends given as places on the axis; a linear range from zero up stays so."""
        least, most = self.limits
        if self.scale == "linear" and self.low >= 0:
            least = max(least, 0.0)
        first, last = (min(max(self.to_value(end), least), most) for end in (low, high))
        return Moved(self.key, first, last, self.scale, self.whole, self.limits, self)


@dataclasses.dataclass(frozen=True)
class Moved(Dimension):
    """A dimension of a later round. Its axis is that of the `first` one."""

    first: Dimension | None = None

    @property
    def _unit(self) -> float:
        return self.first._unit if self.first else super()._unit


Space = tuple[Dimension, ...]
Point = tuple[float, ...]  # a value for each dimension


@dataclasses.dataclass(frozen=True, eq=False)
class Spec:
    """A checked tune(): `arms` {name: {key: value}} of the scientific values, the `space`, and the `fixed` keys."""

    arms: dict[str, dict[str, Any]]
    space: Space
    fixed: tuple[str, ...]


def read_spec(content: Any, base: ConfigDict, where: str) -> Spec:
    """Check what a config's tune() returned; `base` is resolved. BadInput names what is wrong."""
    if not isinstance(content, Mapping) or not content.get("nuisance"):
        raise BadInput(
            f'{where}: tune() must return a dict with "nuisance": {{key: (low, high, "log")}}, got {repr(content)[:60]}'
        )
    for group in content:
        if group not in GROUPS:
            raise BadInput(f"{where}: tune() has no group {group!r}{nearest_hint(str(group), GROUPS)}")
    scientific = dict(content.get("scientific") or {})
    fixed = tuple(content.get("fixed") or ())
    known = config_lib.leaves(base)
    named = [*scientific, *content["nuisance"], *fixed]
    for key in named:
        if key not in known:
            raise BadInput(f"{where}: tune() names no config key {key!r}{nearest_hint(str(key), known)}")
        if named.count(key) > 1:
            raise BadInput(f"{where}: tune() names {key} twice: it is either scientific, a nuisance, or fixed")
    for key, values in scientific.items():
        if not isinstance(values, list | tuple) or len(values) < 2:
            raise BadInput(f"{where}: the scientific key {key} needs two values or more to compare, got {values!r}")
    space = tuple(_read_dimension(key, each, known[key], where) for key, each in content["nuisance"].items())
    return Spec(_name_arms(scientific), space, fixed)


def _name_arms(scientific: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    arms = [dict(zip(scientific, values, strict=True)) for values in itertools.product(*scientific.values())]
    return {"-".join(f"{key.split('.')[-1]}={value}" for key, value in arm.items()) or "all": arm for arm in arms}


def _read_dimension(key: str, given: Any, value: Any, where: str) -> Dimension:
    wanted = f'{where}: {key} needs (low, high, "log"), "linear" or "one_minus" for the scale'
    numbers = isinstance(given, list | tuple) and 2 <= len(given) <= 3
    if not numbers or not all(isinstance(end, int | float) and not isinstance(end, bool) for end in given[:2]):
        raise BadInput(f"{wanted}, got {given!r}")
    low, high, scale = (*given, "linear")[:3]
    if scale not in SCALES:
        raise BadInput(f"{wanted}, got {scale!r}{nearest_hint(str(scale), SCALES)}")
    if isinstance(value, str | bool):
        raise BadInput(f"{where}: {key}={value!r} is not a number; what is compared is scientific, with its values")
    if not low < high:
        raise BadInput(f"{where}: the range of {key} is empty: {low:g} to {high:g}")
    if scale == "log" and low <= 0:
        raise BadInput(f"{where}: {key} has a log scale from {low:g}: it needs a low end above 0, or scale linear")
    if scale == "one_minus" and not (low >= 0 and high < 1):
        raise BadInput(f"{where}: {key} has scale one_minus: its range lies in 0 to below 1, got {low:g} to {high:g}")
    whole = isinstance(value, int) or (value is None and isinstance(low, int) and isinstance(high, int))
    declared = config_lib.key_records()[key].range if key in config_lib.key_records() else None
    for end in (low, high):
        if declared and end not in declared:
            raise BadInput(f"{where}: {key} goes from {low:g} to {high:g}, but must lie in {declared}")
    return Dimension(key, low, high, scale, whole, _limits(declared))


def _limits(declared: Any) -> tuple[float, float]:
    """The least and largest value of a declared range; a bound that is not part of it is left by a hair."""
    if declared is None:
        return -math.inf, math.inf
    least = float(np.nextafter(declared.low, math.inf)) if declared.above_low else declared.low
    return least, declared.high


def draw_points(space: Space, count: int, seed: int) -> list[Point]:
    """`count` points of a scrambled Halton sequence, the same for the same seed."""
    from scipy.stats import qmc  # here: it takes 0.8 s

    low, high = np.array([each.ends for each in space]).T
    places = low + qmc.Halton(len(space), rng=seed).random(count) * (high - low)
    return [tuple(d.to_value(float(x)) for d, x in zip(space, place, strict=True)) for place in places]


def next_space(
    space: Space, best: Point, tried: Sequence[Point] = (), beyond: Sequence[int] = ()
) -> tuple[Space, list[str]]:
    """The space of the next round, and a line for each edge that it moves.

    Where the best point is within a tenth of an edge, that edge moves outwards by half the range; else the range
    shrinks to 0.6 of itself around the best point. `tried`: points of earlier rounds; an edge beyond which some lie is
    no edge of what is known. `beyond`: -1 or 1 for each key for which a surface through all trials has its lowest point
    at or beyond an end of what was tried: that edge moves too.
    """
    moved, notes = [], []
    for i, dimension in enumerate(space):
        low, high = dimension.ends
        place, span = dimension.to_axis(best[i]), high - low
        known = [low, high, *(dimension.to_axis(point[i]) for point in (*tried, best))]
        least, most = min(known), max(known)
        end = beyond[i] if beyond else 0
        if end < 0 or (place < low + EDGE * span and place <= least + EDGE * span):
            wider = dimension.with_ends(least - WIDER * span, high)
            notes.append(_edge_note(dimension, "low", dimension.low, wider.low))
            moved.append(wider)
        elif end > 0 or (place > high - EDGE * span and place >= most - EDGE * span):
            wider = dimension.with_ends(low, most + WIDER * span)
            notes.append(_edge_note(dimension, "high", dimension.high, wider.high))
            moved.append(wider)
        else:
            half = NARROWER * span / 2
            middle = min(max(place, least + half), most - half)
            moved.append(dimension.with_ends(middle - half, middle + half))
    return tuple(moved), notes


def _edge_note(dimension: Dimension, side: str, before: float, after: float) -> str:
    moves = f"moves to {after:.3g}" if after != before else f"stays at {after:.3g}, the key's own limit"
    return f"{dimension.key}: the best is at the {side} edge, which {moves}"


def lower_space(space: Space) -> tuple[Space, list[str]]:
    """The space after a round in which nothing ended: learning rates are taken a whole range lower."""
    rates = [each for each in space if each.key.endswith("_lr")]
    if not rates:
        raise BadInput(
            "every trial of a round diverged, and no learning rate is among the nuisances: set a lower optim.peak_lr"
        )
    moved = []
    for each in space:
        low, high = each.ends
        moved.append(each.with_ends(2 * low - high, low) if each in rates else each)
    return tuple(moved), [f"every trial diverged: {each.key} is taken below {each.low:.3g}" for each in rates]
