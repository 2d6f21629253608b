"""Batch = f(seed, step): random access into shuffled windows, the same for any number of hosts.

A step reads the windows after those of earlier steps, also where their batches were smaller (`config.batch_ramp`), or
the run goes on under another batch (`Begin`): then the counted position replaces the steps before.

A window is seq_len + 1 consecutive tokens of the stream of documents. Windows start every seq_len tokens, so each token
except a shard's first is predicted once an epoch (neighbours share one token, a target of one and an input of the
other). Windows cross document boundaries but not shards; the rest of a shard, less than one window, is not used.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from scalelab.config.steps import batch_ramp as ramp_lib
from scalelab.data.batches.mixture import WindowSource, WindowStream, make_window_sources, mixture_stages
from scalelab.data.dataset import Dataset, DatasetPart
from scalelab.data.shards import Split
from scalelab.errors import BadInput

RowIndex = slice | np.ndarray  # rows of a batch: a range or indices
ALL_ROWS = slice(None)
NO_WINDOW = -1  # number and tokens of an absent window: nothing is read or predicted
ORDER_BLOCK = 4096  # windows whose order is computed at once; a small batch by itself would be mostly overhead


class Windows:
    """The windows of `{source: split}`, one after the other: `windows[numbers]` -> int32 [len(numbers), seq_len + 1].

    `len(windows)` counts all, `sizes` those of each source; a source without shards in this split is left out.
    """

    def __init__(self, splits: Mapping[str, Split], seq_len: int, kind: str) -> None:
        if seq_len < 1:
            raise BadInput(f"seq_len={seq_len} is not a length; at least 1")
        view = np.lib.stride_tricks.sliding_window_view
        self.views: list[np.ndarray] = []  # [n, seq_len + 1], no copy
        self.sizes: dict[str, int] = {}
        for name, split in splits.items():
            if not split.shards:
                continue
            views = [view(np.asarray(s), seq_len + 1)[::seq_len] for s in split.shards if len(s) > seq_len]
            if not views:
                longest = max(map(len, split.shards), default=0)
                raise BadInput(
                    f"{name}: the {kind} data hold {longest} tokens, a window of seq_len={seq_len} needs {seq_len + 1}"
                )
            self.views += views
            self.sizes[name] = sum(map(len, views))
        self.ends = np.cumsum([len(v) for v in self.views])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        if len(self.views) == 1:
            return self.views[0][numbers].astype(np.int32)
        rows = np.empty((len(numbers), self.views[0].shape[1]), np.int32)
        shard_of = np.searchsorted(self.ends, numbers, side="right")
        for shard in np.unique(shard_of):
            here = shard_of == shard
            # Negative indices count back from the shard's last window.
            rows[here] = self.views[shard][numbers[here] - self.ends[shard]]
        return rows

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Like indexing, but `numbers` may hold NO_WINDOW: such a row is not read and is all NO_WINDOW."""
        is_window = numbers != NO_WINDOW
        if is_window.all():
            return self[numbers]
        rows = np.full((len(numbers), self.views[0].shape[1]), NO_WINDOW, np.int32)
        rows[is_window] = self[numbers[is_window]]
        return rows


class Begin(NamedTuple):
    """A run's continuation under another batch, length or mixture: next step, its batch's number and first row.

    `by_source`: rows of each source before, {} where nobody counted them; `earlier`: the batches before.
    """

    step: int = 0
    batch: int = 0
    row: int = 0
    by_source: Mapping[str, int] = MappingProxyType({})
    earlier: "TrainBatches | None" = None

    def rows_at(self, global_batch: int, accumulate: int, ramp: tuple[int, ...]) -> int:
        """Rows that batches of this size would have used before this one."""
        return int(_rows_before(np.array(self.batch, np.int64), global_batch, accumulate, ramp))


BEGINNING = Begin()


class BatchOrder:
    """A Grain data source whose record `step` holds the window numbers of that global batch, int64 [global_batch].

    Row r belongs to micro-batch r % accumulate; it is NO_WINDOW in steps without that micro-batch. Batches
    before `begin` were another order's.
    """

    def __init__(
        self,
        stream: WindowStream,
        global_batch: int,
        accumulate: int,
        ramp: tuple[int, ...],
        begin: "Begin | None" = None,
    ) -> None:
        self.stream, self.global_batch = stream, global_batch
        self.accumulate, self.ramp, self.begin = accumulate, ramp, begin or BEGINNING
        self.block_steps = max(1, ORDER_BLOCK // global_batch)
        self._block = functools.lru_cache(maxsize=2)(self._compute_block)

    def __len__(self) -> int:
        return 2**62 // self.global_batch  # the stream of epochs is endless; positions must fit int64

    def __getitem__(self, step: Any) -> np.ndarray:
        block, inside = divmod(int(step), self.block_steps)
        return self._block(block)[inside]

    def _compute_block(self, block: int) -> np.ndarray:
        steps = np.arange(block * self.block_steps, (block + 1) * self.block_steps)[:, None]
        n_micro = ramp_lib.micro_batches_per_step(self.ramp, self.accumulate, steps)
        first = np.maximum(self.rows_before(steps), self.begin.row)
        row, part = np.divmod(np.arange(self.global_batch), self.accumulate)
        numbers = np.full((self.block_steps, self.global_batch), NO_WINDOW)
        # Used rows follow the order of the stream.
        numbers[part < n_micro] = self.stream.windows((first + row * n_micro + part)[part < n_micro])
        return numbers

    def rows_before(self, steps: np.ndarray) -> np.ndarray:
        """Rows of the stream before each of `steps`, int64 like them."""
        size = self.global_batch, self.accumulate, self.ramp
        return _rows_before(steps, *size) + (self.begin.row - self.begin.rows_at(*size))


def _rows_before(steps: np.ndarray, global_batch: int, accumulate: int, ramp: tuple[int, ...]) -> np.ndarray:
    """Number of rows used before each of `steps`, int64 like them."""
    return ramp_lib.micro_batches_before(ramp, accumulate, steps) * (global_batch // accumulate)


class TrainBatches:
    """Training batches by step; see `train_batches`. Batches before `begin` belong to the stretches noted in it."""

    def __init__(self, windows: Windows, order: BatchOrder, begin: Begin = BEGINNING) -> None:
        self.windows, self.global_batch = windows, order.global_batch
        self._order, self.begin = order, begin
        self._reader = functools.lru_cache(maxsize=8)(self._make_reader)

    def seen(self, step: int) -> dict[str, tuple[int, float]]:
        """{source: (tokens predicted, epochs)} before `step`; an epoch is all windows in use of a source."""
        if self.begin.earlier and step < self.begin.step:
            return self.begin.earlier.seen(step)
        stream, seq_len = self._order.stream, self.windows.views[0].shape[1] - 1
        rows = self.rows_by_source(step + self.begin.batch - self.begin.step).values()
        return {s.name: (n * seq_len, n / s.unique) for s, n in zip(stream.sources, rows, strict=True)}

    def rows_by_source(self, number: int) -> dict[str, int]:
        """{source: sequences of it in the stream before batch `number`}, in the present order."""
        stream = self._order.stream
        rows = stream.before(int(self._order.rows_before(np.array(number, np.int64))))
        return {source.name: n for source, n in zip(stream.sources, rows, strict=True)}

    def at(self, number: int) -> "TrainBatches":
        """The batches of the stretch that reads batch `number`."""
        earlier = self.begin.earlier
        return self if earlier is None or number >= self.begin.batch else earlier.at(number)

    @property
    def unique_tokens(self) -> dict[str, int]:
        """{source: tokens predicted in one epoch}."""
        seq_len = self.windows.views[0].shape[1] - 1
        return {source.name: source.unique * seq_len for source in self._order.stream.sources}

    def window_numbers(self, step: int) -> np.ndarray:
        """The window of each row of global batch `step`, int64 [global_batch]; NO_WINDOW in a row without one."""
        numbers: np.ndarray = self.at(step)._order[step]
        return numbers

    def batch(self, step: int, rows: RowIndex = ALL_ROWS) -> np.ndarray:
        """These rows (default all) of global batch `step` >= 0, int32 [rows, seq_len + 1].

        Inputs are [:, :-1], targets [:, 1:].
        """
        return self.at(step).chunk(step, 1, rows)[0]

    def chunk(self, step: int, k: int, rows: RowIndex = ALL_ROWS) -> np.ndarray:
        """Batches `step` to `step + k - 1`, int32 [k, rows, seq_len + 1], for k steps in one dispatch.

        Only `rows` are read.
        """
        return self.numbered(range(step, step + k), rows)

    def numbered(self, batches: Sequence[int], rows: RowIndex = ALL_ROWS) -> np.ndarray:
        """The batches of these numbers, int32 [k, rows, seq_len + 1]: other numbers than steps where some are skipped.

        Only `rows` are read.
        """
        read = self._reader(self._key(rows))
        numbers = np.stack([read(i) for i in batches])
        # Read at once: small batches over many shards, read one by one, cost half as much again.
        return self.windows.read(numbers.ravel()).reshape(*numbers.shape, -1)

    def _key(self, rows: RowIndex) -> tuple[int, ...]:
        return tuple(np.arange(self.global_batch)[rows].tolist())

    def _make_reader(self, key: tuple[int, ...]) -> Callable[[int], np.ndarray]:
        """Step -> window numbers, by a Grain MapDataset of one record a step: Grain's cost grows with steps, not rows.

        Where Grain is not installed, the records are read without it: the same numbers.
        """
        rows = np.array(key)
        try:
            import grain
        except ModuleNotFoundError as error:
            if error.name != "grain":
                raise
            return lambda step: self._order[step][rows]
        return grain.MapDataset.source(self._order).map(lambda numbers: numbers[rows]).__getitem__


def train_batches(
    dataset: Dataset,
    seq_len: int,
    global_batch: int,
    seed: int,
    accumulate: int = 1,
    ramp: tuple[int, ...] = (),
    mixture: str = "",
    unique_tokens: str = "",
    begin: Begin | None = None,
) -> TrainBatches:
    """Batches of the training split in the order of `seed`; each epoch of a source is a new permutation of its windows.

    `mixture` and `unique_tokens` (as in configs/base.py) mix and cap the sources. `ramp` limits how many of the
    `accumulate` micro-batches a step uses; rows of the others are all NO_WINDOW. A host calls `batch(step, rows)` for
    the rows of its devices; the global batch doesn't depend on the number of hosts. `begin`: the place where the run
    goes on after other batches. Raises BadInput for a split shorter than one window, an empty batch or a negative seed,
    and where `mixture` or `unique_tokens` don't fit the sources.
    """
    if global_batch < 1:
        raise BadInput(f"global_batch={global_batch} is not a batch; at least 1")
    if seed < 0:
        raise BadInput(f"seed={seed} is negative; 0 or more")
    windows = Windows({part.name: part.train for part in dataset.parts}, seq_len, "training")
    sources = make_window_sources(windows.sizes, unique_tokens, seq_len)
    begin, size = begin or BEGINNING, (global_batch, accumulate, ramp)
    stages = mixture_stages(mixture, sources)
    underway = max(step for step, _ in stages if step <= begin.batch)
    steps = {max(step, begin.batch): shares for step, shares in stages if step >= underway}
    rows = [
        (begin.row + int(_rows_before(np.array(step, np.int64), *size)) - begin.rows_at(*size), shares)
        for step, shares in steps.items()
    ]
    stream = WindowStream(sources, rows, seed, _counted_rows(begin, sources))
    return TrainBatches(windows, BatchOrder(stream, *size, begin), begin)


def _counted_rows(begin: Begin, sources: Sequence[WindowSource]) -> list[int]:
    """Rows of each source before `begin`: counted there, or else in the batches before it."""
    if len(sources) == 1:
        return [begin.row]
    counted = begin.by_source or (begin.earlier.rows_by_source(begin.batch) if begin.earlier else {})
    return [counted.get(source.name, 0) for source in sources]


def val_batches(
    part: DatasetPart, seq_len: int, batch_size: int, n_batches: int, rows: RowIndex = ALL_ROWS
) -> np.ndarray:
    """A source's fixed validation set, int32 [n, batch_size, seq_len + 1], n <= n_batches: evenly spaced windows.

    It depends only on the data and the three numbers, so every run, seed and host scores the same tokens; of each batch
    only `rows` are read. A split with fewer windows gives only full batches; if it can't fill one, the other rows of
    that batch are NO_WINDOW. Raises BadInput for a split shorter than one window.
    """
    if batch_size < 1 or n_batches < 1:
        raise BadInput(f"{n_batches} validation batches of {batch_size} sequences score nothing; at least 1 of 1")
    windows = Windows({part.name: part.val}, seq_len, "validation")
    n = max(1, min(n_batches, len(windows) // batch_size))
    wanted = min(n * batch_size, len(windows))
    numbers = np.full(n * batch_size, NO_WINDOW)
    # The middle of each of `wanted` parts.
    numbers[:wanted] = (2 * np.arange(wanted) + 1) * len(windows) // (2 * wanted)
    host_numbers = numbers.reshape(n, batch_size)[:, rows]
    return windows.read(host_numbers.ravel()).reshape(*host_numbers.shape, -1)
