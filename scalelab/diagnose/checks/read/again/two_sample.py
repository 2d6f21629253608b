"""Test whether validation and training documents are of one distribution, against splits drawn anew.

Tokens and pairs of neighbours are counted by document in buckets. The null draws validation sets of as many tokens from
all documents together, whole ones, as the split itself does: neighbours within a document are not independent. Where
few documents are held out, the null draws from those of training alone, and must be exceeded by more.
"""

from typing import NamedTuple

import numpy as np

from scalelab.data.dataset import OVERSHOOT
from scalelab.diagnose.checks.read.again.shingles import MULTIPLY, Documents, mix

SPLITS = 400  # draws of the null
SIGMAS = 6.0  # standard deviations of the distance's root above the null's mean, and above all draws
LEAST_VAL, LEAST_ALL = 4, 24  # documents
FEW_TRAIN, FEW_TIMES = 8, 2.0  # documents; times the largest distance among them that few held-out ones must exceed
MOST = 1500  # documents of each side that are counted
IDS, PAIRS = 256, 512  # buckets


class Distance(NamedTuple):
    """Distance of both sides, the root of a chi-square; of the null its median and largest; `sigmas` above its mean.

    `times`: how often the null's largest must be exceeded.
    """

    value: float
    usual: float
    largest: float
    sigmas: float
    times: float = 1.0

    @property
    def differs(self) -> bool:
        """Whether the sides are of two distributions."""
        return self.sigmas > SIGMAS and self.value > self.times * self.largest


def compare_sides(train: Documents, val: Documents) -> Distance | None:
    """Compare both sides; None if there are too few documents to draw others."""
    sides = [_join_equal(_counts(side)) for side in (train, val)]
    counts = np.concatenate(sides).astype(np.float32)
    is_val = np.arange(len(counts)) >= len(sides[0])
    sizes = counts[:, :IDS].sum(axis=1)
    wanted = float(sizes[is_val].sum())
    eligible = np.flatnonzero(sizes <= OVERSHOOT * wanted)
    few = is_val.sum() < LEAST_VAL or len(eligible) < LEAST_ALL
    if few:  # then those held out come up among the draws, so they are left out of them
        eligible = eligible[~is_val[eligible]]
    if not is_val.any() or len(eligible) < (FEW_TRAIN if few else LEAST_ALL):
        return None
    rng = np.random.default_rng(0)
    orders = eligible[np.argsort(rng.random((SPLITS, len(eligible))), axis=1)]
    drawn = np.zeros((SPLITS, len(counts)), np.float32)
    before = np.cumsum(sizes[orders], axis=1) - sizes[orders]
    np.put_along_axis(drawn, orders, (before < wanted).astype(np.float32), axis=1)
    null = np.sqrt(_distances(drawn[:, ~is_val], counts[~is_val]) if few else _distances(drawn, counts))
    value = float(np.sqrt(_distances(is_val[None].astype(np.float32), counts)[0]))
    sigmas = (value - null.mean()) / max(float(null.std()), 1e-6)
    return Distance(value, float(np.median(null)), float(null.max()), float(sigmas), FEW_TIMES if few else 1.0)


def _counts(documents: Documents) -> np.ndarray:
    """Counts of ids and pairs by document [n, IDS + PAIRS], of at most MOST documents, evenly."""
    n = len(documents.lengths)
    chosen = np.full(n, -1)
    taken = np.unique(np.linspace(0, n - 1, min(n, MOST)).astype(int))
    chosen[taken] = np.arange(len(taken))
    owner = np.repeat(chosen, documents.lengths)
    ids = documents.tokens.astype(np.uint64)
    single = (mix(ids + np.uint64(1)) if ids.max(initial=0) >= IDS else ids) % np.uint64(IDS)
    pairs = mix(ids[:-1] * MULTIPLY + ids[1:]) % np.uint64(PAIRS)
    use, use_pairs = owner >= 0, (owner[1:] >= 0) & (owner[1:] == owner[:-1])
    width = IDS + PAIRS
    keys = [
        owner[use] * width + single[use].astype(int),
        owner[1:][use_pairs] * width + IDS + pairs[use_pairs].astype(int),
    ]
    return np.bincount(np.concatenate(keys), minlength=len(taken) * width).reshape(-1, width)


def _join_equal(counts: np.ndarray) -> np.ndarray:
    """Join documents of equal counts: copies stay on one side of a split, so they are drawn together."""
    keys = counts @ np.random.default_rng(1).integers(1, 2**40, counts.shape[1])
    _, unit = np.unique(keys, return_inverse=True)
    joined = np.zeros((int(unit.max(initial=-1)) + 1, counts.shape[1]), counts.dtype)
    np.add.at(joined, unit, counts)
    return joined


def _distances(drawn: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Chi-square distance of the drawn documents [n, D] (0 or 1) from the others, by shares of ids and of pairs."""
    total, inside = counts.sum(axis=0), drawn @ counts
    distances = np.full(len(drawn), 1e-12)
    for part in (slice(0, IDS), slice(IDS, None)):
        here, there = (
            x[:, part] / np.maximum(x[:, part].sum(axis=1, keepdims=True), 1) for x in (inside, total - inside)
        )
        pooled = total[part] / max(total[part].sum(), 1)
        distances += (np.square(here - there) / np.maximum(pooled, 1e-12) * (pooled > 0)).sum(axis=1)
    return distances
