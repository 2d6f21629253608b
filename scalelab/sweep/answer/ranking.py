"""The answer of a sweep: settings by their means over seeds, which of them may be the best, and the best LR.

The best is picked by looking at all of them, which is a selection: `numbers.gaps` judges all gaps to it together, with
the noise of all settings. Runs that differ in size or budget are a design: none of them is best, so settings are ranked
among those of one size and budget (a `family`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.numbers.gaps import LEVEL, Gaps, judge_gaps
from scalelab.numbers.shared_noise import Noise, estimate_noise, select_settings
from scalelab.record.records import DAMAGED_STATUS
from scalelab.sweep.answer.best_lr import BestLr, find_best_lr
from scalelab.sweep.answer.designs import find_design_keys, find_unequal_columns
from scalelab.sweep.answer.differences import MeanDifference
from scalelab.sweep.answer.settings import SEED_KEY, SweptSetting, group_by_setting, group_rows, rankable

LR_KEY = "optim.peak_lr"
LEAST_LRS = 3  # a parabola needs three points
BEST, NOT_APART, WORSE, NOT_COMPARED, UNRANKED = "best", "not told apart", "worse", "not compared", "not ranked"
DESIGN = "no verdict"  # alone in its size and budget


@dataclasses.dataclass(frozen=True)
class RankedSetting:
    """A setting, its `rank` from 1 (None: not ranked), and the `gap` of its mean loss above the best one's.

    `verdict`: best, not told apart (from the best), worse, not compared (too few seeds), not ranked (seeds were lost
    or are not finished), or no verdict (alone in its size and budget). `p`: of the gap, all gaps together.
    """

    setting: SweptSetting
    rank: int | None
    gap: MeanDifference | None
    verdict: str
    p: float | None = None


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
    """Settings by `keys`, in the order of their values, and the `noise` of those that are ranked, None if unknown.

    `unassigned`: number of trials whose setting is not known (damaged, or not started). `damaged`: number of runs that
    can't be read, with or without a known setting. `left_out`: names of runs that only earlier grids had. `design`: the
    keys that change the size or the budget of a run. `unequal`: which of N, D and C differ in what is compared.
    """

    keys: tuple[str, ...]
    settings: tuple[RankedSetting, ...]
    noise: Noise | None
    optima: tuple[LrOptimum, ...]
    unassigned: int = 0
    damaged: int = 0
    left_out: tuple[str, ...] = ()
    design: tuple[str, ...] = ()
    unequal: tuple[str, ...] = ()

    @property
    def has_results(self) -> bool:
        """Whether any trial has ended, with a loss or without."""
        return any(ranked.setting.losses or ranked.setting.lost for ranked in self.settings)

    @property
    def best(self) -> SweptSetting | None:
        """The setting with the least mean, if any can be ranked; None in a design, where each family has its own."""
        return None if self.design else next(iter(self.with_verdict(BEST)), None)

    def equals(self, setting: SweptSetting) -> list[SweptSetting]:
        """Other settings of the same size and budget with the same losses: keys that differ change nothing there."""
        family = [setting.values.get(key) for key in self.design]
        others = [each.setting for each in self.settings if each.setting is not setting and each.rank is not None]
        alike = [each for each in others if [each.values.get(key) for key in self.design] == family]
        return [each for each in alike if each.by_seed == setting.by_seed]

    def with_verdict(self, *verdicts: str) -> list[SweptSetting]:
        """The settings with one of these verdicts, best rank first; of a design from rung to rung."""

        def place(each: RankedSetting) -> tuple[Any, float]:
            return [_order(each.setting.values[key]) for key in self.design], each.rank or math.inf

        return [each.setting for each in sorted(self.settings, key=place) if each.verdict in verdicts]


def answer_sweep(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> SweepAnswer:
    """Answer which setting by `keys` is best; rows have `status`, `val_loss`, `train.seed` and the keys' values."""
    known = [row for row in rows if all(key in row for key in (*keys, SEED_KEY))]
    settings = sorted(group_by_setting(known, keys), key=lambda setting: [*map(_order, setting.values.values())])
    design = find_design_keys(known, keys)
    families: dict[str, list[SweptSetting]] = {}
    for setting in settings:
        families.setdefault(repr([setting.values[key] for key in design]), []).append(setting)
    contenders = [setting for family in families.values() for setting in rankable(family)]
    noise = estimate_noise(_losses(contenders)) if contenders else None
    ranked: dict[int, RankedSetting] = {}
    place = {id(setting): i for i, setting in enumerate(contenders)}
    for family in families.values():
        places = [place[id(setting)] for setting in rankable(family)]
        ranked |= _rank_family(family, select_settings(noise, places) if noise and places else None, bool(design))
    damaged = sum(row["status"] == DAMAGED_STATUS for row in rows)
    return SweepAnswer(
        tuple(keys),
        tuple(ranked[id(setting)] for setting in settings),
        noise,
        _find_optima(known, keys),
        len(rows) - len(known),
        damaged,
        design=design,
        unequal=find_unequal_columns(known, design),
    )


def _order(value: Any) -> tuple[bool, float, str]:
    """A key to sort values by: numbers come first, by size; other values follow, by their text."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, value if number else 0.0, str(value)


def _losses(settings: Sequence[SweptSetting]) -> np.ndarray:
    """Losses [settings, seeds], nan where a setting lacks a seed."""
    seeds = list(dict.fromkeys(seed for setting in settings for seed in setting.seeds))
    return np.array([[setting.by_seed.get(seed, math.nan) for seed in seeds] for setting in settings])


def _rank_family(family: Sequence[SweptSetting], noise: Noise | None, design: bool) -> dict[int, RankedSetting]:
    """{id of a setting: its rank and verdict} among settings of one size and budget; `noise` of the rankable ones."""
    contenders = rankable(family)
    if design and len(family) == 1:
        return {id(family[0]): RankedSetting(family[0], None, None, DESIGN if contenders else UNRANKED)}
    ranked = {id(setting): RankedSetting(setting, None, None, UNRANKED) for setting in family}
    if noise:
        gaps, means = judge_gaps(noise), noise.means
    else:
        gaps, means = None, np.array([setting.mean for setting in contenders])
    for rank, i in enumerate(np.argsort(means, kind="stable"), 1):
        setting = contenders[i]
        if rank == 1:
            ranked[id(setting)] = RankedSetting(setting, rank, None, BEST)
        elif gaps is None or noise is None:
            ranked[id(setting)] = RankedSetting(setting, rank, None, NOT_COMPARED)
        else:
            verdict = WORSE if gaps.p[i] < 1 - LEVEL else NOT_APART
            ranked[id(setting)] = RankedSetting(setting, rank, _difference(gaps, noise, i), verdict, float(gaps.p[i]))
    return ranked


def _difference(gaps: Gaps, noise: Noise, i: int) -> MeanDifference:
    gap, error, low = float(gaps.gap[i]), float(gaps.error[i]), float(gaps.low[i])
    return MeanDifference(gap, error, low, 2 * gap - low, noise.freedom, noise.blocks)


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
