"""Power before compute: the smallest effect that rungs and seeds would show, and the pair of runs that settles it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from scalelab.laws.use.multiplier.cells import NEAR
from scalelab.laws.use.multiplier.result import WORTH, Multiplier
from scalelab.laws.use.multiplier.trend import predict_error
from scalelab.laws.use.multiplier.verdict import critical_value, errors_of_t, judge_deciding, two_sided_widening

BEYOND = 3.0
MOST_SEEDS = 8  # further pairs at one rung that are considered
USUAL_DISCREPANCY = (0.01, 0.01)  # bend and jumps beside the line, before any is measured
MOST_BY_LAW = 0.15  # of log m: E lies between 0 and the least loss, which a linear error does not know
BORROWED = 0.2  # of a degree of freedom at another rung: what intervals of 4 x 2 to 5 x 5 equal rungs show


def target_error(
    flops: np.ndarray,
    seeds: np.ndarray,
    noise: float | np.ndarray,
    law: Mapping[str, float],
    target: float,
    discrepancy: tuple[float, float] = USUAL_DISCREPANCY,
) -> float:
    """The standard error of log m at the target, for pairs whose log losses differ by this noise (s.d. of a pair).

    `flops` and `seeds` [R]; `noise`: one, or [R]; `law`: E, A, alpha and unit of the baseline. At a rung only that
    rung's seeds count; elsewhere the curve through all of them, with its `discrepancy`.
    """
    gap = law["A"] * (flops / law["unit"]) ** -law["alpha"]
    errors = np.broadcast_to(noise, flops.shape) / seeds**0.5 / (law["alpha"] * gap / (law["E"] + gap))
    near = np.abs(np.log(flops / target)) <= NEAR
    if near.any():
        return float(errors[near][0])
    return predict_error(np.log(flops), errors, math.log(target), discrepancy)


def smallest_effect(
    flops: Sequence[float],
    seeds: int,
    noise: float,
    correlation: float,
    law: Mapping[str, float],
    target: float,
    power: float = 0.8,
    level: float = 0.9,
    worth: float = WORTH,
    family: int = 1,
) -> float | None:
    """The least m at the target that comes out "adopt" with this power; None where none does, or with one seed.

    The error of the baseline's law grows with the effect: where few rungs hardly determine it, no effect is enough.
    `noise`: relative s.d. of a run's loss; `correlation` of the sides' losses of a seed; `worth` and `family`: what m
    has to be above, and how many variants are judged together.
    """
    if seeds < 2:
        return None
    rungs = np.array(flops, float)
    pair_noise = noise * (2 * (1 - correlation)) ** 0.5
    error = target_error(rungs, np.full(len(rungs), seeds), pair_noise, law, target)
    df = (seeds - 1) * (1 + BORROWED * (len(rungs) - 1))
    bar = critical_value(family, df, level) * two_sided_widening(errors_of_t(df), math.log(worth) / error, level)
    effects = math.log(worth) + error * np.linspace(0, 20, 4001)
    errors = np.hypot(error, law_errors(rungs, seeds, noise, law, target, effects))
    enough = effects[chance_beyond(bar, df, (effects - math.log(worth)) / errors) >= power]
    return math.exp(float(enough[0])) if len(enough) else None


def chance_beyond(bar: float, df: float, shift: np.ndarray) -> np.ndarray:
    """P(t > bar) of the noncentral t with this shift [n]; scipy's P(t < bar) is nan where it is as good as 0 or 1."""
    below = special.nctdtr(df, shift, bar)
    return 1 - np.where(np.isnan(below) & np.isfinite(shift), shift < bar, below)


def law_errors(
    flops: np.ndarray, seeds: int, noise: float, law: Mapping[str, float], target: float, effects: np.ndarray
) -> np.ndarray:
    """The standard errors [K] of log m at the target by the baseline's law alone, fitted to rungs `flops` [R].

    Linearised in E and alpha: m compares gaps above E, to the power 1 / alpha.
    """
    E, A, alpha = (law[name] for name in ("E", "A", "alpha"))
    x, gap = flops / law["unit"], A * (target / law["unit"]) ** -alpha
    losses = E + A * x**-alpha
    slopes = np.stack([np.ones(len(x)), x**-alpha, -A * x**-alpha * np.log(x)], axis=1) / losses[:, None]
    covariance = np.linalg.pinv(slopes.T @ slopes) * noise**2 / seeds
    along = np.stack([np.expm1(alpha * effects) / (alpha * gap), np.zeros(len(effects)), -effects / alpha], axis=1)
    errors: np.ndarray = np.minimum(np.sqrt(np.einsum("ki,ij,kj->k", along, covariance, along)), MOST_BY_LAW * effects)
    return errors


def next_pair(
    result: Multiplier, candidates: Sequence[float] | None = None, level: float = 0.9
) -> dict[str, Any] | None:
    """The cheapest further pairs of runs that would settle an undecided question if m is what it now seems.

    `candidates`: FLOPs of rungs (default: those that are there, one BEYOND the largest, and the target). Returns `C`,
    `seeds` (further ones of each side), `flops` of all these runs, `interval90` to be expected at the target, and
    `settles`: whether it would bring a verdict. None where no noise is known.
    """
    target, by_rung = result.target, result.noise["rungs"]
    if not result.noise["df"] or target["m"] is None or result.noise["difference"] == 0:
        return None
    rungs = [rung for rung in result.rungs if rung.m["flops"] is not None]
    flops, seeds = np.array([r.C for r in rungs]), np.array([min(r.n_seeds) for r in rungs], float)
    noise = np.array([each["sd"] for each in by_rung])
    bent = tuple(result.trend["discrepancy"] or USUAL_DISCREPANCY)
    effect = math.log(target["m"])
    place = int(np.argmin(np.abs(np.log(flops / target["C"]))))
    df = by_rung[place]["df"]
    now = target_error(flops, seeds, noise, result.law, target["C"], bent)
    low, high = target["together90"]
    known = math.log(high / low) / 2 / (critical_value(result.family, df, level) * now)  # the law's error is in it
    another_reason = judge_deciding((low, high), target["deciding"], result.worth) != "undecided"  # than its width
    options: list[dict[str, Any]] = []
    places_tried = _places(flops, target, another_reason) if candidates is None else candidates
    for C in places_tried:
        near = np.abs(np.log(flops / C)) <= NEAR
        for more in range(1, MOST_SEEDS + 1):
            places, runs = (flops, seeds + more * near) if near.any() else (np.append(flops, C), np.append(seeds, more))
            sds = noise if near.any() else np.append(noise, noise[-1])
            error = target_error(places, runs, sds, result.law, target["C"], bent)
            here = more if near.any() and near[place] else BORROWED * more
            measured_first = not target["measured"] and abs(math.log(C / target["C"])) <= NEAR
            widened = max(1.0, known) if measured_first else known
            half = widened * critical_value(result.family, df + here, level) * error
            ends = [math.exp(effect - half), math.exp(effect + half)]
            region = math.log(result.worth) / (widened * error)
            wider = half * two_sided_widening(errors_of_t(df + here), region, level)
            deciding = math.exp(effect - wider), math.exp(effect + wider)
            word = judge_deciding(ends, deciding, result.worth)
            settles = word != "undecided" and not (another_reason and target["measured"])
            options.append({"C": float(C), "seeds": more, "flops": 2 * more * float(C), "interval90": ends,
                            "settles": settles})  # fmt: skip
    settling = [each for each in options if each["settles"]]
    if settling:
        return min(settling, key=lambda each: each["flops"])
    return min(options, key=lambda each: math.log(each["interval90"][1] / each["interval90"][0]))


def _places(flops: np.ndarray, target: Mapping[str, Any], another_reason: bool) -> list[float]:
    """Where further runs may help: at a measured target only there, and at one that rung and curve dispute."""
    if another_reason and not target["measured"]:
        return [float(target["C"])]
    if target["measured"]:
        return [float(flops[np.argmin(np.abs(np.log(flops / target["C"])))])]
    return [*flops.tolist(), float(flops[-1] * BEYOND), float(target["C"])]
