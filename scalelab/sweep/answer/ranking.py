"""The answer of a sweep: settings by their means over seeds, which of them may be the best, and the best LR.

The best is picked by looking at all of them, which is a selection. So the gaps to it are tested as in multiple
comparisons with the best (Hsu 1984, Annals of Statistics 12(3)): each of the k - 1 one-sided, at (1 - LEVEL) / (k - 1).
The truly best setting beats each other one, so it is called worse with a probability of at most 1 - LEVEL.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.record.records import DAMAGED_STATUS
from scalelab.sweep.answer.best_lr import BestLr, find_best_lr
from scalelab.sweep.answer.differences import MeanDifference, mean_difference
from scalelab.sweep.answer.settings import SEED_KEY, SweptSetting, find_best, group_by_setting, group_rows, rankable

LEVEL = 0.95  # of all comparisons with the best together
LR_KEY = "optim.peak_lr"
LEAST_LRS = 3  # a parabola needs three points
BEST, NOT_APART, WORSE, NOT_COMPARED, UNRANKED = "best", "not told apart", "worse", "not compared", "not ranked"


@dataclasses.dataclass(frozen=True)
class RankedSetting:
    """A setting, its `rank` from 1 (None: not ranked), and the `gap` of its mean loss above the best one's.

    `verdict`: best, not told apart (from the best), worse, not compared (too few seeds), or not ranked (seeds were lost
    or are not finished).
    """

    setting: SweptSetting
    rank: int | None
    gap: MeanDifference | None
    verdict: str


@dataclasses.dataclass(frozen=True)
class LrOptimum:
    """The best LR at fixed other `values`, from `losses` [seeds, lrs]; `best` is None without a common seed.

    A lost trial's loss is nan.
    """

    values: dict[str, Any]
    lrs: tuple[float, ...]
    seeds: tuple[Any, ...]
    losses: tuple[tuple[float, ...], ...]
    best: BestLr | None


@dataclasses.dataclass(frozen=True)
class SweepAnswer:
    """Settings by `keys`, in the order of their values; `each_level`: the level of each comparison with the best.

    `unassigned`: number of trials whose setting is not known (damaged, or not started). `damaged`: number of runs that
    can't be read, with or without a known setting. `left_out`: names of runs that only earlier grids had.
    """

    keys: tuple[str, ...]
    settings: tuple[RankedSetting, ...]
    each_level: float | None
    optima: tuple[LrOptimum, ...]
    unassigned: int = 0
    damaged: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def has_results(self) -> bool:
        """Whether any trial has ended, with a loss or without."""
        return any(ranked.setting.losses or ranked.setting.lost for ranked in self.settings)

    @property
    def best(self) -> SweptSetting | None:
        """The setting with the least mean, if any can be ranked."""
        return next((ranked.setting for ranked in self.settings if ranked.verdict == BEST), None)

    def with_verdict(self, *verdicts: str) -> list[SweptSetting]:
        """The settings with one of these verdicts, best rank first."""
        ranked = [each for each in self.settings if each.verdict in verdicts]
        return [each.setting for each in sorted(ranked, key=lambda each: each.rank or math.inf)]


def answer_sweep(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> SweepAnswer:
    """Answer which setting by `keys` is best; rows have `status`, `val_loss`, `train.seed` and the keys' values."""
    known = [row for row in rows if all(key in row for key in (*keys, SEED_KEY))]
    settings = sorted(group_by_setting(known, keys), key=lambda setting: [*map(_order, setting.values.values())])
    ranks = {id(s): i + 1 for i, s in enumerate(sorted(rankable(settings), key=lambda s: s.mean))}
    best, level = find_best(settings), _each_level(settings)
    ranked = tuple(_ranked(setting, best, ranks.get(id(setting)), level) for setting in settings)
    damaged = sum(row["status"] == DAMAGED_STATUS for row in rows)
    return SweepAnswer(tuple(keys), ranked, level, _find_optima(known, keys), len(rows) - len(known), damaged)


def _order(value: Any) -> tuple[bool, float, str]:
    """A key to sort values by: numbers come first, by size; other values follow, by their text."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, value if number else 0.0, str(value)


def _each_level(settings: Sequence[SweptSetting]) -> float | None:
    """The one-sided level of one comparison with the best; None if there is nothing to compare."""
    others = sum(len(setting.losses) > 1 for setting in rankable(settings)) - 1
    return 1 - (1 - LEVEL) / others if others > 0 else None


def _ranked(setting: SweptSetting, best: SweptSetting | None, rank: int | None, level: float | None) -> RankedSetting:
    if rank is None or best is None:
        return RankedSetting(setting, None, None, UNRANKED)
    if setting is best:
        return RankedSetting(setting, rank, None, BEST)
    gap = gap_to(best, setting, level) if level else None
    verdict = NOT_COMPARED if gap is None else WORSE if gap.low > 0 else NOT_APART
    return RankedSetting(setting, rank, gap, verdict)


def gap_to(best: SweptSetting, setting: SweptSetting, level: float) -> MeanDifference | None:
    """How far a setting's mean loss is above the best one's, with bounds that each hold at `level` (one-sided).

    Paired over the shared seeds if one side has all seeds of the other. None if a side has fewer than two seeds.
    """
    here, there = setting.by_seed, best.by_seed
    shared = here.keys() & there.keys()
    if len(shared) == min(len(here), len(there)):
        here, there = ({seed: side[seed] for seed in side if seed in shared} for side in (here, there))
    if min(len(here), len(there)) < 2:
        return None
    return mean_difference(here, there, 2 * level - 1)


def _find_optima(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> tuple[LrOptimum, ...]:
    """The best LR for each combination of the other keys with LEAST_LRS learning rates or more."""
    if LR_KEY not in keys:
        return ()
    others = [key for key in keys if key != LR_KEY]
    curves = [_find_optimum(group, others) for group in group_rows(rows, others)]
    return tuple(sorted(filter(None, curves), key=lambda each: [*map(_order, each.values.values())]))


def _find_optimum(rows: Sequence[Mapping[str, Any]], others: Sequence[str]) -> LrOptimum | None:
    curve = {
        s.values[LR_KEY]: {**s.by_seed, **dict.fromkeys(s.lost, math.nan)} for s in group_by_setting(rows, [LR_KEY])
    }
    lrs = sorted(lr for lr, losses in curve.items() if losses and isinstance(lr, int | float) and lr > 0)
    if len(lrs) < LEAST_LRS:
        return None
    seeds = sorted(set.intersection(*(set(curve[lr]) for lr in lrs)))
    losses = tuple(tuple(curve[lr][seed] for lr in lrs) for seed in seeds)
    best = find_best_lr(np.log2(lrs), np.array(losses)) if seeds else None
    return LrOptimum({key: rows[0].get(key) for key in others}, tuple(lrs), tuple(seeds), losses, best)
