"""Which setting of a sweep won, by how much, and over which: the answer of `tune` on runs that are there already."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from scalelab.numbers.gaps import LEVEL
from scalelab.sweep.answer.ranking import BEST, NOT_APART, WORSE, RankedSetting, SweepAnswer
from scalelab.sweep.answer.texts import name_setting

WON, UNDECIDED, UNKNOWN = "won", "no difference shown", "not known"
SIGNIFICANT = 2  # digits of the narrower end of an interval


class Winner(NamedTuple):
    """The best setting of one size and budget, and its lead over the next best.

    `lead`: nats a token, with `interval` at the level of the sweep's verdicts, None with one seed; `tied`: settings not
    told apart from it; `verdict`: won (all others are worse), no difference shown, or not known (nothing to compare).
    """

    family: dict[str, Any]
    values: dict[str, Any]
    loss: float
    seeds: int
    verdict: str
    over: dict[str, Any] | None
    lead: float | None
    interval: tuple[float, float] | None
    tied: tuple[dict[str, Any], ...]


def find_winners(answer: SweepAnswer) -> list[Winner]:
    """Find the winner of each size and budget of an answer; [] where no setting has finished."""
    families: dict[str, list[RankedSetting]] = {}
    for ranked in answer.settings:
        if ranked.rank is not None:
            families.setdefault(repr([ranked.setting.values[key] for key in answer.design]), []).append(ranked)
    return [_find_winner(answer, sorted(family, key=lambda each: each.rank or 0)) for family in families.values()]


def _find_winner(answer: SweepAnswer, family: Sequence[RankedSetting]) -> Winner:
    best, others = family[0], family[1:]
    next_best = others[0] if others else None
    lead = next_best.setting.mean - best.setting.mean if next_best else None
    gap = next_best.gap if next_best else None
    decided = bool(others) and all(each.verdict == WORSE for each in others)
    known = bool(gap) and best.verdict == BEST
    return Winner(
        {key: best.setting.values[key] for key in answer.design},
        {key: value for key, value in best.setting.values.items() if key not in answer.design},
        best.setting.mean,
        len(best.setting.losses),
        WON if decided else UNDECIDED if known else UNKNOWN,
        next_best.setting.values if next_best else None,
        gap.mean if gap else lead,
        (gap.low, gap.high) if gap else None,
        tuple(each.setting.values for each in others if each.verdict == NOT_APART),
    )


def describe_winner(winner: Winner) -> str:
    """The verdict in one line."""
    where = f"at {name_setting(winner.family)}: " if winner.family else ""
    name = name_setting(winner.values)
    if winner.over is None:
        return f"{where}not known: {name or 'there'} is {'the only' if name else 'one'} setting with a result"
    over = name_setting({key: winner.over[key] for key in winner.values})
    if winner.interval is None:
        return f"{where}not known: {name} has the lowest loss, {winner.loss:.4f}, on one seed: no interval"
    low, high = winner.interval
    digits = max(4, SIGNIFICANT - 1 - math.floor(math.log10(abs(high - low)))) if high > low else 4
    size = f"{winner.lead:.{digits}f} nats ({LEVEL:.0%}: {low:.{digits}f} to {high:.{digits}f})"
    if winner.verdict == WON:
        return f"{where}won: {name}, by {size} over {over}, {winner.seeds} seeds"
    tied = f"{len(winner.tied)} settings are" if len(winner.tied) > 1 else "one setting is"
    return f"{where}no difference shown: {name} leads {over} by {size}, {winner.seeds} seeds; {tied} not told apart"
