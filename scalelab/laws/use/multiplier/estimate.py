"""The effective-compute multiplier of a variant over a baseline: at every rung, as a function of scale, at a target.

result = multiplier(rows, baseline="adamw", target_flops=1e20)["muon"]
result.target["m"], result.target["interval90"], result.verdict
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.use.multiplier.baseline_law import Laws, fit_pair_laws, measured_others
from scalelab.laws.use.multiplier.cells import NEAR, Pair
from scalelab.laws.use.multiplier.noise import Draws, Noise, draw_means, measure_noise, share_noise
from scalelab.laws.use.multiplier.result import LEVEL, WORTH, Multiplier, check_worth
from scalelab.laws.use.multiplier.rungs import rung_multipliers
from scalelab.laws.use.multiplier.sides import read_pairs
from scalelab.laws.use.multiplier.trend import (
    curve_at,
    fit_curve,
    fit_line,
    line_at,
    log_interval,
    share_above,
    trend_curve,
)
from scalelab.laws.use.multiplier.verdict import (
    critical_value,
    describe_criterion,
    judge_target,
    reader_notes,
    share_of_baseline,
    two_sided_widening,
)

DRAWS = 2000
OTHER_E = (0.8, 0.9, 1.1)  # factors on a given E, to show what giving it does
FIXABLE = ("E", "alpha")


@dataclasses.dataclass(frozen=True)
class Question:
    """Where the verdict is given, at which level, from which worth on, and with how many variants together."""

    target: float
    level: float
    worth: float
    family: int


def multiplier(
    rows: Sequence[Mapping[str, Any]],
    *,
    baseline: str,
    target_flops: float | None = None,
    fix: Mapping[str, float] | None = None,
    level: float = LEVEL,
    worth: float = WORTH,
    family: int | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    curve_points: int = 0,
) -> dict[str, Multiplier]:
    """Estimate m(C) of every variant: the baseline at m C is as good as the variant at C.

    rows: `side`, `C` (FLOPs), `loss` (nats/token; inf or nan: diverged) and, where known, `seed`, `tokens`,
    `tokens_per_s`, `N` and `block`, a label within which runs of a budget are paired. `target_flops`: where the verdict
    is given (default: the largest rung that both sides have). `fix`: E or alpha of the baseline's law E + A C^-alpha,
    which is otherwise fitted to the baseline's rungs. `level`: of all intervals.
    `worth`: a multiplier between 1 / worth and worth doesn't matter. `family`: how many variants are judged together
    (default: those of the rows). `curve_points`: at how many budgets the trend's band is given, for a figure.
    BadInput for rows that can't be compared, or a law that these rungs do not determine.
    """
    fix = dict(fix or {})
    if not 0 < level < 1:
        raise BadInput(f"level={level:g} is not between 0 and 1; usual: 0.9")
    check_worth(worth)
    pairs = read_pairs(rows, baseline)
    if target_flops is not None and not (math.isfinite(target_flops) and target_flops > 0):
        raise BadInput(f"target_flops={target_flops!r} is not a number of FLOPs above zero")
    for pair in pairs.values():
        _check_fixed(pair, fix)
    targets = {name: float(target_flops or _largest_flops(pair)) for name, pair in pairs.items()}
    usable = [pair.only(pair.compared) for pair in pairs.values()]
    noises = share_noise(usable, [measure_noise(pair) for pair in usable])
    return {
        name: judge_pair(
            pair,
            Question(targets[name], level, float(worth), family or len(pairs)),
            fix,
            seed,
            draws,
            curve_points,
            noise,
        )
        for (name, pair), noise in zip(pairs.items(), noises, strict=True)
    }


def _largest_flops(pair: Pair) -> float:
    """The FLOPs of the largest rung at which the variant has any run, finished or diverged."""
    return [base.flops for base, cell in zip(pair.baseline, pair.variant, strict=True) if cell.losses or cell.diverged][
        -1
    ]


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
            f"the baseline has finished runs at {finished} rung{'s' * (finished != 1)}; {free or 'A'} of its law "
            f"{'need' if ' and ' in free else 'needs'} {needed}: train more rungs, or give what is known (--fix E=…)"
        )


def judge_pair(
    pair: Pair,
    question: Question,
    fix: Mapping[str, float] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    points: int = 0,
    noise: Noise | None = None,
) -> Multiplier:
    """Judge a pair; `noise`: measured elsewhere (default: by the pair's own seeds)."""
    fixed = dict(fix or {})
    whole, usable = pair, pair.compared
    pair = pair.only(usable)
    noise = noise or measure_noise(pair)
    known = noise.difference_df > 0 and bool(usable)
    rng = np.random.default_rng(seed)
    laws, logs_once = _log_multipliers(pair, *_measured(pair), fixed)
    logs = logs_once[0]
    means = draw_means(pair, noise, draws, rng) if known else None
    drawn, falls = None, 0.0
    if means is not None:
        drawn_laws, drawn = _log_multipliers(
            pair, means.baseline, means.variant, fixed, _draw_others(pair, noise, draws, fixed, rng)
        )
        falls = float(np.mean((drawn_laws.A > 0) & (laws.A[0] > 0)))
    level = question.level
    rungs = rung_multipliers(whole, usable, logs, drawn, noise, level, rng)
    trend = fit_line(pair, logs, drawn, level)
    curve = None if drawn is None else fit_curve(pair, logs, drawn)
    trend["discrepancy"] = list(curve.discrepancy) if curve else None
    band = trend_curve(curve, question.target, level, points)
    target = _at_target(pair, logs, drawn, means, noise, question, rng)
    verdict = judge_target(whole, target, trend, rungs, noise, falls, level, question.worth, question.family)
    return Multiplier(
        whole.name,
        rungs,
        trend,
        target,
        verdict,
        describe_criterion(question.target, level, question.worth, question.family),
        (*whole.notes, *reader_notes(whole, usable, noise, target, trend, fixed)),
        _law_json(laws),
        _noise_json(noise, means),
        tuple(_pinned(pair, question.target, fixed)) if "E" in fixed and usable else (),
        band,
        question.worth,
        question.family,
        tuple(dict.fromkeys(whole.blocks.values())),
    )


def _at_target(
    pair: Pair,
    logs: np.ndarray,
    drawn: np.ndarray | None,
    means: Draws | None,
    noise: Noise,
    question: Question,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """m at the target: the rung's own where it is measured, else that of the curve.

    `together90`: the interval at which all variants' hold together; `deciding`: the one that adopts or rejects; `line`:
    what the straight line says there.
    """
    keys = ("m", "interval90", "together90", "deciding", "p_better", "beyond")
    target: dict[str, Any] = {"C": question.target} | dict.fromkeys(keys)
    target |= {"measured": False, "line": {"m": None, "interval90": None}}
    if not len(logs):
        return target
    near = [i for i, flops in enumerate(pair.flops) if abs(math.log(flops / question.target)) <= NEAR]
    target |= {"measured": bool(near), "line": line_at(pair, logs, drawn, question.target, question.level)}
    target["beyond"] = question.target / pair.variant[-1].flops
    if drawn is None or means is None:
        return target | {"m": math.exp(logs[near[0]]) if near else target["line"]["m"] or math.exp(logs[0])}
    place = near[0] if near else len(logs) - 1
    curve = None if near else fit_curve(pair, logs, drawn)
    middle, ends = (float(logs[place]), drawn[:, place]) if curve is None else curve_at(curve, question.target, rng)
    df, shared = float(means.pair_df[place]), share_of_baseline(pair, noise, place)
    single, together = (critical_value(k, df, question.level, shared) for k in (1, question.family))
    wider = two_sided_widening(ends - middle, math.log(question.worth), question.level)
    target |= {"m": math.exp(middle), "interval90": list(log_interval(ends, question.level))}
    for key, stretch in (("together90", together / single), ("deciding", wider * together / single)):
        target |= {key: list(log_interval(ends, question.level, middle, stretch))}
    return target | {"p_better": share_above(ends)}


def _law_json(laws: Laws) -> dict[str, float]:
    return {"E": float(laws.E[0]), "A": float(laws.A[0]), "alpha": float(laws.alpha[0]), "unit": laws.unit}


def _noise_json(noise: Noise, means: Draws | None) -> dict[str, Any]:
    rungs = (
        []
        if means is None
        else [{"sd": float(sd), "df": float(df)} for sd, df in zip(means.pair_noise, means.pair_df, strict=True)]
    )
    return {"baseline": noise.baseline, "variant": noise.variant, "difference": noise.difference,
            "df": noise.difference_df, "correlation": noise.correlation, "saved": noise.saved,
            "p_equal": noise.p_equal, "rungs": rungs}  # fmt: skip


def _draw_others(pair: Pair, noise: Noise, draws: int, fix: dict[str, float], rng: np.random.Generator) -> np.ndarray:
    """Draws [draws, K] of the losses that the baseline's law takes beside those of the pair's rungs."""
    losses, runs = measured_others(pair, fix)
    df = noise.baseline_df
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
    # The best of a few widths is off the law by design; a law that was given is taken as it is.
    bent = bool(pair.blocks) and not fix
    ratios = laws.ratio_through(np.log(flops), ones, others) if bent else laws.log_compute_ratio(ones, others)
    own = np.array([cell.flops for cell in pair.variant])
    return laws, ratios + np.log(flops / own)


def _pinned(pair: Pair, target: float, fix: dict[str, float]) -> list[dict[str, float]]:
    """m at the target at other values of an E that was given."""
    least = min(cell.mean for cell in (*pair.baseline, *pair.variant))
    out = []
    for factor in OTHER_E:
        E = min(fix["E"] * factor, 0.999 * least)
        _, logs = _log_multipliers(pair, *_measured(pair), fix | {"E": E})
        near = [i for i, flops in enumerate(pair.flops) if abs(math.log(flops / target)) <= NEAR]
        m = math.exp(logs[0][near[0]]) if near else line_at(pair, logs[0], None, target, 0.9)["m"]
        out.append({"E": E, "m": m or math.exp(logs[0][0])})
    return out
