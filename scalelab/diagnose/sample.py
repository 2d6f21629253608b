"""Sample a run's data for the checks: windows, their order, documents; of bounded size for any corpus."""

import dataclasses
import hashlib

import numpy as np
from ml_collections import ConfigDict

from scalelab.data.batches.batches import TrainBatches, Windows
from scalelab.data.dataset import Dataset
from scalelab.data.tokenizers.chat import unmask_ids
from scalelab.train.run.sources import make_train_batches
from scalelab.train.single import load_run_dataset

MOST_WINDOWS = 512  # number of windows sampled evenly over the corpus
ORDER_BATCHES = 64  # number of batches whose window numbers are read
MOST_DOCUMENTS = 20_000  # number of documents, evenly over the corpus, whose fingerprints are compared
SHORT_BYTES, SHORT_IDS = 128, 32  # tokens of a document, of bytes and of larger vocabularies, below which it is short
BYTES = 512  # ids; a vocabulary of fewer counts as bytes
EDGE_TOKENS = 64  # tokens of a document's start and end in its fingerprint


@dataclasses.dataclass(frozen=True)
class DataSample:
    """`numbers` [n] and `windows` [n, S+1] of the training split, `validation` [m, S+1]; `order`: window numbers
    of the first batches, in the order of the stream; `documents`: a fingerprint each.
    """

    dataset: Dataset
    batches: TrainBatches
    numbers: np.ndarray
    windows: np.ndarray
    validation: np.ndarray
    order: np.ndarray
    documents: np.ndarray

    @property
    def n_windows(self) -> int:
        """Windows of the training split."""
        return len(self.batches.windows)


def sample_data(config: ConfigDict) -> DataSample:
    """Sample the data of a resolved config. BadInput if they can't be read."""
    dataset = load_run_dataset(config)
    batches = make_train_batches(config, dataset)
    validation = Windows({part.name: part.val for part in dataset.parts}, config.model.seq_len, "validation")
    numbers = spread(len(batches.windows), MOST_WINDOWS)
    steps = range(min(ORDER_BATCHES, config.train.steps))
    order = np.concatenate([batches.window_numbers(step) for step in steps])
    held_out = unmask_ids(validation[spread(len(validation), MOST_WINDOWS // 4)])
    windows = unmask_ids(batches.windows[numbers])
    return DataSample(dataset, batches, numbers, windows, held_out, order[order >= 0], fingerprint_documents(dataset))


def spread(n: int, most: int) -> np.ndarray:
    """Choose at most `most` numbers below n, evenly spread."""
    count = min(n, most)
    return (2 * np.arange(count) + 1) * n // (2 * count)


def fingerprint_documents(dataset: Dataset) -> np.ndarray:
    """Compute fingerprints of training documents: hashes of length, first and last tokens.

    Short ones are left out: lines and phrases come up again by themselves.
    """
    least = SHORT_BYTES if dataset.vocab_size <= BYTES else SHORT_IDS
    shards = [pair for part in dataset.parts for pair in zip(part.train.shards, part.train.offsets, strict=True)]
    total = sum(len(offsets) - 1 for _, offsets in shards)
    prints = []
    for tokens, offsets in shards:
        n = len(offsets) - 1
        for i in spread(n, max(1, MOST_DOCUMENTS * n // max(total, 1))):
            begin, end = int(offsets[i]), int(offsets[i + 1])
            if end - begin < least:
                continue
            edges = tokens[begin : min(end, begin + EDGE_TOKENS)], tokens[max(begin, end - EDGE_TOKENS) : end]
            text = f"{end - begin}:".encode() + b"".join(np.asarray(edge).tobytes() for edge in edges)
            prints.append(hashlib.blake2b(text, digest_size=8).digest())
    return np.frombuffer(b"".join(prints), np.uint64)
