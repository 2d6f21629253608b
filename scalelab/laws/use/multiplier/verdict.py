"""The verdict on a variant, by the interval at the target and the region that doesn't matter, and notes for readers."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from scalelab.laws.use.multiplier.cells import Pair
from scalelab.laws.use.multiplier.noise import Noise
from scalelab.laws.use.multiplier.result import RungMultiplier, format_factor, join_ends
from scalelab.laws.use.multiplier.trend import POOR_FIT

LEAST_SLOPE_SHARE = 0.95  # of draws in which the baseline's loss must fall with compute
DUNNETT_DRAWS, DUNNETT_DF = 4000, 40  # above so many degrees of freedom the statistic is taken to have these
SAME = "no difference that matters"
UNEQUAL = 0.05  # p below which noise is said to differ between rungs


def judge_interval(ends: Sequence[float], worth: float) -> str:
    """One word by an interval of m: adopt, reject, SAME (it lies in the region that doesn't matter) or undecided.

    With the two one-sided tests of equivalence at the interval's level, SAME is never said of an m outside the region
    more often than one of its ends is missed.
    """
    low, high = ends
    if low > worth:
        return "adopt"
    if high < 1 / worth:
        return "reject"
    return SAME if low >= 1 / worth and high <= worth else "undecided"


def judge_deciding(ends: Sequence[float], deciding: Sequence[float], worth: float) -> str:
    """One word by both intervals: the wider one adopts and rejects, the other says that there is no difference."""
    return SAME if judge_interval(ends, worth) == SAME else judge_interval(deciding, worth)


def describe_criterion(flops: float, level: float, worth: float, family: int) -> str:
    """The criterion of a verdict, which no measurement enters: it is written before the largest rung runs."""
    together = f", wide enough for all {family} variants together," if family > 1 else ""
    return (
        f"adopt if the {level:.0%} interval{together} of the multiplier at {flops:.3g} FLOPs (that rung's own, where "
        f"it is measured) lies above {worth:g}, reject if it lies below {1 / worth:.4g} or if every run of a rung "
        f"diverges, {SAME} if it lies between these, else undecided; for adopt and reject the interval is as much "
        f"wider as makes both together at most {(1 - level) / 2:.0%} for a multiplier that doesn't matter"
    )


def judge_target(
    pair: Pair,
    target: Mapping[str, Any],
    trend: Mapping[str, Any],
    rungs: Sequence[RungMultiplier],
    noise: Noise,
    falls: float,
    level: float,
    worth: float,
    family: int,
) -> str:
    """The verdict and its reason; `falls`: in which share of draws the baseline's loss falls with compute."""
    lost = [cell for cell in pair.variant if cell.diverged]
    if dead := [cell for cell in lost if not cell.losses]:
        return f"reject: every run at {dead[0].flops:.3g} FLOPs diverged"
    if any(cell.diverged for cell in pair.baseline):
        return "undecided: runs of the baseline diverged, so it is no ground to stand on"
    if noise.difference_df == 0:
        return "undecided: no interval: one seed"
    if falls < LEAST_SLOPE_SHARE:
        return "undecided: the baseline's loss does not clearly fall with compute: its rungs tell no exchange rate"
    if noise.difference == 0 and target["m"] == 1:
        return "undecided: no difference shown: both sides' losses are equal to the last digit"
    low, high = ends = target["together90"]
    narrow, word = judge_interval(ends, worth), judge_deciding(ends, target["deciding"], worth)
    together = f" for all {family} variants together" if family > 1 else ""
    where = f"{format_factor(target['m'])} times the compute at {target['C']:.3g} FLOPs, {level:.0%}{together} in "
    where += join_ends(ends)
    if lost and word != "reject":
        return f"undecided: {sum(cell.diverged for cell in lost)} runs diverged; the others: {where}"
    if word == "undecided":
        return f"undecided: {_doubt(low, high, worth, narrow, level)}: {where}"
    if why := _contradiction(word, target, trend, rungs, worth):
        return f"undecided: {why}; {where}"
    return f"{word}: {where}" + (f": within {1 / worth:.4g} to {worth:g}" if word == SAME else "")


def _doubt(low: float, high: float, worth: float, narrow: str, level: float) -> str:
    """What an interval that decides nothing shows; `narrow`: what it would decide without the errors of both sides."""
    if narrow != "undecided":
        often = f"{(1 - level) / 2:.0%} of studies of a change that doesn't matter"
        return f"{'better' if low > 1 else 'worse'}, but as large a gap is seen in more than {often}"
    if low > 1:
        return f"better, but not shown to be worth {worth:g} times the compute"
    if high < 1:
        return f"worse, but not shown to be worth less than {1 / worth:.4g} times the compute"
    return "no difference shown"


def _contradiction(
    word: str, target: Mapping[str, Any], trend: Mapping[str, Any], rungs: Sequence[RungMultiplier], worth: float
) -> str:
    """Why rung and line speak against each other, if they do: one of them adopts, and the other rejects.

    At a measured rung a line that does not fit the rungs is no witness.
    """
    if target["measured"]:
        line = target["line"]
        fits = trend["p_fit"] is None or trend["p_fit"] >= POOR_FIT
        if fits and line["interval90"] and {word, judge_interval(line["interval90"], worth)} == {"adopt", "reject"}:
            return (
                f"the rung's own interval says {word}, and the line through all rungs {join_ends(line['interval90'])}"
            )
        return ""
    measured = [rung for rung in rungs if rung.interval90["flops"]]
    ends = measured[-1].interval90["flops"] if measured else None
    if ends and {word, judge_interval(ends, worth)} == {"adopt", "reject"}:
        return (
            f"the largest rung, {measured[-1].C:.3g} FLOPs, measured {join_ends(ends)}, and the curve "
            f"says {word} at the target: measure a rung nearer to it"
        )
    return ""


def critical_value(family: int, df: float, level: float, correlation: float = 0.5) -> float:
    """How many standard errors wide the intervals of `family` variants are, so that all hold together at this level.

    The variants share a baseline, which correlates their differences and the measured noise of them (Dunnett 1955); by
    simulation of the largest |t|. One variant: Student's t. Paired sides with equal noise correlate by a half.
    """
    single = float(special.stdtrit(max(df, 0.5), (1 + level) / 2))
    if family < 2:
        return single
    nearest = int(np.clip(round(df), 1, DUNNETT_DF))
    return single * _widening(family, nearest, level, round(correlation, 1))


def two_sided_widening(errors: np.ndarray, region: float, level: float) -> float:
    """How much wider an interval decides than it is printed, so that adopt and reject together err seldom enough.

    An interval of 90 % misses an m on either side in 5 % of studies. Where m doesn't matter, adopt and reject are both
    wrong, and come in 5 % together if a gap of c decides with P(e > c) + P(e > c + 2 region) = 5 % (Hodges and Lehmann
    1954, "Testing the approximate validity of statistical hypotheses"). `errors` [draws] of log m; `region`: half of
    the region that doesn't matter. The factor is 1 where it is wide, and that of 95 % where it is narrow.
    """
    sizes = np.sort(np.abs(errors))
    single = float(sizes[int(level * len(sizes))])
    if not 0 < single < math.inf:
        return 1.0
    near, far = (1 - np.searchsorted(sizes, sizes + shift) / len(sizes) for shift in (0.0, 2 * region))
    enough = sizes[(near + far) / 2 <= (1 - level) / 2]
    return max(1.0, float(enough[0] if len(enough) else sizes[-1]) / single)


def errors_of_t(df: float) -> np.ndarray:
    """Quantiles of Student's t in place of draws, [2000]."""
    return np.asarray(special.stdtrit(max(df, 0.5), (np.arange(2000) + 0.5) / 2000))


@functools.cache
def _widening(family: int, df: int, level: float, correlation: float) -> float:
    rng = np.random.default_rng(0)
    draws = DUNNETT_DRAWS if family <= 20 else DUNNETT_DRAWS // 4
    shared, own = rng.standard_normal((draws, 1, df + 1)), rng.standard_normal((draws, family, df + 1))
    values = correlation**0.5 * shared + (1 - correlation) ** 0.5 * own
    t = np.abs(values[..., 0]) / (values[..., 1:] ** 2).mean(-1) ** 0.5
    return float(np.quantile(t.max(1), level) / special.stdtrit(df, (1 + level) / 2))


def share_of_baseline(pair: Pair, noise: Noise, i: int) -> float:
    """The correlation of two variants' differences at rung i by the baseline that they share."""
    if pair.paired:
        return 0.5
    ones, others = noise.baseline**2 / pair.baseline[i].runs, noise.variant**2 / pair.variant[i].runs
    return min(0.9, ones / (ones + others)) if ones + others > 0 else 0.5


def reader_notes(
    pair: Pair,
    usable: Sequence[int],
    noise: Noise,
    target: Mapping[str, Any],
    trend: Mapping[str, Any],
    fix: Mapping[str, float],
) -> list[str]:
    """Notes on pairing, noise, the line, diverged and missing runs, extrapolation and given values."""
    notes = []
    if pair.paired and noise.correlation is not None and noise.saved is not None:
        notes.append(
            f"paired by seed: correlation {noise.correlation:.2f}; pairing "
            + (f"takes {noise.saved:.0%} off the difference's variance" if noise.saved > 0 else "saves nothing here")
        )
    elif not pair.paired and noise.difference_df:
        notes.append("unpaired: the sides do not have the same seeds at every rung, so their errors add up")
    notes += _noise_notes(noise)
    if noise.luck:
        notes.append(f"a seed's luck is one at all rungs (correlation {noise.luck:.2f}): rungs tell of few seeds")
    notes += [
        f"at {cell.flops:.3g} FLOPs {cell.diverged} of {cell.diverged + cell.runs} runs of {name} diverged"
        for name, side in (("the baseline", pair.baseline), (pair.name, pair.variant))
        for cell in side
        if cell.diverged
    ]
    cells = zip(pair.baseline, pair.variant, strict=True)
    if lost := sum(i not in usable and any(cell.diverged for cell in both) for i, both in enumerate(cells)):
        notes.append(f"{lost} rungs have no finished run on one side and are not in the trend")
    if trend["p_fit"] is not None and trend["p_fit"] < POOR_FIT:
        notes.append(
            f"the line does not fit: rungs lie up to {math.expm1(trend['off']):.1%} off it, which noise does in "
            f"{trend['p_fit']:.1%} of cases; no verdict rests on it"
        )
    if target["beyond"] and target["beyond"] > 1.05:
        notes.append(f"the target is {target['beyond']:.3g} times beyond the largest rung: the trend is extrapolated")
    if len(usable) == 2:
        notes.append("two rungs: their line has nothing to check it")
    notes += [f"{name} was given as {value:g}, not fitted" for name, value in fix.items()]
    return notes


def _noise_notes(noise: Noise) -> list[str]:
    """Whether the noise of seeds is equal at all rungs."""
    if noise.p_equal is None or noise.sides is None:
        return []
    scatter = noise.sides[1] if noise.correlation is not None else max(noise.sides, key=lambda side: side.pooled)
    sds = [f"{(ss / df) ** 0.5:.2%}" if df else "-" for ss, df in zip(scatter.ss, scatter.df, strict=True)]
    differs = "differs between rungs" if noise.p_equal < UNEQUAL else "is not shown to differ between rungs"
    return [f"noise by rung {', '.join(sds)}: it {differs} (p {noise.p_equal:.2g}); a rung's own runs tell it"]
