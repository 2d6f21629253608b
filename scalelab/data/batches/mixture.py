"""Which window of which source stands at each row of the training stream: closed forms in the row, nothing stored.

Rows are cut into blocks. Of the rows up to a block's end each source has its share, to within as many rows as there are
sources (nested floors of exact fractions); inside a block they stand in an order shuffled by the seed. So the count of a source before any
row is known at once, and with it the place in the source's own epochs. Published mixtures draw each sequence (GPT-3,
section 2.2) or balance them greedily (Megatron-LM's blended data sets); this has the shares of both with less noise than a draw.
"""

import functools
import itertools
import zlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from scalelab.config import mixture_text
from scalelab.data.batches.order import permute_positions, window_numbers
from scalelab.errors import BadInput, nearest_hint

PATTERN_BLOCK = 1024  # rows; an even power of two, which `permute` needs no second try for
MAX_CACHED_WINDOWS = (
    2**22
)  # windows in use of a capped source whose numbers are kept, 32 MB; of more they are computed anew
# Streams of pseudo-random numbers beside (seed, epoch), which is that of a source that stands alone.
NAMED, PATTERN, UNIQUE = 1, 2, 3


class WindowSource(NamedTuple):
    """Windows `first` to `first + n - 1` of all; of them the first `unique` of a fixed shuffle are in use."""

    name: str
    first: int
    n: int
    unique: int


def make_window_sources(sizes: Mapping[str, int], unique_tokens: str, seq_len: int) -> list[WindowSource]:
    """The sources with `{name: windows}`, numbered one after the other, capped as `data.unique_tokens` says.

    The windows in use are those that stand first in one fixed shuffle of the source: U tokens are U // seq_len whole windows,
    and a smaller U is a part of a larger one (of one seq_len). BadInput for an unknown name, a cap under one window or
    above what there is.
    """
    caps = mixture_text.parse_unique_tokens(unique_tokens)
    _check_known_names("data.unique_tokens", [name for name in caps if name], sizes)
    if caps.get("", 0) // seq_len > max(sizes.values()):
        raise BadInput(
            f"data.unique_tokens={caps['']}: no source has as many tokens; the largest: {max(sizes.values()) * seq_len}"
        )
    found, first = [], 0
    for name, n in sizes.items():
        cap = min(caps[""] // seq_len, n) if "" in caps else caps.get(name, n * seq_len) // seq_len
        if not 0 < cap <= n:
            good = min(max(cap, 1), n) * seq_len
            raise BadInput(
                f"data.unique_tokens: {name} holds {n} windows of seq_len={seq_len}, and {cap} are asked; nearest: {name}={good}"
            )
        found.append(WindowSource(name, first, n, cap))
        first += n
    return sorted(found)  # by name: the order of a listing is no matter


def mixture_stages(text: str, found: Sequence[WindowSource]) -> list[tuple[int, list[Fraction]]]:
    """(step, share of each source) of `data.mixture`; of "" the shares are those of the windows in use. BadInput: unknown name."""
    total = sum(source.unique for source in found)
    if not (said := mixture_text.parse_mixture(text)):
        return [(0, [Fraction(source.unique, total) for source in found])]
    names = [source.name for source in found]
    for stage in said:
        _check_known_names("data.mixture", stage.shares, names)
    return [(stage.step, [stage.shares.get(name, Fraction(0)) for name in names]) for stage in said]


def _check_known_names(
    key: str, asked: Sequence[str] | Mapping[str, object], names: Sequence[str] | Mapping[str, int]
) -> None:
    for name in asked:
        if name not in names:
            raise BadInput(
                f"{key}: no source is called {name!r}{nearest_hint(name, names)}; there are: {', '.join(names)}"
            )


class WindowStream:
    """The endless stream of training windows of some `make_window_sources`, mixed in `mixture_stages` = (first row, share of each), by `seed`."""

    def __init__(self, found: Sequence[WindowSource], stages: Sequence[tuple[int, list[Fraction]]], seed: int) -> None:
        self.sources, self.stages, self.seed = found, stages, seed
        self.starts = np.array([row for row, _ in stages])
        self.rests = [_rests(weights) for _, weights in stages]
        self._block = functools.lru_cache(maxsize=64)(self._compute_block)

    def windows(self, rows: np.ndarray) -> np.ndarray:
        """The number of the window at each of `rows`, int64 like them."""
        which, places = self._places(rows)
        found = np.empty_like(places)
        for i, source in enumerate(self.sources):
            here = which == i
            found[here] = self._own(source, places[here])
        return found

    def _own(self, source: WindowSource, places: np.ndarray) -> np.ndarray:
        """Of its own stream of epochs; that of a source in a mixture depends on its name and not on its companions."""
        named = () if len(self.sources) == 1 else (NAMED, zlib.crc32(source.name.encode()))
        numbers = window_numbers(places, source.unique, self.seed, named)
        if source.unique < source.n:
            few = source.unique <= MAX_CACHED_WINDOWS
            numbers = _in_use(source)[numbers] if few else _shuffled(numbers, source)
        return source.first + numbers

    def before(self, row: int) -> list[int]:
        """How many of the first `row` rows each source has."""
        counts = np.zeros(len(self.sources), np.int64)
        for stage, (start, _) in enumerate(self.stages):
            end = self.stages[stage + 1][0] if stage + 1 < len(self.stages) else row
            n = min(end, row) - start
            if n > 0:
                block, inside = divmod(n, PATTERN_BLOCK)
                counts += _quotas(self.rests[stage], block * PATTERN_BLOCK)
                counts += np.bincount(self._block(stage, block)[0][:inside], minlength=len(counts))
        return counts.tolist()

    def _places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each row, and how many rows before it are of that source."""
        if len(self.sources) == 1:
            return np.zeros(rows.shape, np.int64), rows
        which, places = np.empty_like(rows), np.empty_like(rows)
        stage_of = np.searchsorted(self.starts, rows, side="right") - 1
        block_of, inside = np.divmod(rows - self.starts[stage_of], PATTERN_BLOCK)
        for stage in np.unique(stage_of).tolist():
            for block in np.unique(block_of[stage_of == stage]).tolist():
                here = (stage_of == stage) & (block_of == block)
                sources, ranks = self._block(stage, block)
                which[here], places[here] = sources[inside[here]], ranks[inside[here]]
        return which, places

    def _compute_block(self, stage: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, rows of that source before it) of each row of a block, int64 [BLOCK]."""
        start, weights = self.stages[stage]
        first, end = (_quotas(self.rests[stage], at * PATTERN_BLOCK) for at in (block, block + 1))
        shuffled = permute_positions(np.arange(PATTERN_BLOCK), PATTERN_BLOCK, (self.seed, block, PATTERN, stage))
        which = np.searchsorted(np.cumsum(end - first), shuffled, side="right")
        each = which[:, None] == np.arange(len(weights))
        earlier = np.array(self.before(start)) if start else np.zeros(len(weights), np.int64)
        ranks = earlier + first + np.cumsum(each, axis=0) - 1
        return which, ranks[np.arange(PATTERN_BLOCK), which]


def _shuffled(numbers: np.ndarray, source: WindowSource) -> np.ndarray:
    """Where the source's one fixed shuffle has its windows: of any seed, so that runs at one cap see the same ones."""
    return permute_positions(numbers, source.n, (0, 0, UNIQUE, zlib.crc32(source.name.encode())))


@functools.lru_cache(maxsize=64)
def _in_use(source: WindowSource) -> np.ndarray:
    """All of them that are in use, int64 [unique]: epochs read them again and again."""
    return _shuffled(np.arange(source.unique), source)


def _rests(weights: Sequence[Fraction]) -> list[tuple[int, int]]:
    """For each source (p, q): of the rows that it and those after it have, p / q are of those after it."""
    lefts = [sum(weights[i:], Fraction()) for i in range(len(weights) + 1)]
    ratios = [after / left if left else Fraction() for left, after in itertools.pairwise(lefts)]
    return [(ratio.numerator, ratio.denominator) for ratio in ratios]


def _quotas(rests: Sequence[tuple[int, int]], n: int) -> np.ndarray:
    """Each source's rows among the first n of a stage, int64. Rising in n for each, as nested floors are."""
    counts, left = [], n
    for p, q in rests:
        after = left * p // q
        counts.append(left - after)
        left = after
    return np.array(counts, np.int64)
