"""Compare documents by shingles: hashes of so many tokens in a row, of which every SAMPLED-th value is kept.

Which are kept depends on the hash alone, so equal passages keep equal shingles wherever they stand (Broder 1997; the
sampling is that of Manber 1994). Shingles that stand in many documents are boilerplate and are left out.
"""

from typing import NamedTuple

import numpy as np

from scalelab.data.shards import Split
from scalelab.data.tokenizers.chat import unmask_ids

LENGTH_BYTES, LENGTH_IDS = 32, 16  # tokens of a shingle, a power of two: of bytes, of larger vocabularies
SAMPLED = 8  # 1 of so many shingles is kept
LEAST = 8  # distinct shingles of a document that is judged
COMMON = 8  # documents; a shingle of more of them is boilerplate
NEAR = 0.5  # share of a document's shingles that stand in one other document, from which it is a near copy
# Distinct shingles below which a document is a line or a record, that shares fields and phrases with others by itself:
# some 60 words. Of such only one that stands whole in another is a copy.
LONG_BYTES, LONG_IDS = 32, 8
MULTIPLY = np.uint64(0x9E3779B97F4A7C15)


class Documents(NamedTuple):
    """Documents of a split: their tokens one after the other, and where each begins and the last ends."""

    tokens: np.ndarray
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each, its separator included."""
        return np.diff(self.offsets)


def take_documents(split: Split, most_tokens: int) -> Documents:
    """Take documents evenly over a split, of about `most_tokens` at most; all if they have fewer."""
    lengths = [np.diff(np.asarray(offsets)) for offsets in split.offsets]
    total = sum(int(each.sum()) for each in lengths)
    every = max(1, -(-total // most_tokens))
    tokens, sizes, number = [], [], 0
    for shard, offsets in zip(split.shards, split.offsets, strict=True):
        first = np.asarray(offsets)
        if every == 1:
            tokens.append(np.asarray(shard[: first[-1]]))
            sizes.append(np.diff(first))
            continue
        for i in range(-number % every, len(first) - 1, every):
            tokens.append(np.asarray(shard[first[i] : first[i + 1]])[:most_tokens])
            sizes.append(np.array([len(tokens[-1])]))
        number += len(first) - 1
    return Documents(unmask_ids(np.concatenate(tokens)), np.concatenate([[0], np.cumsum(np.concatenate(sizes))]))


def drop_spaces(documents: Documents) -> Documents:
    """Documents of bytes without blanks, tabs and ends of lines: copies differ in those alone (CRLF, indents)."""
    kept = ~np.isin(documents.tokens, list(b" \t\r\n"))
    return Documents(documents.tokens[kept], np.concatenate([[0], np.cumsum(kept)])[documents.offsets])


def find_shingles(documents: Documents, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(hash, number of the document) of the kept shingles, each pair once, sorted by hash."""
    ids = documents.tokens.astype(np.uint64)
    hashes, width = mix(ids + np.uint64(1)), 1
    while width < length and len(hashes) > width:
        hashes = mix(hashes[:-width] * MULTIPLY + hashes[width:])
        width *= 2
    starts = np.flatnonzero(hashes % np.uint64(SAMPLED) == 0)
    document = np.searchsorted(documents.offsets, starts, side="right") - 1
    inside = starts + length < documents.offsets[document + 1]
    hashes, document = hashes[starts[inside]], document[inside]
    order = np.lexsort((document, hashes))
    hashes, document = hashes[order], document[order]
    new = np.ones(len(hashes), bool)
    new[1:] = (hashes[1:] != hashes[:-1]) | (document[1:] != document[:-1])
    return hashes[new], document[new]


def mix(x: np.ndarray) -> np.ndarray:
    """Spread the bits of each number (uint64)."""
    x = (x ^ (x >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed: np.ndarray = x ^ (x >> np.uint64(29))
    return mixed


def drop_repeats(hashes: np.ndarray) -> np.ndarray:
    """Sort hashes and keep each once, as `numpy.unique` does by a table at eight times the cost."""
    hashes = np.sort(hashes)
    return hashes[np.concatenate([[True], hashes[1:] != hashes[:-1]])] if len(hashes) else hashes


def are_among(hashes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each hash is one of `known`, which `drop_repeats` has sorted."""
    if not len(known):
        return np.zeros(len(hashes), bool)
    is_known: np.ndarray = known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes
    return is_known


class Nearest(NamedTuple):
    """Of each document judged: its number, the nearest other one, the share of its shingles that stand there, and
    whether that makes it a copy, whole or near.
    """

    document: np.ndarray
    other: np.ndarray
    share: np.ndarray
    is_copy: np.ndarray


def find_nearest(
    queries: tuple[np.ndarray, np.ndarray],
    pool: tuple[np.ndarray, np.ndarray],
    long: int = LONG_BYTES,
    itself: bool = False,
) -> Nearest:
    """Find the document of `pool` that shares most shingles with each of `queries`; `itself`: they are the pool's.

    `long`: shingles from which a document may be a near copy. Shingles of more than COMMON documents of the pool do not
    count; documents with fewer than LEAST are left out.
    """
    hashes, owner = pool
    first, last = (np.searchsorted(hashes, queries[0], side=side) for side in ("left", "right"))
    counts = last - first
    special = counts <= COMMON
    query, first, counts = queries[1][special], first[special], counts[special]
    size = np.bincount(query, minlength=int(queries[1].max(initial=-1)) + 1)
    place = np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs = np.stack([np.repeat(query, counts), owner[place]])
    if itself:
        pairs = pairs[:, pairs[0] != pairs[1]]
    n_pool = int(owner.max(initial=0)) + 1
    keys, shared = np.unique(pairs[0] * n_pool + pairs[1], return_counts=True)
    best, other = np.zeros(len(size)), np.full(len(size), -1)
    order = np.argsort(shared, kind="stable")  # the last assignment, of the largest, stays
    best[keys[order] // n_pool], other[keys[order] // n_pool] = shared[order], keys[order] % n_pool
    judged = np.flatnonzero(size >= LEAST)
    share = best[judged] / size[judged]
    return Nearest(judged, other[judged], share, share >= np.where(size[judged] < long, 1.0, NEAR))
