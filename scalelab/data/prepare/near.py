"""MinHash signatures of documents, for `--dedup=near` (Broder 1997; parameters as in Lee et al. 2022, app. A: 5-grams).

The library is datasketch (the extra `dedup`).
"""

import functools
from typing import Any

import numpy as np

from scalelab.errors import BadInput

PERMUTATIONS = 128  # numbers of a signature: a standard error of 0.04 of the Jaccard similarity
NGRAM = 5  # tokens of a shingle
THRESHOLD = 0.8  # Jaccard similarity of the sets of shingles from which documents are near copies
SIGNATURE_TYPE = np.dtype("<u8")
SCHEME = "affine32"  # of the library's permutations
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: odd, so that products spread over all bits


@functools.cache
def _library() -> Any:
    try:
        import datasketch  # an extra, which only --dedup=near needs
    except ModuleNotFoundError as error:
        raise BadInput(
            "--dedup=near needs the package datasketch: pip install 'scalelab[dedup]'; nearest: --dedup=exact"
        ) from error
    return datasketch


def check_library() -> None:
    """Raise BadInput without datasketch."""
    _library()


def _as_number(number: int) -> int:
    return number


@functools.cache
def _permutations() -> Any:
    """The library's permutations, made once: 128 pairs of numbers from its seed."""
    return _library().MinHash(PERMUTATIONS, scheme=SCHEME).permutations


def signature(ids: np.ndarray) -> np.ndarray:
    """The MinHash [PERMUTATIONS] of the set of 5-grams of a document's ids; a shorter document is one shingle."""
    sketch = _sketch()
    sketch.update_batch(_shingles(ids).tolist())
    values: np.ndarray = sketch.hashvalues.astype(SIGNATURE_TYPE)
    return values


def _shingles(ids: np.ndarray) -> np.ndarray:
    """32-bit hashes of the 5-grams, each once."""
    tokens = ids.astype(np.uint64)
    length = min(NGRAM, len(tokens))
    value = np.zeros(len(tokens) - length + 1, np.uint64)
    for i in range(length):
        value = (value ^ tokens[i : len(tokens) - length + 1 + i]) * _MIX
        value ^= value >> np.uint64(29)
    return np.unique(value >> np.uint64(32))


def _sketch(values: np.ndarray | None = None) -> Any:
    """The library's object for a signature; an empty one without `values`."""
    if values is None:
        return _library().MinHash(PERMUTATIONS, hashfunc=_as_number, permutations=_permutations(), scheme=SCHEME)
    return _library().MinHash(hashvalues=values, permutations=_permutations(), scheme=SCHEME)


class NearIndex:
    """Documents by their signatures; finds an earlier one that is nearly the same."""

    def __init__(self) -> None:
        self._index = _library().MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS)
        self._values: list[np.ndarray] = []

    def find(self, values: np.ndarray) -> int | None:
        """The first added document whose estimated similarity is at least THRESHOLD; None without one."""
        candidates = self._index.query(_sketch(values))
        return min((i for i in candidates if np.mean(self._values[i] == values) >= THRESHOLD), default=None)

    def add(self, values: np.ndarray) -> None:
        """Add a document."""
        self._index.insert(len(self._values), _sketch(values), check_duplication=False)
        self._values.append(values)
