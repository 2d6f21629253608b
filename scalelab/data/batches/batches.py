"""Batch = f(seed, step): random access into shuffled windows, the same for any number of hosts.

A step reads the windows that follow those of the steps before it, also where the batch was smaller then (`ramp`).

A window is seq_len + 1 consecutive tokens of the stream of documents; windows start every seq_len tokens, so each token but a
shard's first is predicted once an epoch (the one shared token is a target here and an input there). Windows cross document
boundaries and don't cross shards; what is left at a shard's end, under one window, is not used.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.config import batch_ramp as ramp_lib
from scalelab.data.batches.mixture import WindowStream, make_window_sources, mixture_stages
from scalelab.data.batches.shards import Split
from scalelab.data.dataset import Dataset, DatasetPart
from scalelab.errors import BadInput

RowIndex = slice | np.ndarray  # of a batch: a range or indices
ALL_ROWS = slice(None)
NO_WINDOW = -1  # in place of a window's number, and in its tokens: nothing is read, nothing predicted
ORDER_BLOCK = 4096  # windows whose order is computed at once: one small batch alone would be all overhead


class Windows:
    """The windows of `{source: split}`, one after the other: `windows[numbers]` -> int32 [len(numbers), seq_len + 1].

    There are `len(windows)`; `sizes` says how many of each source.
    """

    def __init__(self, splits: Mapping[str, Split], seq_len: int, kind: str) -> None:
        if seq_len < 1:
            raise BadInput(f"seq_len={seq_len} is not a length; at least 1")
        view = np.lib.stride_tricks.sliding_window_view
        self.views: list[np.ndarray] = []  # [n, seq_len + 1], no copy
        self.sizes: dict[str, int] = {}
        for name, split in splits.items():
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
            # Counted back from the shard's last window.
            rows[here] = self.views[shard][numbers[here] - self.ends[shard]]
        return rows

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """The same where some of `numbers` may be NONE: nothing is read there, and the row is NONE throughout."""
        taken = numbers != NO_WINDOW
        if taken.all():
            return self[numbers]
        found = np.full((len(numbers), self.views[0].shape[1]), NO_WINDOW, np.int32)
        found[taken] = self[numbers[taken]]
        return found


class BatchOrder:
    """A Grain data source whose record `step` is the window numbers of that global batch, int64 [global_batch].

    Row r is of micro-batch r % accumulate; in the steps that don't take it, it is NONE.
    """

    def __init__(self, stream: WindowStream, global_batch: int, accumulate: int, ramp: tuple[int, ...]) -> None:
        self.stream, self.global_batch = stream, global_batch
        self.accumulate, self.ramp = accumulate, ramp
        self.block_steps = max(1, ORDER_BLOCK // global_batch)
        self._block = functools.lru_cache(maxsize=2)(self._compute_block)

    def __len__(self) -> int:
        return 2**62 // self.global_batch  # the stream of epochs has no end; positions must fit int64

    def __getitem__(self, step: Any) -> np.ndarray:
        block, inside = divmod(int(step), self.block_steps)
        return self._block(block)[inside]

    def _compute_block(self, block: int) -> np.ndarray:
        steps = np.arange(block * self.block_steps, (block + 1) * self.block_steps)[:, None]
        taken = ramp_lib.micro_batches_per_step(self.ramp, self.accumulate, steps)
        first = _rows_before(steps, self.global_batch, self.accumulate, self.ramp)
        row, part = np.divmod(np.arange(self.global_batch), self.accumulate)
        numbers = np.full((self.block_steps, self.global_batch), NO_WINDOW)
        # The rows that are taken stand in the order of the stream.
        numbers[part < taken] = self.stream.windows((first + row * taken + part)[part < taken])
        return numbers


def _rows_before(steps: np.ndarray, global_batch: int, accumulate: int, ramp: tuple[int, ...]) -> np.ndarray:
    """How many rows the steps before each of `steps` take, int64 like them."""
    return ramp_lib.micro_batches_before(ramp, accumulate, steps) * (global_batch // accumulate)


class TrainBatches:
    """Training batches by step; see `train_batches`."""

    def __init__(self, windows: Windows, order: BatchOrder) -> None:
        self.windows, self.global_batch = windows, order.global_batch
        self._order = order
        self._reader = functools.lru_cache(maxsize=8)(self._make_reader)

    def seen(self, step: int) -> dict[str, tuple[int, float]]:
        """{source: (tokens predicted, epochs)} of the steps before `step`; an epoch is all windows of it that are in use."""
        order, seq_len = self._order, self.windows.views[0].shape[1] - 1
        rows = order.stream.before(
            int(_rows_before(np.array(step, np.int64), order.global_batch, order.accumulate, order.ramp))
        )
        return {s.name: (n * seq_len, n / s.unique) for s, n in zip(order.stream.sources, rows, strict=True)}

    @property
    def unique_tokens(self) -> dict[str, int]:
        """Of each source, how many tokens an epoch predicts."""
        seq_len = self.windows.views[0].shape[1] - 1
        return {source.name: source.unique * seq_len for source in self._order.stream.sources}

    def batch(self, step: int, rows: RowIndex = ALL_ROWS) -> np.ndarray:
        """int32 [rows, seq_len + 1]: these rows (default all) of global batch `step` >= 0; inputs [:, :-1], targets [:, 1:]."""
        return self.chunk(step, 1, rows)[0]

    def chunk(self, step: int, k: int, rows: RowIndex = ALL_ROWS) -> np.ndarray:
        """int32 [k, rows, seq_len + 1]: batches `step` to `step + k - 1`, for k steps in one dispatch. No other row is read."""
        reader = self._reader(self._key(rows))
        numbers = np.stack([reader[i] for i in range(step, step + k)])
        # All at once: of small batches over many shards each by itself costs half as much again.
        return self.windows.read(numbers.ravel()).reshape(*numbers.shape, -1)

    def _key(self, rows: RowIndex) -> tuple[int, ...]:
        return tuple(np.arange(self.global_batch)[rows].tolist())

    def _make_reader(self, key: tuple[int, ...]) -> Any:
        """A Grain MapDataset of the windows' numbers, one record a step: Grain's cost is one of steps, not of rows."""
        import grain

        rows = np.array(key)
        return grain.MapDataset.source(self._order).map(lambda numbers: numbers[rows])


def train_batches(
    dataset: Dataset, seq_len: int, global_batch: int, seed: int, accumulate: int = 1, ramp: tuple[int, ...] = (),
    mixture: str = "", unique_tokens: str = "",
) -> TrainBatches:  # fmt: skip
    """Batches of the training split in the order of `seed`: each epoch of a source a new permutation of its windows.

    Sources are mixed as `mixture` says and capped as `unique_tokens` does (both as in configs/base.py). Of a batch's `accumulate` micro-batches a step takes as many as `ramp` says; rows of the others are all -1.

    A host takes `batch(step, rows)` of the rows that its devices hold; the global batch doesn't depend on the number of hosts.
    Raises BadInput for a split shorter than one window, an empty batch or a negative seed, and where `mixture` or
    `unique_tokens` don't fit the sources.
    """
    if global_batch < 1:
        raise BadInput(f"global_batch={global_batch} is not a batch; at least 1")
    if seed < 0:
        raise BadInput(f"seed={seed} is negative; 0 or more")
    windows = Windows({part.name: part.train for part in dataset.parts}, seq_len, "training")
    found = make_window_sources(windows.sizes, unique_tokens, seq_len)
    begin = [
        (int(_rows_before(np.array(step, np.int64), global_batch, accumulate, ramp)), each)
        for step, each in mixture_stages(mixture, found)
    ]
    return TrainBatches(windows, BatchOrder(WindowStream(found, begin, seed), global_batch, accumulate, ramp))


def val_batches(
    part: DatasetPart, seq_len: int, batch_size: int, n_batches: int, rows: RowIndex = ALL_ROWS
) -> np.ndarray:
    """A source's fixed validation set, int32 [n, batch_size, seq_len + 1], n <= n_batches: windows evenly spaced over the split.

    It depends on the data and the three numbers only, so every run, seed and host scores the same tokens; of each batch only
    `rows` are read. Where the split holds fewer windows there are as many batches as they fill; where they don't fill one,
    they stand in one whose other rows are NONE. Raises BadInput for a split shorter than one window.
    """
    if batch_size < 1 or n_batches < 1:
        raise BadInput(f"{n_batches} validation batches of {batch_size} sequences score nothing; at least 1 of 1")
    windows = Windows({part.name: part.val}, seq_len, "validation")
    n = max(1, min(n_batches, len(windows) // batch_size))
    wanted = min(n * batch_size, len(windows))
    numbers = np.full(n * batch_size, NO_WINDOW)
    # The middle of each of `wanted` parts.
    numbers[:wanted] = (2 * np.arange(wanted) + 1) * len(windows) // (2 * wanted)
    mine = numbers.reshape(n, batch_size)[:, rows]
    return windows.read(mine.ravel()).reshape(*mine.shape, -1)
