"""The effective-compute multiplier of a variant over a baseline: at every rung, as a function of scale, at a target.

result = multiplier(rows, baseline="adamw", target_flops=1e20)["muon"]
result.target["m"], result.target["interval90"], result.verdict
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.use.multiplier.baseline_law import Laws, fit_pair_laws, measured_others
from scalelab.laws.use.multiplier.cells import Pair
from scalelab.laws.use.multiplier.noise import Noise, draw_means, measure_noise
from scalelab.laws.use.multiplier.result import Multiplier
from scalelab.laws.use.multiplier.rungs import rung_multipliers
from scalelab.laws.use.multiplier.sides import read_pairs
from scalelab.laws.use.multiplier.trend import fit_trend, trend_curve
from scalelab.laws.use.multiplier.verdict import judge_target, reader_notes

DRAWS = 2000
OTHER_E = (0.8, 0.9, 1.1)  # factors on a given E, to show what giving it does
FIXABLE = ("E", "alpha")


def multiplier(
    rows: Sequence[Mapping[str, Any]],
    *,
    baseline: str,
    target_flops: float | None = None,
    fix: Mapping[str, float] | None = None,
    level: float = 0.9,
    seed: int = 0,
    draws: int = DRAWS,
    curve_points: int = 0,
) -> dict[str, Multiplier]:
    """Estimate m(C) of every variant: the baseline at m C is as good as the variant at C.

    rows: `side`, `C` (FLOPs), `loss` (nats/token; inf or nan: diverged) and, where known, `seed`, `tokens`,
    `tokens_per_s`. `target_flops`: where the verdict is given (default: the largest rung). `fix`: E or alpha of the
    baseline's law E + A C^-alpha, which is otherwise fitted to the baseline's rungs. `level`: of all intervals.
    `curve_points`: at how many budgets the trend's band is given, for a figure.
    BadInput for rows that can't be compared, or a law that these rungs do not determine.
    """
    fix = dict(fix or {})
    if not 0 < level < 1:
        raise BadInput(f"level={level:g} is not between 0 and 1; usual: 0.9")
    pairs = read_pairs(rows, baseline)
    target = float(next(iter(pairs.values())).flops[-1]) if target_flops is None else float(target_flops)
    if not (math.isfinite(target) and target > 0):
        raise BadInput(f"target_flops={target_flops!r} is not a number of FLOPs above zero")
    for pair in pairs.values():
        _check_fixed(pair, fix)
    return {name: _estimate(pair, target, fix, level, seed, draws, curve_points) for name, pair in pairs.items()}


def _check_fixed(pair: Pair, fix: Mapping[str, float]) -> None:
    """BadInput for values that can't be given, or too few rungs to fit those that are not."""
    for name, value in fix.items():
        if name not in FIXABLE:
            raise BadInput(f"--fix {name}={value:g}: only {' and '.join(FIXABLE)} of E + A C^-alpha can be given")
        if value < 0 or (name == "alpha" and value == 0):
            raise BadInput(f"--fix {name}={value:g}: it is above zero")
    least = min((cell.mean for cell in (*pair.baseline, *pair.variant) if cell.losses), default=math.inf)
    if fix.get("E", 0.0) >= least:
        raise BadInput(f"--fix E={fix['E']:g} is not below the least mean loss, {least:.4f}; leave it to the fit")
    finished = sum(cell.runs > 0 for cell in pair.baseline)
    if finished < (needed := 3 - len(fix)):
        free = " and ".join(name for name in FIXABLE if name not in fix)
        raise BadInput(
            f"the baseline has finished runs at {finished} rungs; {free or 'A'} of its law need {needed}: train more "
            "rungs, or give what is known (--fix E=…)"
        )


def _estimate(
    pair: Pair, target: float, fix: dict[str, float], level: float, seed: int, draws: int, points: int
) -> Multiplier:
    usable = pair.compared
    if not usable:
        return _without_rungs(pair, target, fix, level)
    whole, pair = pair, pair.only(usable)
    noise = measure_noise(pair)
    known = noise.difference_df > 0
    rng = np.random.default_rng(seed)
    laws, logs = _log_multipliers(pair, *_measured(pair), fix)
    ones, others = draw_means(pair, noise, draws if known else 1, rng)
    drawn_laws, drawn = _log_multipliers(pair, ones, others, fix, _draw_others(pair, noise, len(ones), fix, rng))
    falls = float(np.mean((drawn_laws.A > 0) & (laws.A[0] > 0)))
    rungs = rung_multipliers(whole, usable, logs[0], drawn if known else None, noise, level, rng)
    curve = trend_curve(pair, logs[0], drawn if known else None, target, level, points)
    trend, at_target = fit_trend(pair, logs[0], drawn if known else None, target, level, rng)
    verdict, criterion = judge_target(whole, at_target, noise, falls, target, level)
    return Multiplier(
        whole.name, rungs, trend, at_target, verdict, criterion,
        (*whole.notes, *reader_notes(whole, usable, noise, at_target, fix)),
        _law_json(laws), _noise_json(noise),
        tuple(_pinned(pair, target, fix)) if "E" in fix else (), curve,
    )  # fmt: skip


def _without_rungs(pair: Pair, target: float, fix: dict[str, float], level: float) -> Multiplier:
    """The answer where no rung has finished runs on both sides: the baseline's law, and a verdict without a number."""
    noise = Noise(0.0, 0.0, 0.0, 0, 0, 0, None, None, 0.0)
    rng = np.random.default_rng(0)
    none = pair.only([])
    laws = fit_pair_laws(none, np.zeros((1, 0)), measured_others(none, fix)[0][None], fix)
    trend, at_target = fit_trend(none, np.zeros(0), None, target, level, rng)
    verdict, criterion = judge_target(pair, at_target, noise, 0.0, target, level)
    rungs, notes = (
        rung_multipliers(pair, [], np.zeros(0), None, noise, level, rng),
        reader_notes(pair, [], noise, at_target, fix),
    )
    return Multiplier(pair.name, rungs, trend, at_target, verdict, criterion, (*pair.notes, *notes), _law_json(laws),
                      _noise_json(noise), (), ())  # fmt: skip


def _law_json(laws: Laws) -> dict[str, float]:
    return {"E": float(laws.E[0]), "A": float(laws.A[0]), "alpha": float(laws.alpha[0]), "unit": laws.unit}


def _noise_json(noise: Noise) -> dict[str, Any]:
    return {"baseline": noise.baseline, "variant": noise.variant, "difference": noise.difference,
            "df": noise.difference_df, "correlation": noise.correlation, "saved": noise.saved}  # fmt: skip


def _draw_others(pair: Pair, noise: Noise, draws: int, fix: dict[str, float], rng: np.random.Generator) -> np.ndarray:
    """Draws [draws, K] of the losses that the baseline's law takes beside those of the pair's rungs."""
    losses, runs = measured_others(pair, fix)
    df = noise.baseline_df or noise.difference_df
    if not (df and len(losses)):
        return np.tile(losses, (draws, 1))
    sd = noise.baseline * (df / rng.chisquare(df, (draws, 1))) ** 0.5
    return np.asarray(losses * np.exp(sd * rng.standard_normal((draws, len(losses))) / runs**0.5))


def _measured(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Both sides' mean losses, each [1, R]."""
    ones, others = (np.array([[cell.mean for cell in side]]) for side in (pair.baseline, pair.variant))
    return ones, others


def _log_multipliers(
    pair: Pair, ones: np.ndarray, others: np.ndarray, fix: dict[str, float], beside: np.ndarray | None = None
) -> tuple[Laws, np.ndarray]:
    """(the baseline's laws, log m in FLOPs [B, R]) of B sets of mean losses, each [B, R].

    `beside` [B, K]: the losses of `measured_others` for each set (default: as measured).
    """
    flops = pair.flops
    beside = np.tile(measured_others(pair, fix)[0], (len(ones), 1)) if beside is None else beside
    laws = fit_pair_laws(pair, ones, beside, fix)
    own = np.array([cell.flops for cell in pair.variant])
    return laws, laws.log_compute_ratio(ones, others) + np.log(flops / own)


def _pinned(pair: Pair, target: float, fix: dict[str, float]) -> list[dict[str, float]]:
    """m at the target at other values of an E that was given."""
    least = min(cell.mean for cell in (*pair.baseline, *pair.variant))
    out = []
    for factor in OTHER_E:
        E = min(fix["E"] * factor, 0.999 * least)
        _, logs = _log_multipliers(pair, *_measured(pair), fix | {"E": E})
        out.append({"E": E, "m": fit_trend(pair, logs[0], None, target, 0.9, np.random.default_rng(0))[1]["m"]})
    return out
