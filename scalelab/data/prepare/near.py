"""Documents that are nearly the same: MinHash signatures for `--dedup=near`, and n-grams of validation in training.

Signatures: Broder 1997, parameters as in Lee et al. 2022, app. A (5-grams), by datasketch (the extra `dedup`). Overlaps
need no library: a sample of the n-grams of the validation documents is looked for in all of the training text, as in
Brown et al. 2020, app. C (13-grams), in memory that does not grow with the corpus.
"""

import functools
from collections.abc import Iterable, Iterator
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
BLOCK = 2**18  # tokens that are read and hashed at once
_TABLE_BITS = np.uint64(2**23 - 1)  # a first look that leaves few to search for
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: odd, so that products spread over all bits

Text = tuple[Iterable[np.ndarray], np.ndarray]  # a unit's tokens by pieces [S], and its documents' offsets [D+1]


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
    """N-grams of validation documents: `hashes` [N], ordered, each once; the sample's have `shift` high zeros."""

    length: int
    shift: int
    hashes: np.ndarray

    def sampled(self, hashes: np.ndarray) -> np.ndarray:
        """Whether each hash is of the sample."""
        return hashes >> np.uint64(64 - self.shift) == 0 if self.shift else np.ones(len(hashes), bool)

    def of_documents(
        self, pieces: Iterable[np.ndarray], offsets: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(hashes [P], documents [P]) of the sample's n-grams in a text, by pieces; none spans two documents."""
        for place, tokens in windows(pieces, self.length):
            hashes = hash_ngrams(tokens, self.length)
            starts = np.flatnonzero(self.sampled(hashes))
            document = np.searchsorted(offsets, starts + place, "right") - 1
            within = starts + place + self.length <= offsets[document + 1]
            yield hashes[starts[within]], document[within]


def windows(pieces: Iterable[np.ndarray], length: int) -> Iterator[tuple[int, np.ndarray]]:
    """(place, tokens) of a text's pieces, each with the last tokens before it: every n-gram stands in one of them."""
    before, place = np.zeros(0, np.uint8), 0
    for piece in pieces:
        tokens = np.concatenate([before, piece]) if len(before) else piece
        yield place, tokens
        before = tokens[max(0, len(tokens) - length + 1) :]
        place += len(tokens) - len(before)


def choose_ngrams(texts: Iterable[Text], n_tokens: int, is_bytes: bool) -> Sought:
    """Choose the n-grams to look for of validation documents with `n_tokens` in all."""
    shift = max(0, n_tokens - 1).bit_length() - MOST_NGRAMS.bit_length() + 1
    sought = Sought(OVERLAP_BYTES if is_bytes else OVERLAP_TOKENS, max(0, shift), np.zeros(0, np.uint64))
    chosen, waiting, n_waiting = sought.hashes, [], 0
    for hashes, _ in (each for text in texts for each in sought.of_documents(*text)):
        waiting.append(np.unique(hashes))
        n_waiting += len(waiting[-1])
        if n_waiting >= BLOCK:
            chosen, waiting, n_waiting = np.unique(np.concatenate([chosen, *waiting])), [], 0
    return sought._replace(hashes=np.unique(np.concatenate([chosen, *waiting])))


def find_covered(sought: Sought, seen: np.ndarray, texts: Iterable[Text]) -> np.ndarray:
    """Whether OVERLAP_SHARE of each validation document's n-grams were `seen` [N]; False for one below FEWEST_NGRAMS.

    The documents are read again: which n-gram stands in which would take memory that grows with their tokens.
    """
    covered = [np.zeros(0, bool)]
    for pieces, offsets in texts:
        n_documents = len(offsets) - 1
        total, found = np.zeros(n_documents, np.int64), np.zeros(n_documents, np.int64)
        for hashes, documents in sought.of_documents(pieces, offsets):
            total += np.bincount(documents, minlength=n_documents)
            there = seen[np.searchsorted(sought.hashes, hashes)]
            found += np.bincount(documents[there], minlength=n_documents)
        covered.append((total >= FEWEST_NGRAMS) & (found >= OVERLAP_SHARE * total))
    return np.concatenate(covered)


def make_table(sought: Sought) -> tuple[Sought, np.ndarray]:
    """The n-grams with a table by their low bits."""
    table = np.zeros(int(_TABLE_BITS) + 1, bool)
    table[(sought.hashes & _TABLE_BITS).astype(np.int64)] = True
    return sought, table


def find_ngrams(pieces: Iterable[np.ndarray], state: tuple[Sought, np.ndarray]) -> np.ndarray:
    """Whether each n-gram [N] stands in the text of these pieces (tokens [S])."""
    sought, table = state
    seen = np.zeros(len(sought.hashes), bool)
    for _, tokens in windows(pieces, sought.length):
        hashes = hash_ngrams(tokens, sought.length)
        hashes = hashes[sought.sampled(hashes)]
        hashes = hashes[table[(hashes & _TABLE_BITS).astype(np.int64)]]
        places = np.minimum(np.searchsorted(sought.hashes, hashes), len(seen) - 1)
        seen[places[sought.hashes[places] == hashes]] = True
    return seen
