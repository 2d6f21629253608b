"""What a corpus holds, by source and split: documents, tokens, lengths, copies; how often a run reads it."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.data.dataset import Dataset, DatasetPart
from scalelab.data.shards import Split

QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
MOST_HASHED_TOKENS = 2**30  # tokens beyond which copies are not looked for here


class SplitStats(NamedTuple):
    """A split of a source. Lengths are in tokens with the separator; `lengths` at QUANTILES of documents.

    `targets`: tokens that are predicted, of chats those of the assistant's turns; `bytes_per_token` counts these alone.
    `longer`, `longer_tokens`: shares of documents longer than seq_len + 1 tokens, and of the tokens in them; `windows`:
    sequences an epoch; `copies`: documents equal to an earlier one, `leaks`: validation documents that stand in the
    training text of any source (None: too large a corpus to look).
    """

    source: str
    split: str
    documents: int
    tokens: int
    targets: int
    bytes_per_token: float
    lengths: list[int]
    longer: float
    longer_tokens: float
    windows: int
    copies: int | None
    leaks: int | None


def split_stats(dataset: Dataset, seq_len: int) -> list[SplitStats]:
    """Statistics of every split of every source, for sequences of `seq_len` tokens."""
    total = sum(split.n_tokens for part in dataset.parts for _, split in _splits(part))
    hashed = _all_splits(dataset) if total <= MOST_HASHED_TOKENS else ()
    hashes = {key: _document_hashes(split) for key, split in hashed}
    train = np.unique(np.concatenate([np.empty(0, np.uint64), *(h for (_, s), h in hashes.items() if s == "train")]))
    rows = []
    for part in dataset.parts:
        for name, split in _splits(part):
            lengths = _lengths(split)
            is_long = lengths > seq_len + 1
            digests = hashes.get((part.name, name))
            copies = None if digests is None else len(digests) - len(np.unique(digests))
            leaks = None if digests is None or name == "train" else int(np.isin(digests, train).sum())
            rows.append(
                SplitStats(
                    part.name,
                    name,
                    split.n_documents,
                    split.n_tokens,
                    split.n_targets,
                    part.bytes_per_token,
                    [int(value) for value in np.quantile(lengths, QUANTILES, method="nearest")],
                    float(is_long.mean()),
                    float(lengths[is_long].sum() / lengths.sum()),
                    sum(max(0, (len(shard) - 1) // seq_len) for shard in split.shards),
                    copies,
                    leaks,
                )
            )
    return rows


def _splits(part: DatasetPart) -> list[tuple[str, Split]]:
    return [(name, split) for name, split in (("train", part.train), ("val", part.val)) if split.shards]


def _all_splits(dataset: Dataset) -> Iterator[tuple[tuple[str, str], Split]]:
    for part in dataset.parts:
        yield from (((part.name, name), split) for name, split in _splits(part))


def _lengths(split: Split) -> np.ndarray:
    return np.concatenate([np.diff(offsets) for offsets in split.offsets])


def _document_hashes(split: Split) -> np.ndarray:
    """64 bits of a hash of each document's tokens."""
    digests = bytearray()
    for tokens, offsets in zip(split.shards, split.offsets, strict=True):
        for start, stop in itertools.pairwise(offsets.tolist()):
            digests += hashlib.blake2b(tokens[start:stop].tobytes(), digest_size=8).digest()
    return np.frombuffer(bytes(digests), np.uint64)


def source_epochs(seen: Mapping[str, tuple[int, float]]) -> list[dict[str, Any]]:
    """What a planned run reads of each source: tokens and epochs."""
    return [{"source": name, "tokens": tokens, "epochs": epochs} for name, (tokens, epochs) in seen.items()]
