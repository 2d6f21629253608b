"""Test whether validation documents are longer, or shorter, than a draw of as many of all documents.

By the sum of ranks, and, for a few documents, by the exact chance that all lie at one end. Copies count once, as they
stay on one side of a split, and documents that a split passes over where it is nearly full are left out.
"""

import hashlib
import math

import numpy as np

from scalelab.data.dataset import OVERSHOOT
from scalelab.data.shards import Split
from scalelab.diagnose.sample import EDGE_TOKENS, spread

SIGMAS, LOG_RARE = 6.0, math.log(1e-9)  # a normal number is beyond that many with that chance
ALWAYS = 1 - 1 / OVERSHOOT  # share of the validation tokens up to which a document is never passed over
LEAST_VAL = 4  # documents
MOST = 20_000  # documents of each split, evenly


def compare_splits(train: Split, val: Split) -> str:
    """Describe validation documents of another length; "" if they are of the usual one, or too few."""
    sides = [_lengths(split) for split in (train, val)]
    lengths, is_val = np.concatenate(sides), np.arange(len(sides[0]) + len(sides[1])) >= len(sides[0])
    fitting = lengths <= ALWAYS * val.n_tokens
    return compare_lengths(lengths[fitting], is_val[fitting])


def compare_lengths(lengths: np.ndarray, is_val: np.ndarray) -> str:
    """Describe validation documents [n] that are longer, or shorter, than 1 draw in 1e9 of so many; else ""."""
    n, n_val = len(lengths), int(is_val.sum())
    if not LEAST_VAL <= n_val < n:
        return ""
    ordered = np.sort(lengths)
    ranks = (np.searchsorted(ordered, lengths) + np.searchsorted(ordered, lengths, side="right")) / 2
    error = max(float(ranks.std()), 1e-9) * math.sqrt((n - n_val) / (n_val * max(n - 1, 1)))
    sigmas = float(ranks[is_val].mean() - ranks.mean()) / error
    for word, sign in (("longer", 1), ("shorter", -1)):
        end = (sign * lengths[is_val]).min()
        beyond = int((sign * lengths >= end).sum())
        if sign * sigmas > SIGMAS or _log_chance(beyond, n, n_val) < LOG_RARE:
            held_out, others = (float(np.median(lengths[side])) for side in (is_val, ~is_val))
            return (
                f"{word} than its training documents ({held_out:,.0f} tokens in the median, the others {others:,.0f})"
            )
    return ""


def _log_chance(beyond: int, n: int, drawn: int) -> float:
    """The logarithm of the chance that all `drawn` of n are among `beyond` of them."""
    ways = [math.lgamma(m + 1) - math.lgamma(m - drawn + 1) for m in (beyond, n)]
    return ways[0] - ways[1]


def _lengths(split: Split) -> np.ndarray:
    """Lengths of documents, of those with equal length, first and last tokens once."""
    lengths: dict[bytes, int] = {}
    total = max(split.n_documents, 1)
    for tokens, offsets in zip(split.shards, split.offsets, strict=True):
        n = len(offsets) - 1
        for i in spread(n, max(1, MOST * n // total)):
            begin, end = int(offsets[i]), int(offsets[i + 1])
            edges = tokens[begin : min(end, begin + EDGE_TOKENS)], tokens[max(begin, end - EDGE_TOKENS) : end]
            text = b"".join(np.asarray(edge).tobytes() for edge in edges)
            lengths[hashlib.blake2b(text, digest_size=8).digest()] = end - begin
    return np.array(list(lengths.values()), int)
