"""Errors of losses measured over seeds, and draws of all rungs' mean losses: by Student's t, not a normal law.

Errors are of log losses. Their variance may differ between rungs in any way: `scales.py` draws it for each rung by
that rung's own runs, both sides' together, so that a mean's draws almost follow Student's t of twice its seeds less 2.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from scalelab.laws.use.multiplier.cells import Cell, Pair
from scalelab.laws.use.multiplier.scales import (
    Companion,
    Scatter,
    beside_others,
    draw_both,
    draw_sds,
    effective_df,
    equal_p,
    find_companion,
)

FARTHEST = 20.0  # of a drawn error of a log loss: far enough to say nothing, and no overflow
LUCK = 0.5  # correlation of seeds' errors between rungs, from which on a seed's luck is one, not one a rung
SHARED = 0.25  # the correlation of two variants' sums of squared differences to one baseline, where noise is equal


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """Relative standard deviations of a run's loss on each side, and of a pair's difference, with degrees of freedom.

    `difference_df` 0: no rung has two seeds on both sides, so there is no interval. `correlation`: between the sides'
    losses of a seed; None if they are not paired. `saved`: the share of the difference's variance that pairing takes
    off. `sides`: the scatter by rung, of baseline and difference where paired, else of both sides. `p_equal`: of the
    test that a pair's noise is equal at all rungs; None where nothing can be tested. `luck`: the correlation of a
    seed's errors between rungs, 0 below LUCK.
    """

    baseline: float
    variant: float
    difference: float
    baseline_df: int
    variant_df: int
    difference_df: int
    correlation: float | None
    saved: float | None
    shared: float  # correlation of the baseline's error and that of the difference
    sides: tuple[Scatter, Scatter] | None = None
    p_equal: float | None = None
    luck: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Draws of both sides' mean losses, each [draws, R], and the noise of a pair at each rung with its df, [R]."""

    baseline: np.ndarray
    variant: np.ndarray
    pair_noise: np.ndarray
    pair_df: np.ndarray


def measure_noise(pair: Pair) -> Noise:
    """Measure the scatter of seeds at each rung of a pair."""
    ones = [_within(_logs(cell), _blocks(pair, cell)) for cell in pair.baseline]
    own = [_within(_logs(cell), _blocks(pair, cell)) for cell in pair.variant]
    one, other = _scatter(ones), _scatter(own)
    if not pair.paired:
        df = one.total_df + other.total_df if one.total_df and other.total_df else 0
        gap = float(np.hypot(one.pooled, other.pooled))
        p_equal = min((p for p in (equal_p(one), equal_p(other)) if p is not None), default=None)
        p_equal = None if p_equal is None else min(1.0, 2 * p_equal)
        if one.ss.sum() and other.ss.sum():
            one, other = (
                dataclasses.replace(side, companion=Companion(its.ss, its.df))
                for side, its in ((one, other), (other, one))
            )
        return Noise(
            one.pooled, other.pooled, gap, one.total_df, other.total_df, df, None, None, 0.0, (one, other), p_equal
        )
    pairs = list(zip(pair.variant, pair.baseline, strict=True))
    gaps = [_logs(base) - _logs(cell, list(base.losses)) for cell, base in pairs]
    groups = [_blocks(pair, cell) for cell in pair.baseline]
    difference = _difference_scatter(gaps, groups, pair.sampled)
    within = [_within(values, its)[0] for values, its in zip(gaps, groups, strict=True)]
    if not pair.sampled and one.total_df:
        baseline = [values for values, _ in ones]
        difference = dataclasses.replace(difference, companion=find_companion(within, baseline, difference.df))
        one = dataclasses.replace(one, companion=find_companion(baseline, within, one.df))
    if not one.total_df:  # a run in each block and rung: half of the difference's variance is the baseline's
        one = other = Scatter(difference.ss / 2, difference.df)
    z, d = np.concatenate([values for values, _ in ones]), np.concatenate(within)
    correlation, shared, saved = _correlations(z, d, one, other, difference)
    labels = [list(cell.losses) for cell in pair.baseline]
    gaps_by_seed = [dict(zip(names, each.tolist(), strict=True)) for names, each in zip(labels, within, strict=True)]
    luck = 0.0 if pair.sampled else rho if (rho := _between_rungs(gaps_by_seed)) >= LUCK else 0.0
    told = difference.told_anew(luck)
    return Noise(
        one.pooled,
        other.pooled,
        difference.pooled,
        one.total_df,
        other.total_df,
        difference.total_df,
        correlation,
        saved,
        shared,
        (one, told),
        equal_p(difference),
        luck,
    )


def share_noise(pairs: Sequence[Pair], noises: Sequence[Noise]) -> list[Noise]:
    """Each pair's noise with what the other pairs of its kind (paired or not) tell of it.

    What a change is worth more in one block than in another is its own: of pairs within blocks nothing is shared.
    """
    out = list(noises)
    for paired in (True, False):
        which = [
            i
            for i, noise in enumerate(noises)
            if pairs[i].paired == paired and noise.difference_df and not pairs[i].blocks
        ]
        scatters = [sides[1] for i in which if (sides := noises[i].sides)]
        places = [np.log(pairs[i].flops) for i in which]
        for i, scatter in zip(which, beside_others(scatters, places, SHARED if paired else 0.0), strict=True):
            first = sides[0] if (sides := noises[i].sides) else scatter
            out[i] = dataclasses.replace(noises[i], sides=(first, scatter))
    return out


def draw_means(pair: Pair, noise: Noise, draws: int, rng: np.random.Generator) -> Draws:
    """Draws of both sides' mean losses. They scatter about the measured ones by the seeds' noise."""
    ones, others = (np.array([cell.mean for cell in side]) for side in (pair.baseline, pair.variant))
    n, m = (np.array([cell.runs for cell in side]) for side in (pair.baseline, pair.variant))
    x = np.log(pair.flops)
    z, w = rng.standard_normal((2, draws, len(ones)))
    if noise.luck:
        z, w = (noise.luck**0.5 * rng.standard_normal((draws, 1)) + (1 - noise.luck) ** 0.5 * each for each in (z, w))
    if noise.sides is None or not noise.difference_df:
        return Draws(np.tile(ones, (draws, 1)), np.tile(others, (draws, 1)), np.zeros(len(ones)), np.zeros(len(ones)))
    if pair.paired or noise.sides[1].companion is None:
        first, second = (draw_sds(side, x, draws, rng) for side in noise.sides)
    else:
        second, first = draw_both(noise.sides[1], x, draws, rng)
    one = _bound(z * first / np.array([cell.law_runs for cell in pair.baseline]) ** 0.5)
    if pair.paired:
        mixed = noise.shared * z + (1 - noise.shared**2) ** 0.5 * w
        gaps, spreads = mixed * second / n**0.5, second
        others = others * np.exp(_bound(one - gaps))
    else:
        others, spreads = others * np.exp(_bound(w * second / m**0.5)), np.hypot(first, second)
    middle = np.exp(np.log(np.maximum(spreads, 1e-300)).mean(0))
    return Draws(ones * np.exp(one), others, middle, effective_df(spreads))


def _bound(errors: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(errors, -FARTHEST, FARTHEST))


def _logs(cell: Cell, order: Sequence[str] | None = None) -> np.ndarray:
    """Log losses in the order of these seeds."""
    return np.log([cell.losses[label] for label in (order if order is not None else cell.losses)])


def _blocks(pair: Pair, cell: Cell) -> list[str]:
    """The block of each run of a cell; one block where there are none."""
    return [pair.blocks.get(label, "") for label in cell.losses]


def _within(values: np.ndarray, groups: Sequence[str]) -> tuple[np.ndarray, int]:
    """(deviations from the means of groups, degrees of freedom)."""
    names, places = np.unique(np.array(groups, str), return_inverse=True)
    if not len(values):
        return values, 0
    means = np.bincount(places, values) / np.bincount(places)
    return values - means[places], len(values) - len(names)


def _scatter(deviations: Sequence[tuple[np.ndarray, int]]) -> Scatter:
    return Scatter(
        np.array([(values**2).sum() for values, _ in deviations]), np.array([df for _, df in deviations], float)
    )


def _difference_scatter(gaps: Sequence[np.ndarray], groups: Sequence[Sequence[str]], sampled: bool = False) -> Scatter:
    """The scatter of a pair's difference by rung, such that a rung's variance over its runs is that of their mean.

    Where blocks are `sampled`, what counts is the scatter of their means, in which the change is worth more in one
    block than in another. Else these blocks are all that is asked about.
    """
    out, blocks = [], []
    for values, its in zip(gaps, groups, strict=True):
        names, places = np.unique(np.array(its, str), return_inverse=True)
        if sampled and len(values):
            means = np.bincount(places, values) / np.bincount(places)
            out.append(((means - means.mean()) * (len(values) / len(names)) ** 0.5, len(names) - 1))
            blocks.append(dict(zip(names.tolist(), (means - means.mean()).tolist(), strict=True)))
        else:
            out.append(_within(values, its))
    scatter = _scatter(out)
    if not sampled or not scatter.df.sum():
        return scatter
    return scatter.told_anew(_between_rungs(blocks))


def _between_rungs(rungs: Sequence[Mapping[str, float]]) -> float:
    """The correlation of blocks' or seeds' differences between rungs; not below 0."""
    products = sizes = 0.0
    for one, other in itertools.combinations(rungs, 2):
        both = [name for name in one if name in other]
        x, y = (np.array([rung[name] for name in both]) for rung in (one, other))
        if len(both) > 1:
            x, y = x - x.mean(), y - y.mean()
            products, sizes = products + float(x @ y), sizes + float(np.sqrt((x @ x) * (y @ y)))
    return float(np.clip(products / sizes, 0, 1)) if sizes > 0 else 0.0


def _correlations(
    z: np.ndarray, d: np.ndarray, one: Scatter, other: Scatter, difference: Scatter
) -> tuple[float | None, float, float | None]:
    """(correlation of both sides, that of the baseline's error and the difference's, what pairing saves)."""
    v = z - d
    product = float(np.sqrt((z**2).sum() * (v**2).sum()))
    correlation = float((z * v).sum() / product) if product > 0 else None
    product = float(np.sqrt((z**2).sum() * (d**2).sum()))
    shared = float(np.clip((z * d).sum() / product, -1, 1)) if product > 0 else 0.0
    apart = one.pooled**2 + other.pooled**2
    return correlation, shared, 1 - difference.pooled**2 / apart if apart > 0 else None
