"""The source and window at each row of the training stream: closed forms in the row, nothing stored.

Rows are cut into blocks. Up to the end of a block each source has its share of the rows, to within as many rows as
there are sources (nested floors of exact fractions); inside a block the seed shuffles them. A source's count before any
row, and with it the position in its epochs, is then a closed form. Published mixtures draw each sequence (GPT-3,
section 2.2) or balance greedily (Megatron-LM's blended data sets); this has the same shares with less noise than a
draw.
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

PATTERN_BLOCK = 1024  # rows of a block; an even power of two, for which `permute_positions` needs no second turn
# Most windows in use for which a capped source's numbers are cached (32 MB); else they are computed each time.
MAX_CACHED_WINDOWS = 2**22
# Streams of pseudo-random numbers; a source without companions uses (seed, epoch) alone.
NAMED, PATTERN, UNIQUE = 1, 2, 3


class WindowSource(NamedTuple):
    """Windows `first` to `first + n - 1`, of which the first `unique` in a fixed shuffle are in use."""

    name: str
    first: int
    n: int
    unique: int


def make_window_sources(sizes: Mapping[str, int], unique_tokens: str, seq_len: int) -> list[WindowSource]:
    """The sources of `{name: windows}`, numbered one after the other and capped by `data.unique_tokens`.

    The windows in use come first in a fixed shuffle of the source: U tokens are U // seq_len whole windows, and a
    smaller U is a subset of a larger one (at one seq_len). BadInput for an unknown name, a cap under one window or
    above the source.
    """
    caps = mixture_text.parse_unique_tokens(unique_tokens)
    _check_known_names("data.unique_tokens", [name for name in caps if name], sizes)
    if caps.get("", 0) // seq_len > max(sizes.values()):
        raise BadInput(
            f"data.unique_tokens={caps['']}: no source has as many tokens; the largest: {max(sizes.values()) * seq_len}"
        )
    sources, first = [], 0
    for name, n in sizes.items():
        cap = min(caps[""] // seq_len, n) if "" in caps else caps.get(name, n * seq_len) // seq_len
        if not 0 < cap <= n:
            good = min(max(cap, 1), n) * seq_len
            raise BadInput(
                f"data.unique_tokens: {name} holds {n} windows of seq_len={seq_len}, and {cap} are asked; "
                f"nearest: {name}={good}"
            )
        sources.append(WindowSource(name, first, n, cap))
        first += n
    return sorted(sources)  # sorted by name: the order of a listing does not matter


def mixture_stages(text: str, sources: Sequence[WindowSource]) -> list[tuple[int, list[Fraction]]]:
    """Read stages (step, share of each source) of `data.mixture`; "": by windows in use. BadInput: unknown name."""
    total = sum(source.unique for source in sources)
    if not (stages := mixture_text.parse_mixture(text)):
        return [(0, [Fraction(source.unique, total) for source in sources])]
    names = [source.name for source in sources]
    for stage in stages:
        _check_known_names("data.mixture", stage.shares, names)
    return [(stage.step, [stage.shares.get(name, Fraction(0)) for name in names]) for stage in stages]


def _check_known_names(
    key: str, asked: Sequence[str] | Mapping[str, object], names: Sequence[str] | Mapping[str, int]
) -> None:
    for name in asked:
        if name not in names:
            hint = nearest_hint(name, names)
            raise BadInput(f"{key}: no source is called {name!r}{hint}; there are: {', '.join(names)}")


class WindowStream:
    """The endless stream of training windows of `sources`, mixed by `stages` = (first row, shares) and `seed`.

    `earlier`: rows of each source before the first stage, as they were counted; none where it begins at row 0.
    """

    def __init__(
        self,
        sources: Sequence[WindowSource],
        stages: Sequence[tuple[int, list[Fraction]]],
        seed: int,
        earlier: Sequence[int] | None = None,
    ) -> None:
        self.sources, self.stages, self.seed = sources, stages, seed
        self.earlier = np.array(earlier or [0] * len(sources), np.int64)
        self.starts = np.array([row for row, _ in stages])
        self.rests = [_rests(weights) for _, weights in stages]
        self._block = functools.lru_cache(maxsize=64)(self._compute_block)

    def windows(self, rows: np.ndarray) -> np.ndarray:
        """The number of the window at each of `rows`, int64 like them."""
        which, places = self._places(rows)
        numbers = np.empty_like(places)
        for i, source in enumerate(self.sources):
            rows_of_source = which == i
            numbers[rows_of_source] = self._source_windows(source, places[rows_of_source])
        return numbers

    def _source_windows(self, source: WindowSource, places: np.ndarray) -> np.ndarray:
        """Windows at `places` of a source's stream of epochs, which depends on its name but not on its companions."""
        named = () if len(self.sources) == 1 else (NAMED, zlib.crc32(source.name.encode()))
        numbers = window_numbers(places, source.unique, self.seed, named)
        if source.unique < source.n:
            few = source.unique <= MAX_CACHED_WINDOWS
            numbers = _in_use(source)[numbers] if few else _shuffled(numbers, source)
        return source.first + numbers

    def before(self, row: int) -> list[int]:
        """Rows of each source among the first `row` rows."""
        counts = self.earlier.copy()
        for stage, (start, _) in enumerate(self.stages):
            end = self.stages[stage + 1][0] if stage + 1 < len(self.stages) else row
            n = min(end, row) - start
            if n > 0:
                block, inside = divmod(n, PATTERN_BLOCK)
                counts += _quotas(self.rests[stage], block * PATTERN_BLOCK)
                counts += np.bincount(self._block(stage, block)[0][:inside], minlength=len(counts))
        return counts.tolist()

    def _places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each row, and the number of rows of that source before it."""
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
        """(source, rows of that source before it) for each row of a block, int64 [PATTERN_BLOCK]."""
        start, weights = self.stages[stage]
        first, end = (_quotas(self.rests[stage], at * PATTERN_BLOCK) for at in (block, block + 1))
        shuffled = permute_positions(np.arange(PATTERN_BLOCK), PATTERN_BLOCK, (self.seed, block, PATTERN, stage))
        which = np.searchsorted(np.cumsum(end - first), shuffled, side="right")
        is_source = which[:, None] == np.arange(len(weights))
        earlier = np.array(self.before(start)) if stage else self.earlier
        ranks = earlier + first + np.cumsum(is_source, axis=0) - 1
        return which, ranks[np.arange(PATTERN_BLOCK), which]


def _shuffled(numbers: np.ndarray, source: WindowSource) -> np.ndarray:
    """Shuffle the source's windows in a fixed order, independent of the seed: runs at one cap use the same windows."""
    return permute_positions(numbers, source.n, (0, 0, UNIQUE, zlib.crc32(source.name.encode())))


@functools.lru_cache(maxsize=64)
def _in_use(source: WindowSource) -> np.ndarray:
    """The windows in use, int64 [unique]; cached because every epoch reads them."""
    return _shuffled(np.arange(source.unique), source)


def _rests(weights: Sequence[Fraction]) -> list[tuple[int, int]]:
    """Fractions (p, q), one a source: the later sources' part p / q of the rows of this and all later sources."""
    lefts = [sum(weights[i:], Fraction()) for i in range(len(weights) + 1)]
    ratios = [after / left if left else Fraction() for left, after in itertools.pairwise(lefts)]
    return [(ratio.numerator, ratio.denominator) for ratio in ratios]


def _quotas(rests: Sequence[tuple[int, int]], n: int) -> np.ndarray:
    """Each source's rows among the first n of a stage, int64; nested floors, so each count rises with n."""
    counts, left = [], n
    for p, q in rests:
        after = left * p // q
        counts.append(left - after)
        left = after
    return np.array(counts, np.int64)
