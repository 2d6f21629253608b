"""The effective-compute multiplier of a variant over a baseline: at every rung, as a function of scale, at a target.

result = multiplier(rows, baseline="adamw", target_flops=1e20)["muon"]
result.target["m"], result.target["interval90"], result.verdict
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.use.multiplier.baseline_law import Laws, fit_laws
from scalelab.laws.use.multiplier.noise import Noise, draw_means, measure_noise
from scalelab.laws.use.multiplier.result import CURRENCIES, Interval, Multiplier, RungMultiplier
from scalelab.laws.use.multiplier.sides import Pair, read_pairs

DRAWS = 2000
LEAST_SLOPE_SHARE = 0.95  # of draws in which the baseline's loss must fall with compute
# s.d. of the bend of log m over log C, over its slope. A multiplier that falls to 1 as c C^-k bends by k; exponents of
# losses are 0.05 to 0.3. Chosen by the coverage of simulated studies (checks/results/multiplier.md).
BEND = 0.15
OTHER_E = (0.8, 0.9, 1.1)  # factors on a given E, to show what giving it does
FIXABLE = ("E", "alpha")


def multiplier(
    rows: Sequence[Mapping[str, Any]], *, baseline: str, target_flops: float | None = None,
    fix: Mapping[str, float] | None = None, level: float = 0.9, seed: int = 0, draws: int = DRAWS,
    curve_points: int = 0,
) -> dict[str, Multiplier]:  # fmt: skip
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
    """BadInput for values that can't be given, or too few rungs for what is not."""
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
    usable = [i for i, (b, v) in enumerate(zip(pair.baseline, pair.variant, strict=True)) if b.losses and v.losses]
    if not usable:
        return _without_rungs(pair, target, fix, level)
    whole, pair = pair, _only(pair, usable)
    noise = measure_noise(pair)
    known = noise.difference_df > 0
    rng = np.random.default_rng(seed)
    laws, logs = _log_multipliers(pair, *_measured(pair), fix)
    ones, others = draw_means(pair, noise, draws if known else 1, rng)
    drawn_laws, drawn = _log_multipliers(pair, ones, others, fix)
    falls = float(np.mean((drawn_laws.A > 0) & (laws.A[0] > 0)))
    rungs = _rungs(whole, usable, logs[0], drawn if known else None, noise, level, rng)
    curve = _curve(pair, logs[0], drawn if known else None, target, level, points)
    trend, at_target = _trend(pair, logs[0], drawn if known else None, target, level, rng)
    verdict, criterion = _judge(whole, at_target, noise, falls, target, level)
    return Multiplier(
        whole.name, rungs, trend, at_target, verdict, criterion,
        tuple(_notes(whole, usable, noise, at_target, fix)),
        _law_json(laws), _noise_json(noise),
        tuple(_pinned(pair, target, fix)) if "E" in fix else (), curve,
    )  # fmt: skip


def _without_rungs(pair: Pair, target: float, fix: dict[str, float], level: float) -> Multiplier:
    """The answer where no rung has finished runs on both sides: the baseline's law, and a verdict without a number."""
    noise = Noise(0.0, 0.0, 0.0, 0, 0, 0, None, None, 0.0)
    rng = np.random.default_rng(0)
    base = _only(pair, [i for i, cell in enumerate(pair.baseline) if cell.losses])
    laws = fit_laws(base.flops, _measured(base)[0], np.array([cell.runs for cell in base.baseline], float), fix)
    trend, at_target = _trend(_only(pair, []), np.zeros(0), None, target, level, rng)
    verdict, criterion = _judge(pair, at_target, noise, 0.0, target, level)
    rungs, notes = _rungs(pair, [], np.zeros(0), None, noise, level, rng), _notes(pair, [], noise, at_target, fix)
    return Multiplier(pair.name, rungs, trend, at_target, verdict, criterion, tuple(notes), _law_json(laws),
                      _noise_json(noise), (), ())  # fmt: skip


def _law_json(laws: Laws) -> dict[str, float]:
    return {"E": float(laws.E[0]), "A": float(laws.A[0]), "alpha": float(laws.alpha[0]), "unit": laws.unit}


def _noise_json(noise: Noise) -> dict[str, Any]:
    return {"baseline": noise.baseline, "variant": noise.variant, "difference": noise.difference,
            "df": noise.difference_df, "correlation": noise.correlation, "saved": noise.saved}  # fmt: skip


def _only(pair: Pair, rungs: Sequence[int]) -> Pair:
    """The pair at these rungs: where one side has no finished run, nothing can be compared."""
    ones, others = (tuple(side[i] for i in rungs) for side in (pair.baseline, pair.variant))
    return Pair(pair.name, ones, others, pair.paired)


def _measured(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Both sides' mean losses, each [1, R]."""
    ones, others = (np.array([[cell.mean for cell in side]]) for side in (pair.baseline, pair.variant))
    return ones, others


def _log_multipliers(
    pair: Pair, ones: np.ndarray, others: np.ndarray, fix: dict[str, float]
) -> tuple[Laws, np.ndarray]:
    """(the baseline's laws, log m in FLOPs [B, R]) of B sets of mean losses, each [B, R]."""
    flops = pair.flops
    laws = fit_laws(flops, ones, np.array([cell.runs for cell in pair.baseline], float), fix)
    own = np.array([cell.flops for cell in pair.variant])
    return laws, laws.log_compute_ratio(ones, others) + np.log(flops / own)


def _rungs(
    pair: Pair,
    usable: Sequence[int],
    logs: np.ndarray,
    drawn: np.ndarray | None,
    noise: Noise,
    level: float,
    rng: np.random.Generator,
) -> tuple[RungMultiplier, ...]:
    out = []
    for i, (one, other) in enumerate(zip(pair.baseline, pair.variant, strict=True)):
        m: dict[str, float | None] = dict.fromkeys(CURRENCIES)
        ends: dict[str, Interval | None] = dict.fromkeys(CURRENCIES)
        for key in CURRENCIES if i in usable else ():
            k = usable.index(i)
            if (value := in_currency(pair, i, key, logs[k])) is not None:
                m[key] = math.exp(float(value))
                spread = None if drawn is None else in_currency(pair, i, key, drawn[:, k])
                if spread is not None and key == "time":
                    spread = spread + _draw_speeds(pair, i, len(spread), rng)
                ends[key] = None if spread is None else _interval(spread, level)
        out.append(
            RungMultiplier(
                one.flops, one.mean if one.losses else None, other.mean if other.losses else None, m, ends,
                (one.runs, other.runs), noise.correlation, (one.diverged, other.diverged),
            )
        )  # fmt: skip
    return tuple(out)


def in_currency(pair: Pair, i: int, key: str, logs: Any) -> Any:
    """log m in FLOPs at rung i, in another currency; None where the table does not have it.

    Tokens: those that the baseline would see on its way to that loss, which grow with its FLOPs as they do between its
    rungs. Time: at the FLOP/s that each side has at this rung.
    """
    one, other = pair.baseline[i], pair.variant[i]
    if key == "flops":
        return logs
    if one.tokens is None or other.tokens is None:
        return None
    if key == "time":
        if one.rate is None or other.rate is None:
            return None
        return logs + math.log(other.flops * other.rate / other.tokens) - math.log(one.flops * one.rate / one.tokens)
    return _tokens_exponent(pair) * (logs + math.log(other.flops / one.flops)) + math.log(one.tokens / other.tokens)


def _draw_speeds(pair: Pair, i: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of the error of the log ratio of both sides' tokens/s: by seed where the sides took turns, else apart."""
    one, other = (np.log(list(cell.rates.values())) for cell in (pair.baseline[i], pair.variant[i]))
    if pair.paired and len(one) == len(other):
        one, other = other - one, np.zeros(1)
    errors = [values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0 for values in (one, other)]
    df = max(1, min(len(values) for values in (one, other) if len(values) > 1) - 1) if any(errors) else 1
    return math.hypot(*errors) * rng.standard_t(df, draws)


def _tokens_exponent(pair: Pair) -> float:
    """How the baseline's tokens grow with its FLOPs over the rungs; 1 where one rung tells nothing."""
    known = [(math.log(cell.flops), math.log(cell.tokens)) for cell in pair.baseline if cell.tokens]
    x, y = np.array(known).T
    return float(np.polyfit(x, y, 1)[0]) if len(known) > 1 else 1.0


def _trend(
    pair: Pair, logs: np.ndarray, drawn: np.ndarray | None, target: float, level: float, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(trend, target): a line through log m over log C, weighted by each rung's error.

    The target's interval allows for a line that bends beyond the rungs, as much as BEND says.
    """
    x = np.log([cell.flops for cell in pair.variant]) if pair.variant else np.zeros(0)
    finite = np.isfinite(logs)
    empty: dict[str, Any] = {"a": None, "b": None, "centre": None, "interval90": None, "p_b": None}
    at_target: dict[str, Any] = {"C": target, "m": None, "interval90": None, "p_better": None, "beyond": None}
    if not finite.any():
        return empty, at_target
    x, logs, drawn = x[finite], logs[finite], None if drawn is None else drawn[:, finite]
    errors = np.ones(len(x)) if drawn is None else np.maximum(_spread(drawn), 1e-12)
    line = _line(x, errors, math.log(target))
    (a, b, there), centre = line @ logs, float(np.exp((x / errors**2).sum() / (1 / errors**2).sum()))
    trend = empty | {"a": float(a), "b": float(b) if len(x) > 1 else None, "centre": centre}
    at_target |= {"m": float(np.exp(there)), "beyond": target / float(np.exp(x[-1]))}
    if drawn is not None:
        _, slopes, ends = line @ drawn.T
        strayed = (math.log(target) ** 2 - line[2] @ x**2) / 2
        ends = ends + BEND * np.abs(slopes) * strayed * rng.standard_normal(len(slopes))
        if len(x) > 1:
            low, high = _quantiles(slopes, level)
            trend |= {
                "interval90": [low, high],
                "p_b": float(min(1.0, 2 * min((slopes > 0).mean(), (slopes < 0).mean()))),
            }
        at_target |= {"interval90": list(_interval(ends, level)), "p_better": _share_above(ends)}
    return trend, at_target


def _curve(
    pair: Pair, logs: np.ndarray, drawn: np.ndarray | None, target: float, level: float, points: int
) -> tuple[dict[str, Any], ...]:
    """The trend with its band at so many points from the smallest rung to the target, for a figure."""
    flops = [cell.flops for cell in pair.variant]
    if len(flops) < 2 or not points:
        return ()
    ends = min(flops[0], target), max(flops[-1], target)
    places = [
        _trend(pair, logs, drawn, float(at), level, np.random.default_rng(0))[1] for at in np.geomspace(*ends, points)
    ]
    return tuple({"C": each["C"], "m": each["m"], "interval90": each["interval90"]} for each in places)


def _spread(drawn: np.ndarray) -> np.ndarray:
    """Robust standard deviations of draws [B, R]: half the width of the middle 68 %."""
    low, high = np.quantile(drawn, [0.16, 0.84], axis=0)
    return (high - low) / 2


def _line(x: np.ndarray, errors: np.ndarray, at: float) -> np.ndarray:
    """The matrix [3, R] that takes values to (middle, slope, value at `at`) of their weighted line; one rung: flat."""
    w = errors**-2 / (errors**-2).sum()
    dx = x - (w * x).sum()
    spread = (w * dx**2).sum()
    slope = w * dx / spread if len(x) > 1 else np.zeros(1)
    return np.stack([w, slope, w + slope * (at - (w * x).sum())])


def _quantiles(values: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _interval(logs: np.ndarray, level: float) -> Interval:
    low, high = _quantiles(logs, level)
    return math.exp(min(low, 700.0)), math.exp(min(high, 700.0))


def _share_above(logs: np.ndarray) -> float:
    """P(m > 1), where ties count half."""
    return float((logs > 0).mean() + (logs == 0).mean() / 2)


def _judge(
    pair: Pair, target: Mapping[str, Any], noise: Noise, falls: float, flops: float, level: float
) -> tuple[str, str]:
    """(verdict, criterion)."""
    criterion = (
        f"adopt if the {level:.0%} interval of the multiplier at {flops:.3g} FLOPs lies above 1, reject if it lies "
        "below 1 or if every run of a rung diverges, else undecided"
    )
    lost = [cell for cell in pair.variant if cell.diverged]
    if dead := [cell for cell in lost if not cell.losses]:
        return f"reject: every run at {dead[0].flops:.3g} FLOPs diverged", criterion
    if any(cell.diverged for cell in pair.baseline):
        return "undecided: runs of the baseline diverged, so it is no ground to stand on", criterion
    if noise.difference_df == 0:
        return "undecided: no interval: one seed", criterion
    if falls < LEAST_SLOPE_SHARE:
        return (
            "undecided: the baseline's loss does not clearly fall with compute: its rungs tell no exchange rate",
            criterion,
        )
    if noise.difference == 0 and target["m"] == 1:
        return "undecided: no difference shown: both sides' losses are equal to the last digit", criterion
    low, high = target["interval90"]
    where = f"{target['m']:.3f} times the compute at {flops:.3g} FLOPs, {level:.0%} in {low:.3f} to {high:.3f}"
    if high < 1:
        return f"reject: {where}", criterion
    if lost:
        number = sum(cell.diverged for cell in lost)
        return f"undecided: {number} runs diverged; the others: {where}", criterion
    if low > 1:
        return f"adopt: {where}", criterion
    return f"undecided: no difference shown: {where}", criterion


def _notes(
    pair: Pair, usable: Sequence[int], noise: Noise, target: Mapping[str, Any], fix: Mapping[str, float]
) -> list[str]:
    """What a reader must know beside the numbers."""
    notes = []
    if pair.paired and noise.correlation is not None and noise.saved is not None:
        notes.append(
            f"paired by seed: correlation {noise.correlation:.2f}; pairing "
            + (f"takes {noise.saved:.0%} off the difference's variance" if noise.saved > 0 else "saves nothing here")
        )
    elif not pair.paired and noise.difference_df:
        notes.append("unpaired: the sides do not have the same seeds at every rung, so their errors add up")
    notes += [
        f"at {cell.flops:.3g} FLOPs {cell.diverged} of {cell.diverged + cell.runs} runs of {name} diverged"
        for name, side in (("the baseline", pair.baseline), (pair.name, pair.variant))
        for cell in side
        if cell.diverged
    ]
    if len(usable) < len(pair.baseline):
        notes.append(
            f"{len(pair.baseline) - len(usable)} rungs have no finished run on one side and are not in the trend"
        )
    if target["beyond"] and target["beyond"] > 1.05:
        notes.append(f"the target is {target['beyond']:.3g} times beyond the largest rung: the trend is extrapolated")
    if len(usable) == 2:
        notes.append("two rungs: their line has nothing to check it")
    notes += [f"{name} was given as {value:g}, not fitted" for name, value in fix.items()]
    return notes


def _pinned(pair: Pair, target: float, fix: dict[str, float]) -> list[dict[str, float]]:
    """m at the target at other values of an E that was given."""
    least = min(cell.mean for cell in (*pair.baseline, *pair.variant))
    out = []
    for factor in OTHER_E:
        E = min(fix["E"] * factor, 0.999 * least)
        _, logs = _log_multipliers(pair, *_measured(pair), fix | {"E": E})
        out.append({"E": E, "m": _trend(pair, logs[0], None, target, 0.9, np.random.default_rng(0))[1]["m"]})
    return out
