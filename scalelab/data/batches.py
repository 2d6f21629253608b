"""Batch = f(seed, step): random access into shuffled windows, the same for any number of hosts.

A window is seq_len + 1 consecutive tokens of the stream of documents; windows start every seq_len tokens, so each token but a
shard's first is predicted once an epoch (the one shared token is a target here and an input there). Windows cross document
boundaries and don't cross shards; what is left at a shard's end, under one window, is not used.
"""

import functools
from typing import Any

import numpy as np

from scalelab.data.order import window_numbers
from scalelab.data.prepare import Dataset
from scalelab.data.shards import Split
from scalelab.errors import BadInput

Rows = slice | np.ndarray  # of a batch: a range or indices
ALL = slice(None)
ORDER_BLOCK = 4096  # windows whose order is computed at once: one small batch alone would be all overhead


class Windows:
    """The windows of one split: `len(windows)` of them, `windows[numbers]` -> int32 [len(numbers), seq_len + 1]."""

    def __init__(self, split: Split, seq_len: int, name: str) -> None:
        if seq_len < 1:
            raise BadInput(f"seq_len={seq_len} is not a length; at least 1")
        view = np.lib.stride_tricks.sliding_window_view
        shards = [np.asarray(shard) for shard in split.shards if len(shard) > seq_len]
        self.views = [view(shard, seq_len + 1)[::seq_len] for shard in shards]  # [n, seq_len + 1], no copy
        self.ends = np.cumsum([len(v) for v in self.views])
        if not self.views:
            longest = max((len(shard) for shard in split.shards), default=0)
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
    """A Grain data source whose record `step` is the window numbers of that global batch, int64 [global_batch]."""

    def __init__(self, n_windows: int, global_batch: int, seed: int) -> None:
        self.n_windows, self.global_batch, self.seed = n_windows, global_batch, seed
        self.block_steps = max(1, ORDER_BLOCK // global_batch)
        self._block = functools.lru_cache(maxsize=2)(self._compute_block)

    def __len__(self) -> int:
        return 2**62 // self.global_batch  # the stream of epochs has no end; positions must fit int64

    def __getitem__(self, step: Any) -> np.ndarray:
        block, inside = divmod(int(step), self.block_steps)
        return self._block(block)[inside]

    def _compute_block(self, block: int) -> np.ndarray:
        per_block = self.block_steps * self.global_batch
        positions = np.arange(block * per_block, (block + 1) * per_block)
        return window_numbers(positions, self.n_windows, self.seed).reshape(self.block_steps, self.global_batch)


class TrainBatches:
    """Training batches by step; see `train_batches`."""

    def __init__(self, windows: Windows, global_batch: int, seed: int) -> None:
        self.windows, self.global_batch = windows, global_batch
        self._order = BatchOrder(len(windows), global_batch, seed)
        self._reader = functools.lru_cache(maxsize=8)(self._make_reader)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every window is seen once; a batch may hold the end of one epoch and the start of the next."""
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
        return grain.MapDataset.source(self._order).map(lambda numbers: self.windows[numbers[rows]])


def train_batches(dataset: Dataset, seq_len: int, global_batch: int, seed: int) -> TrainBatches:
    """Batches of the training split in the order of `seed`: each epoch a new permutation of all windows.

    A host takes `batch(step, rows)` of the rows that its devices hold; the global batch doesn't depend on the number of hosts.
    Raises BadInput for a split shorter than one window, an empty batch or a negative seed.
    """
    if global_batch < 1:
        raise BadInput(f"global_batch={global_batch} is not a batch; at least 1")
    if seed < 0:
        raise BadInput(f"seed={seed} is negative; 0 or more")
    return TrainBatches(Windows(dataset.train, seq_len, "training"), global_batch, seed)


def val_batches(dataset: Dataset, seq_len: int, batch_size: int, n_batches: int, rows: Rows = ALL) -> list[np.ndarray]:
    """The fixed validation set: at most `n_batches` arrays int32 [batch_size, seq_len + 1], evenly spaced over the split.

    It depends on the dataset and the three numbers only, so every run, seed and host scores the same tokens:
    len(result) * batch_size * seq_len of them; of each batch only `rows` are read. Fewer batches come back where the split
    holds fewer windows. Raises BadInput if it doesn't fill one batch.
    """
    if batch_size < 1 or n_batches < 1:
        raise BadInput(f"{n_batches} validation batches of {batch_size} sequences score nothing; at least 1 of 1")
    windows = Windows(dataset.val, seq_len, "validation")
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
