"""The multiplier at every rung, in FLOPs, tokens and time, with its intervals."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.laws.use.multiplier.cells import Pair
from scalelab.laws.use.multiplier.noise import Noise
from scalelab.laws.use.multiplier.result import CURRENCIES, Interval, RungMultiplier
from scalelab.laws.use.multiplier.trend import log_interval


def rung_multipliers(
    pair: Pair,
    usable: Sequence[int],
    logs: np.ndarray,
    drawn: np.ndarray | None,
    noise: Noise,
    level: float,
    rng: np.random.Generator,
) -> tuple[RungMultiplier, ...]:
    """The rungs with their multipliers of log values `logs`, and intervals of `drawn` ones [B, R] (None: none)."""
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
                ends[key] = None if spread is None else log_interval(spread, level)
        out.append(
            RungMultiplier(
                one.flops,
                one.mean if one.losses else None,
                other.mean if other.losses else None,
                m,
                ends,
                (one.runs, other.runs),
                noise.correlation,
                (one.diverged, other.diverged),
            )
        )
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
    """The exponent by which the baseline's tokens grow with its FLOPs over the rungs; 1 with a single rung."""
    known = [(math.log(cell.flops), math.log(cell.tokens)) for cell in pair.baseline if cell.tokens]
    x, y = np.array(known).T
    return float(np.polyfit(x, y, 1)[0]) if len(known) > 1 else 1.0
