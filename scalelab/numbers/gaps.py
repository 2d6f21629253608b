"""Gaps between settings over seeds: which of them are more than noise. One rule for sweeps, `compare` and `tune`.

The noise is `shared_noise`'s: of all settings together, as far as they are alike. Where the best is picked by looking,
every setting may be it. `judge_gaps` is the closed test (Marcus, Peritz & Gabriel 1976, Biometrika 63(3)) of "this
setting is as good as any": the worst of K is tested as in Tukey's range, the next best almost as in Dunnett's test.
Whatever is as good as the best is called worse, in all K together, with a probability of at most 1 - LEVEL. Legend: K
settings, B draws.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from scalelab.numbers.shared_noise import Noise

LEVEL = 0.95  # of all gaps of a table together
LEAST_DRAWS, CELLS = 4096, 2**19  # draws of noise; draws times settings at most


class PairGap(NamedTuple):
    """A gap, its standard error, and its interval; `freedom`: residual degrees of the noise."""

    gap: float
    error: float
    low: float
    high: float
    freedom: int


class Gaps(NamedTuple):
    """Gaps to the `best`, their errors, p-values and lower bounds, each [K]; `low` > 0 where `p` < 1 - LEVEL."""

    best: int
    gap: np.ndarray
    error: np.ndarray
    p: np.ndarray
    low: np.ndarray


def judge_pair(noise: Noise, one: int, other: int, level: float = LEVEL) -> PairGap:
    """Judge how far the mean of setting `one` is above that of `other`, both named before their losses were seen."""
    gap = float(noise.means[one] - noise.means[other])
    error = float(_pair_errors(noise, np.array([one]), np.array([other]))[0])
    half = error * _two_sided(noise, one, other, level) if error else 0.0
    return PairGap(gap, error, gap - half, gap + half, noise.freedom)


def judge_gaps(noise: Noise, level: float = LEVEL) -> Gaps:
    """Judge each setting's gap to the one with the least mean."""
    best, count = int(noise.means.argmin()), len(noise.means)
    gap = noise.means - noise.means[best]
    error = _pair_errors(noise, np.arange(count), np.full(count, best))
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.where(gap > 0, gap / error, 0.0)
    order = np.argsort(sizes, kind="stable")
    if not noise.sd:
        p, critical = np.where(sizes > 0, 0.0, 1.0), np.zeros(count)
    elif count == 2:
        other = 1 - best
        p, critical = np.ones(2), np.full(2, _two_sided(noise, other, best, level))
        p[other] = 2 * _tail(noise, other, best, sizes[other])
    else:
        p, critical = _step_down(_draw_sizes(noise), sizes, order, level)
    return Gaps(best, gap, error, p, gap - critical * error)


def _step_down(draws: np.ndarray, sizes: np.ndarray, order: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """(p [K], critical sizes [K]) of gaps in standard errors [K], from draws [B, K] where nothing differs.

    The largest is tested among all, then the next among the rest, until one is not more than noise.
    """
    largest = np.maximum.accumulate(draws[:, order], axis=1)
    p_each = (largest >= sizes[order]).mean(0)
    place = len(draws) - math.ceil((1 - level) * len(draws))
    critical_each = np.partition(largest, place, axis=0)[place]
    p_each = np.maximum.accumulate(p_each[::-1])[::-1]
    stopped = p_each >= 1 - level
    if stopped.any():
        critical_each[stopped] = critical_each[np.flatnonzero(stopped)[-1]]
    p, critical = np.empty(len(order)), np.empty(len(order))
    p[order], critical[order] = p_each, critical_each
    return p, critical


def _pair_errors(noise: Noise, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Standard errors of gaps between settings `ones` and `others`, index arrays that broadcast."""
    own = noise.variances / noise.counts
    squares = own[ones] + own[others]
    if noise.shares.size and np.ptp(noise.shares, axis=0).any():  # seeds that only one of them has
        spread = noise.shares @ noise.covariance
        quadratic = (spread * noise.shares).sum(1)
        squares = squares + quadratic[ones] + quadratic[others] - 2 * (spread[ones] * noise.shares[others]).sum(-1)
    return np.asarray(np.sqrt(squares))


def _draw_sizes(noise: Noise) -> np.ndarray:
    """Gaps to the least in standard errors [B, K], where all means are equal."""
    chains, count = noise.draws.shape
    repeats = math.ceil(min(LEAST_DRAWS, max(CELLS // count, chains)) / chains)
    random = np.random.default_rng(1)
    variances = np.tile(noise.draws, (repeats, 1))
    means = np.sqrt(variances / noise.counts) * random.standard_normal(variances.shape)
    if noise.shares.size and np.ptp(noise.shares, axis=0).any():
        means = means - _draw_effects(noise, variances, random) @ noise.shares.T
    least = means.argmin(1)[:, None]
    gaps = means - np.take_along_axis(means, least, 1)
    return np.asarray(gaps / _pair_errors(noise, np.arange(count)[None], least))


def _draw_effects(noise: Noise, variances: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Errors [B, F] of the seeds' estimated effects."""
    return random.standard_normal((len(variances), len(noise.covariance))) @ np.linalg.cholesky(noise.covariance).T


def _pair_spreads(noise: Noise, one: int, other: int) -> np.ndarray:
    """Standard deviations [B] of the pair's gap over draws of variances, by its standard error."""
    squares = noise.variances[[one, other]] / noise.counts[[one, other]]
    drawn = noise.draws[:, [one, other]] / noise.counts[[one, other]]
    return np.asarray(np.sqrt(drawn.sum(1) / squares.sum()))


def _tail(noise: Noise, one: int, other: int, size: float) -> float:
    """The probability that noise alone makes a gap of more than `size` standard errors, to one side."""
    if noise.common:
        return float(special.stdtr(noise.freedom, -size))
    return float(special.ndtr(-size / _pair_spreads(noise, one, other)).mean())


def _two_sided(noise: Noise, one: int, other: int, level: float) -> float:
    """The size in standard errors that noise alone exceeds, to both sides, with a probability of 1 - level."""
    if noise.common:
        return float(special.stdtrit(noise.freedom, (1 + level) / 2))
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * _tail(noise, one, other, middle) > 1 - level else (low, middle)
    return high
