"""Batch = f(seed, step): random access into shuffled windows, the same for any number of hosts.

A step reads the windows that follow those of the steps before it, also where the batch was smaller then (`ramp`).

A window is seq_len + 1 consecutive tokens of the stream of documents; windows start every seq_len tokens, so each token but a
shard's first is predicted once an epoch (the one shared token is a target here and an input there). Windows cross document
boundaries and don't cross shards; what is left at a shard's end, under one window, is not used.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab import ramp as ramp_lib
from scalelab.data.order import window_numbers
from scalelab.data.prepare import Dataset
from scalelab.data.shards import Split
from scalelab.errors import BadInput

Rows = slice | np.ndarray  # of a batch: a range or indices
ALL = slice(None)
NONE = -1  # in place of a window's number, and in its tokens: nothing is read, nothing predicted
ORDER_BLOCK = 4096  # windows whose order is computed at once: one small batch alone would be all overhead


class Windows:
    """The windows of splits, one after the other: `len(windows)` of them, `windows[numbers]` -> int32 [len(numbers), seq_len + 1]."""

    def __init__(self, splits: Sequence[Split], seq_len: int, name: str) -> None:
        if seq_len < 1:
            raise BadInput(f"seq_len={seq_len} is not a length; at least 1")
        view = np.lib.stride_tricks.sliding_window_view
        shards = [np.asarray(shard) for split in splits for shard in split.shards]
        longest = max(map(len, shards), default=0)
        shards = [shard for shard in shards if len(shard) > seq_len]
        self.views = [view(shard, seq_len + 1)[::seq_len] for shard in shards]  # [n, seq_len + 1], no copy
        self.ends = np.cumsum([len(v) for v in self.views])
        if not self.views:
            raise BadInput(f"the {name} data hold {longest} tokens, a window of seq_len={seq_len} needs {seq_len + 1}")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        if len(self.views) == 1:
            return self.views[0][numbers].astype(np.int32)
        rows = np.empty((len(numbers), self.views[0].shape[1]), np.int32)
        shard_of = np.searchsorted(self.ends, numbers, side="right")
        for shard in np.unique(shard_of):
            here = shard_of == shard
            rows[here] = self.views[shard][
                numbers[here] - self.ends[shard]
            ]  # counted back from the shard's last window
        return rows


class BatchOrder:
    """A Grain data source whose record `step` is the window numbers of that global batch, int64 [global_batch].

    Row r is of micro-batch r % accumulate; in the steps that don't take it, it is NONE.
    """

    def __init__(self, n_windows: int, global_batch: int, seed: int, accumulate: int, ramp: tuple[int, ...]) -> None:
        self.n_windows, self.global_batch, self.seed = n_windows, global_batch, seed
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
        taken = ramp_lib.micro_batches(self.ramp, self.accumulate, steps)
        first = ramp_lib.before(self.ramp, self.accumulate, steps) * (self.global_batch // self.accumulate)
        row, part = np.divmod(np.arange(self.global_batch), self.accumulate)
        numbers = np.full((self.block_steps, self.global_batch), NONE)
        numbers[part < taken] = window_numbers(
            (first + row * taken + part)[part < taken], self.n_windows, self.seed
        )  # the rows that are taken stand in the order of the stream
        return numbers


class TrainBatches:
    """Training batches by step; see `train_batches`."""

    def __init__(self, windows: Windows, order: BatchOrder) -> None:
        self.windows, self.global_batch = windows, order.global_batch
        self._order = order
        self._reader = functools.lru_cache(maxsize=8)(self._make_reader)

    @property
    def steps_per_epoch(self) -> float:
        """Steps of the full batch in which every window is seen once; a batch may hold the end of one epoch and the start of the next."""
        return len(self.windows) / self.global_batch

    def batch(self, step: int, rows: Rows = ALL) -> np.ndarray:
        """int32 [rows, seq_len + 1]: these rows (default all) of global batch `step` >= 0; inputs [:, :-1], targets [:, 1:]."""
        return self._reader(self._key(rows))[step]

    def chunk(self, step: int, k: int, rows: Rows = ALL) -> np.ndarray:
        """int32 [k, rows, seq_len + 1]: batches `step` to `step + k - 1`, for k steps in one dispatch. No other row is read."""
        reader = self._reader(self._key(rows))
        return np.stack([reader[i] for i in range(step, step + k)])

    def _key(self, rows: Rows) -> tuple[int, ...]:
        return tuple(np.arange(self.global_batch)[rows].tolist())

    def _make_reader(self, key: tuple[int, ...]) -> Any:
        """A Grain MapDataset with one record a step. A record of a whole batch pays Grain's cost per record once, not per row."""
        import grain

        rows = np.array(key)
        return grain.MapDataset.source(self._order).map(lambda numbers: self._read(numbers[rows]))

    def _read(self, numbers: np.ndarray) -> np.ndarray:
        taken = numbers != NONE
        if taken.all():
            return self.windows[numbers]
        found = np.full((len(numbers), self.windows.views[0].shape[1]), NONE, np.int32)
        found[taken] = self.windows[numbers[taken]]
        return found


def train_batches(
    dataset: Dataset, seq_len: int, global_batch: int, seed: int, accumulate: int = 1, ramp: tuple[int, ...] = ()
) -> TrainBatches:
    """Batches of the training split in the order of `seed`: each epoch a new permutation of all windows.

    Of a batch's `accumulate` micro-batches a step takes as many as `ramp` says; rows of the others are all -1.

    A host takes `batch(step, rows)` of the rows that its devices hold; the global batch doesn't depend on the number of hosts.
    Raises BadInput for a split shorter than one window, an empty batch or a negative seed.
    """
    if global_batch < 1:
        raise BadInput(f"global_batch={global_batch} is not a batch; at least 1")
    if seed < 0:
        raise BadInput(f"seed={seed} is negative; 0 or more")
    windows = Windows([part.train for part in dataset.parts], seq_len, "training")
    return TrainBatches(windows, BatchOrder(len(windows), global_batch, seed, accumulate, ramp))


def val_batches(dataset: Dataset, seq_len: int, batch_size: int, n_batches: int, rows: Rows = ALL) -> list[np.ndarray]:
    """The fixed validation set: at most `n_batches` arrays int32 [batch_size, seq_len + 1], evenly spaced over the split.

    It depends on the dataset and the three numbers only, so every run, seed and host scores the same tokens:
    len(result) * batch_size * seq_len of them; of each batch only `rows` are read. Fewer batches come back where the split
    holds fewer windows. Raises BadInput if it doesn't fill one batch.
    """
    if batch_size < 1 or n_batches < 1:
        raise BadInput(f"{n_batches} validation batches of {batch_size} sequences score nothing; at least 1 of 1")
    windows = Windows([part.val for part in dataset.parts], seq_len, "validation")
    n_batches = min(n_batches, len(windows) // batch_size)
    if n_batches < 1:
        raise BadInput(
            f"the validation data hold {len(windows)} windows of seq_len={seq_len}, one batch needs {batch_size}; "
            f"raise data.val_fraction or lower global_batch to {len(windows)}"
        )
    wanted = batch_size * n_batches
    numbers = (2 * np.arange(wanted) + 1) * len(windows) // (2 * wanted)  # the middle of each of `wanted` equal parts
    mine = numbers.reshape(n_batches, batch_size)[:, rows]
    return np.split(windows[mine.ravel()], n_batches)
