"""Rows of a batch as they are read: source and position of each, the borders of its documents, masked targets."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scalelab.data.batches.batches import NO_WINDOW, TrainBatches
from scalelab.data.batches.origins import locate_window
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput

Masks = Callable[[np.ndarray], np.ndarray]  # rows [B, S+1] -> whether each target counts, bool [B, S]


class RowDocument(NamedTuple):
    """A document's stretch of a row: tokens `start` to `stop` of its S+1, and the tokens of the document before it.

    `document`: number in the shard; `ends`: whether its end is in the row.
    """

    document: int
    start: int
    stop: int
    offset: int
    ends: bool
    text: str


class Row(NamedTuple):
    """One row of a batch: its window of the training split, and where this begins.

    `masked`: positions of the S targets that count for nothing.
    """

    row: int
    window: int
    source: str
    shard: str
    token: int
    documents: list[RowDocument]
    masked: list[int]


def describe_rows(
    dataset: Dataset,
    batches: TrainBatches,
    number: int,
    masks: Masks,
    excerpt: Callable[[np.ndarray, int], str],
    length: int,
) -> list[Row]:
    """Describe the rows of batch `number`; rows that no micro-batch reads are left out.

    `excerpt(ids, length)` gives the beginning of a text of at most `length` characters.
    """
    numbers = batches.window_numbers(number)
    tokens = batches.batch(number)
    counted = masks(tokens)
    splits = {part.name: part.train for part in dataset.parts}
    rows = []
    for row, window in enumerate(numbers.tolist()):
        if window == NO_WINDOW:
            continue
        place = locate_window(dataset, tokens.shape[1] - 1, window)
        offsets = splits[place.source].offsets[place.shard_number]
        documents = [
            RowDocument(*borders, excerpt(tokens[row, borders[1] : borders[2]], length))
            for borders in _borders(offsets, place.token, tokens.shape[1], place.document)
        ]
        masked = np.flatnonzero(~counted[row]).tolist()
        rows.append(Row(row, window, place.source, place.shard, place.token, documents, masked))
    return rows


def _borders(offsets: np.ndarray, token: int, length: int, first: int) -> list[tuple[int, int, int, int, bool]]:
    """(document, start, stop, tokens of it before, whether it ends here) of each document of a window."""
    borders: list[tuple[int, int, int, int, bool]] = []
    for document in itertools.count(first):
        if document >= len(offsets) - 1 or offsets[document] >= token + length:
            return borders
        begin, end = int(offsets[document]), int(offsets[document + 1])
        start, stop = max(begin - token, 0), min(end - token, length)
        borders.append((document, start, stop, max(token - begin, 0), end <= token + length))
    return borders


def check_step(step: int, steps: int) -> None:
    """Raise BadInput for a step that a run of `steps` steps does not have; steps count from 1."""
    if not 1 <= step <= steps:
        raise BadInput(f"step {step}: the run has steps 1 to {steps}; nearest: {min(max(step, 1), steps)}")
