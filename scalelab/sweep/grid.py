"""The functions for a config file's `sweep(h)`. A grid is a list of trials; a trial is `{"optim.peak_lr": 3e-3, …}`.

def sweep(h):
    return h.product([h.sweep("optim.peak_lr", [1e-3, 3e-3]), h.sweep("train.seed", range(3))])
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from scalelab.errors import BadInput, nearest_hint

Trial = dict[str, Any]
Grid = list[Trial]


def sweep(key: str, values: Iterable[Any]) -> Grid:
    """Make one trial for each value of `key`."""
    return [{key: value} for value in values]


def product(grids: Iterable[Grid]) -> Grid:
    """Combine every trial of each grid with every trial of the others; the last grid varies fastest."""
    return [_merge(parts) for parts in itertools.product(*grids)]


def zip(grids: Iterable[Grid]) -> Grid:
    """Combine the i-th trials of all grids. BadInput if the grids differ in length."""
    grids = [list(grid) for grid in grids]
    lengths = [len(grid) for grid in grids]
    if len(set(lengths)) > 1:
        raise BadInput(f"h.zip needs grids of one length, got {', '.join(map(str, lengths))}")
    return [_merge(parts) for parts in itertools.zip_longest(*grids)]


def chain(grids: Iterable[Grid]) -> Grid:
    """Concatenate grids."""
    return [dict(trial) for grid in grids for trial in grid]


def sample(ranges: Mapping[str, tuple], count: int, method: str = "halton", seed: int = 0) -> Grid:
    """Draw `count` points of a low-discrepancy sequence over `{key: (low, high[, "log"])}`.

    `method`: scrambled "halton" or "sobol" (scipy). BadInput if the method is unknown, a range is empty, or `count` is
    not a power of two for Sobol.
    """
    from scipy.stats import qmc  # here: it takes 0.8 s

    samplers = {"halton": qmc.Halton, "sobol": qmc.Sobol}
    if method not in samplers:
        raise BadInput(f"h.sample method {method!r} is not a choice{nearest_hint(method, samplers)}")
    if method == "sobol" and count & (count - 1):
        raise BadInput(
            f"h.sample: Sobol points are balanced in powers of two only; "
            f"nearest to {count}: {1 << count.bit_length() - 1}"
        )
    points = samplers[method](len(ranges), rng=seed).random(count)
    keys = list(ranges)
    return [{key: _scale(key, u, *ranges[key]) for key, u in itertools.zip_longest(keys, point)} for point in points]


def _scale(key: str, u: float, low: float, high: float, scale: str = "linear") -> float:
    if not low < high or scale not in ("linear", "log") or (scale == "log" and low <= 0):
        wanted = "(low, high) or (low, high, 'log') with low < high"
        raise BadInput(f"h.sample: {key} needs {wanted}, got {(low, high, scale)}")
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
