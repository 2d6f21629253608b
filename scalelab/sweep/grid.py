"""What a config file's `sweep(h)` is written with. A grid is a list of trials; a trial is `{"optim.peak_lr": 3e-3, …}`.

def sweep(h):
    return h.product([h.sweep("optim.peak_lr", [1e-3, 3e-3]), h.sweep("train.seed", range(3))])
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from scipy.stats import qmc

from scalelab.errors import BadInput, nearest_hint

Trial = dict[str, Any]
Grid = list[Trial]


def sweep(key: str, values: Iterable[Any]) -> Grid:
    """One trial a value."""
    return [{key: value} for value in values]


def product(grids: Iterable[Grid]) -> Grid:
    """Every combination; the last grid varies fastest."""
    return [_merge(parts) for parts in itertools.product(*grids)]


def zip(grids: Iterable[Grid]) -> Grid:
    """The i-th of each together. BadInput where they differ in length."""
    grids = [list(grid) for grid in grids]
    lengths = [len(grid) for grid in grids]
    if len(set(lengths)) > 1:
        raise BadInput(f"h.zip needs grids of one length, got {', '.join(map(str, lengths))}")
    return [_merge(parts) for parts in itertools.zip_longest(*grids)]


def chain(grids: Iterable[Grid]) -> Grid:
    """One after the other."""
    return [dict(trial) for grid in grids for trial in grid]


def sample(ranges: Mapping[str, tuple], count: int, method: str = "halton", seed: int = 0) -> Grid:
    """`count` points of a low-discrepancy sequence (scrambled Halton or Sobol, scipy) over `{key: (low, high[, "log"])}`."""
    samplers = {"halton": qmc.Halton, "sobol": qmc.Sobol}
    if method not in samplers:
        raise BadInput(f"h.sample method {method!r} is not a choice{nearest_hint(method, samplers)}")
    if method == "sobol" and count & (count - 1):
        raise BadInput(
            f"h.sample: Sobol points are balanced in powers of two only; nearest to {count}: {1 << count.bit_length() - 1}"
        )
    points = samplers[method](len(ranges), rng=seed).random(count)
    keys = list(ranges)
    return [{key: _scale(key, u, *ranges[key]) for key, u in itertools.zip_longest(keys, point)} for point in points]


def _scale(key: str, u: float, low: float, high: float, scale: str = "linear") -> float:
    if not low < high or scale not in ("linear", "log") or (scale == "log" and low <= 0):
        raise BadInput(
            f"h.sample: {key} needs (low, high) or (low, high, 'log') with low < high, got {(low, high, scale)}"
        )
    if scale == "log":
        return math.exp(math.log(low) + u * math.log(high / low))
    return low + float(u) * (high - low)


def _merge(parts: Iterable[Trial]) -> Trial:
    merged: Trial = {}
    for part in parts:
        for key in part:
            if key in merged:
                raise BadInput(f"the sweep sets {key!r} twice in one trial")
        merged |= part
    return merged
