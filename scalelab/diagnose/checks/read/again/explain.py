"""Explain batches that are not those due, by their digests: other places of the stream, the corpus's own order.

A digest is the sum of its rows' hashes, so the digest of any B rows in a row is a difference of two running sums.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from scalelab.data.batches.batches import NO_WINDOW
from scalelab.diagnose.checks.read.again.batches import MOST_TOKENS, Stretch, hash_rows, present

AHEAD = 256  # batches after the run's end that a cursor may have jumped to
SHARE = 0.5  # of the batches that differ, which an explanation must place


class Places:
    """Where each digest of `size` rows in a row begins, in a sequence of row hashes."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes.astype(np.uint64))])
        self.by_size: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def find(self, digest: float, size: int) -> int | None:
        """The first place at which `size` rows have this digest; None: there is none."""
        if size < 1 or size >= len(self.sums):
            return None
        if size not in self.by_size:
            digests = (self.sums[size:] - self.sums[:-size]) & np.uint64(0xFFFFFFFF)
            order = np.argsort(digests, kind="stable")
            self.by_size[size] = digests[order], order
        digests, order = self.by_size[size]
        at = int(np.searchsorted(digests, np.uint64(digest)))
        return int(order[at]) if at < len(digests) and digests[at] == np.uint64(digest) else None


def find_elsewhere(stretch: Stretch, different: np.ndarray, digests: np.ndarray) -> list[tuple[int, int]]:
    """(step, the step whose rows it read) of the `different` ones [n] (bool) that read rows due at other steps.

    Steps are counted from 0; [] unless at least SHARE of them did. Only for a stretch that was read again whole.
    """
    steps, sizes, digests = stretch.steps, *_present_digests(stretch, digests)
    if len(steps) < 2 or steps[-1] - steps[0] != len(steps) - 1:
        return []
    ahead = [stretch.batches.window_numbers(int(steps[-1]) + 1 + i) for i in range(min(AHEAD, len(steps)))]
    ahead_rows = stretch.batches.windows.read(np.concatenate(ahead))
    rows = np.concatenate([hash_rows(stretch.due)[present(stretch.numbers)], hash_rows(ahead_rows)])
    begins = np.concatenate([[0], np.cumsum(sizes)])
    begins = np.concatenate([begins[:-1], begins[-1] + stretch.numbers.shape[1] * np.arange(len(ahead))])
    places, pairs = Places(rows), []
    for i in np.flatnonzero(different):
        place = places.find(digests[i], int(sizes[i]))
        if place is not None:
            source = int(steps[0]) + int(np.searchsorted(begins, place, side="right")) - 1
            pairs.append((int(steps[i]), source))
    return pairs if len(pairs) >= SHARE * different.sum() else []


def _present_digests(stretch: Stretch, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(number of rows with a window, their digest) of each step."""
    absent = (~present(stretch.numbers)).sum(axis=1)
    hashed = int(hash_rows(np.full((1, stretch.due.shape[2]), NO_WINDOW))[0])
    return stretch.numbers.shape[1] - absent, (digests - absent * hashed) % 2**32


def are_windows(stretch: Stretch, different: np.ndarray) -> float:
    """The share of the rows that differ which are windows of the data, as far as these were hashed."""
    rows = stretch.read[different][present(stretch.numbers[different])]
    return float(np.mean(np.isin(hash_rows(rows), _window_hashes(stretch))))


def _window_hashes(stretch: Stretch) -> np.ndarray:
    n = min(len(stretch.batches.windows), MOST_TOKENS // stretch.due.shape[2])
    return hash_rows(stretch.batches.windows[np.arange(n)])


def reads_corpus_in_order(stretch: Stretch, different: np.ndarray, digests: np.ndarray) -> bool:
    """Whether most batches that differ hold windows in the order of the corpus."""
    hashes = _window_hashes(stretch)
    places = Places(np.concatenate([hashes, hashes]))  # an epoch follows the one before
    sizes, digests = _present_digests(stretch, digests)
    at = [places.find(digests[i], int(sizes[i])) for i in np.flatnonzero(different)]
    return count(at) >= max(2, SHARE * len(at))


def count(places: Iterable[Any]) -> int:
    """How many places there are."""
    return sum(place is not None for place in places)
