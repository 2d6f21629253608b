"""Power before compute: the smallest effect that rungs and seeds would show, and the pair of runs that settles it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from scalelab.laws.use.multiplier.result import Multiplier

BEYOND = 3.0
MOST_SEEDS = 8  # further pairs at one rung that are considered


def target_error(flops: np.ndarray, seeds: np.ndarray, noise: float, law: Mapping[str, float], target: float) -> float:
    """The standard error of log m at the target, for pairs whose log losses differ by this noise (s.d. of a pair).

    `flops` and `seeds` [R]; `law`: E, A, alpha and unit of the baseline. b is free: three rungs or more.
    """
    gap = law["A"] * (flops / law["unit"]) ** -law["alpha"]
    slopes = law["alpha"] * gap / (law["E"] + gap)
    variances = noise**2 / seeds / slopes**2
    x = np.log(flops)
    w = 1 / variances
    middle = (w * x).sum() / w.sum()
    spread = (w * (x - middle) ** 2).sum()
    far = (math.log(target) - middle) ** 2 / spread if spread > 0 else 0.0
    return float((1 / w.sum() + far) ** 0.5)


def smallest_effect(
    flops: Sequence[float],
    seeds: int,
    noise: float,
    correlation: float,
    law: Mapping[str, float],
    target: float,
    power: float = 0.8,
    level: float = 0.9,
) -> float | None:
    """The least m at the target that comes out "adopt" with this power; None with one seed, which has no interval.

    `noise`: relative s.d. of a run's loss; `correlation` of the sides' losses of a seed.
    """
    if seeds < 2:
        return None
    rungs = np.array(flops, float)
    pair_noise = noise * (2 * (1 - correlation)) ** 0.5
    error = target_error(rungs, np.full(len(rungs), seeds), pair_noise, law, target)
    df = len(rungs) * (seeds - 1)
    bar = stats.t.ppf((1 + level) / 2, df)
    effects = np.linspace(0, 20, 4001)
    enough = effects[stats.nct.sf(bar, df, effects) >= power]
    return math.exp(float(enough[0]) * error) if len(enough) else None


def next_pair(
    result: Multiplier, candidates: Sequence[float] | None = None, level: float = 0.9
) -> dict[str, Any] | None:
    """The cheapest further pairs of runs that would settle an undecided question if m is what it now seems.

    `candidates`: FLOPs of rungs (default: those that are there, and one BEYOND the largest). Returns `C`, `seeds`
    (further ones of each side), `flops` of all these runs, `interval90` to be expected at the target, and `settles`:
    whether it leaves out 1. None where no noise is known.
    """
    target = result.target
    if not result.noise["df"] or target["m"] is None or result.noise["difference"] == 0:
        return None
    rungs = [rung for rung in result.rungs if rung.m["flops"] is not None]
    flops, seeds = np.array([r.C for r in rungs]), np.array([min(r.n_seeds) for r in rungs], float)
    effect = math.log(target["m"])
    options: list[dict[str, Any]] = []
    for C in candidates or [*flops.tolist(), float(flops[-1] * BEYOND)]:
        for more in range(1, MOST_SEEDS + 1):
            near = np.abs(np.log(flops / C)) < 0.02
            places, runs = (flops, seeds + more * near) if near.any() else (np.append(flops, C), np.append(seeds, more))
            error = target_error(places, runs, result.noise["difference"], result.law, target["C"])
            df = result.noise["df"] + (more if near.any() else more - 1)
            half = float(stats.t.ppf((1 + level) / 2, df)) * error
            ends = [math.exp(effect - half), math.exp(effect + half)]
            options.append(
                {"C": C, "seeds": more, "flops": 2 * more * C, "interval90": ends, "settles": abs(effect) > half}
            )
    settling = [each for each in options if each["settles"]]
    if settling:
        return min(settling, key=lambda each: each["flops"])
    return min(options, key=lambda each: math.log(each["interval90"][1] / each["interval90"][0]))
