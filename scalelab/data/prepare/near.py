"""Documents that are nearly the same: MinHash signatures for `--dedup=near`, and n-grams of validation in training.

Signatures: Broder 1997, parameters as in Lee et al. 2022, app. A (5-grams), by datasketch (the extra `dedup`). Overlaps
need no library: a sample of the n-grams of the validation documents is looked for in all of the training text, as in
Brown et al. 2020, app. C (13-grams), in memory that does not grow with the corpus.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput

PERMUTATIONS = 128  # numbers of a signature: a standard error of 0.04 of the Jaccard similarity
NGRAM = 5  # tokens of a shingle
THRESHOLD = 0.8  # Jaccard similarity of the sets of shingles from which documents are near copies
SIGNATURE_TYPE = np.dtype("<u8")
SCHEME = "affine32"  # of the library's permutations
OVERLAP_TOKENS, OVERLAP_BYTES = 13, 50  # of an n-gram: of tokens, and of bytes where a token is one
OVERLAP_SHARE = 0.8  # of a document's n-grams: from here on it stands in the training text
FEWEST_NGRAMS = 8  # looked for, of a document that is judged
MOST_NGRAMS = 2**20  # looked for; of a larger validation set a sample by hash
BLOCK = 2**18  # tokens that are hashed at once
_TABLE_BITS = np.uint64(2**23 - 1)  # a first look that leaves few to search for
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


def hash_ngrams(ids: np.ndarray, length: int) -> np.ndarray:
    """64-bit hashes [S - length + 1] of the n-grams of tokens [S]; windows of twice the length are joined of two."""
    if len(ids) < length:
        return np.zeros(0, np.uint64)
    value, width = ids.astype(np.uint64) * _MIX, 1
    value ^= value >> np.uint64(29)
    while width < length:
        step = min(width, length - width)  # the last windows may share tokens
        value = (value[: len(value) - step] * _MIX) ^ value[step:]
        value *= _MIX
        value ^= value >> np.uint64(32)
        width += step
    return value


class Sought(NamedTuple):
    """N-grams of validation documents: `hashes` [N], ordered, each once; those of the sample have `shift` high zeros.

    `places` [P] and `documents` [P]: which n-gram stands in which document.
    """

    length: int
    shift: int
    hashes: np.ndarray
    places: np.ndarray
    documents: np.ndarray

    def sampled(self, hashes: np.ndarray) -> np.ndarray:
        """Whether each hash is of the sample."""
        return hashes >> np.uint64(64 - self.shift) == 0 if self.shift else np.ones(len(hashes), bool)

    def covered(self, seen: np.ndarray, n_documents: int) -> np.ndarray:
        """Whether OVERLAP_SHARE of each document's n-grams were `seen` [N]; False for one below FEWEST_NGRAMS."""
        total = np.bincount(self.documents, minlength=n_documents)
        found = np.bincount(self.documents, seen[self.places], n_documents)
        is_covered: np.ndarray = (total >= FEWEST_NGRAMS) & (found >= OVERLAP_SHARE * total)
        return is_covered


def choose_ngrams(texts: Iterator[tuple[np.ndarray, np.ndarray]], n_tokens: int, is_bytes: bool) -> Sought:
    """Choose the n-grams to look for of (tokens [S], offsets [D+1]) of validation documents with `n_tokens` in all."""
    length = OVERLAP_BYTES if is_bytes else OVERLAP_TOKENS
    shift = max(0, n_tokens - 1).bit_length() - MOST_NGRAMS.bit_length() + 1
    sought = Sought(length, max(0, shift), *(np.zeros(0, np.int64) for _ in range(3)))
    hashes, documents, before = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0
    for tokens, offsets in texts:
        every = hash_ngrams(tokens, length)
        starts = np.flatnonzero(sought.sampled(every))
        place = np.searchsorted(offsets, starts, "right") - 1
        within = starts + length <= offsets[place + 1]
        hashes.append(every[starts[within]])
        documents.append(place[within] + before)
        before += len(offsets) - 1
    unique, places = np.unique(np.concatenate(hashes), return_inverse=True)
    return sought._replace(hashes=unique, places=places, documents=np.concatenate(documents))


def make_table(sought: Sought) -> tuple[Sought, np.ndarray]:
    """The n-grams with a table by their low bits."""
    table = np.zeros(int(_TABLE_BITS) + 1, bool)
    table[(sought.hashes & _TABLE_BITS).astype(np.int64)] = True
    return sought, table


def find_ngrams(texts: Sequence[np.ndarray], state: tuple[Sought, np.ndarray]) -> np.ndarray:
    """Whether each n-gram [N] stands in one of the texts (tokens [S])."""
    sought, table = state
    seen = np.zeros(len(sought.hashes), bool)
    for tokens in texts:
        for start in range(0, len(tokens), BLOCK):
            hashes = hash_ngrams(tokens[start : start + BLOCK + sought.length - 1], sought.length)
            hashes = hashes[sought.sampled(hashes)]
            hashes = hashes[table[(hashes & _TABLE_BITS).astype(np.int64)]]
            places = np.minimum(np.searchsorted(sought.hashes, hashes), len(seen) - 1)
            seen[places[sought.hashes[places] == hashes]] = True
    return seen
