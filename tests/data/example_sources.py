"""Two little sources of unlike text, as one dataset."""

import dataclasses

import numpy as np

from scalelab.data.dataset import Dataset, DatasetPart
from scalelab.data.shards import Split


def split(ids: np.ndarray) -> Split:
    """A split of one shard and one document."""
    return Split((np.append(ids, 0).astype(np.uint8),), (np.array([0, len(ids) + 1]),))


def dataset(**tokens: int) -> Dataset:
    """`{name: training tokens}`; each token of the i-th source is in [1 + 40 i, 40 + 40 i], a tenth more is held
    out."""
    random, parts = np.random.default_rng(0), []
    for i, (name, n) in enumerate(tokens.items()):
        train, val = (split(random.integers(40 * i + 1, 40 * i + 41, size)) for size in (n - 1, n // 10 - 1))
        parts.append(DatasetPart(name, train, val, 0.5 + i))
    per_byte = sum(p.bytes_per_token * p.val.n_tokens for p in parts) / sum(p.val.n_tokens for p in parts)
    description = {"source": "test", "tokenizer": "bytes"}
    return Dataset(tuple(parts), 256, 0, "-".join(tokens), per_byte, None, description)


def reordered(data: Dataset) -> Dataset:
    """The same sources, listed the other way round."""
    return dataclasses.replace(data, parts=data.parts[::-1])
