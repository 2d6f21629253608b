"""Targets, documents and positions of a batch, in numpy, by the words of the config.

Shapes: B batch, S sequence. Token -1 is padding; -2 - i is id i that is read and not predicted.
"""

from typing import NamedTuple

import numpy as np


class Reading(NamedTuple):
    """How a batch is read, int [B, S]: inputs, targets (-1: not predicted), document numbers, positions."""

    inputs: np.ndarray
    targets: np.ndarray
    segment: np.ndarray
    position: np.ndarray

    def rows(self, chosen: slice) -> "Reading":
        """Some rows of the batch."""
        return Reading(*(array[chosen] for array in self))

    @property
    def counted(self) -> int:
        """Number of predicted tokens."""
        return int((self.targets >= 0).sum())


def read_batch(
    tokens: np.ndarray, separator: int | None, length: int | None = None, rows: np.ndarray | None = None
) -> Reading:
    """Read tokens [B, S+1]; `separator`: ends a document that attention stays within; `length`: of short sequences.

    `rows`: booleans [B], which rows the step takes; the others predict nothing.
    """
    tokens = np.asarray(tokens, np.int64)
    inputs, targets = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    inputs[inputs < -1] = -2 - inputs[inputs < -1]
    n, size = inputs.shape
    segment, position = np.zeros((n, size), np.int64), np.tile(np.arange(size), (n, 1))
    if separator is not None or length is not None:
        for row in range(n):
            first = 0
            for i in range(size):
                ended = i > 0 and separator is not None and inputs[row, i - 1] == separator
                padded = i > 0 and (inputs[row, i] < 0) != (inputs[row, i - 1] < 0)
                if ended or padded or (length is not None and i % length == 0):
                    first = i
                segment[row, i], position[row, i] = first, i - first
    if separator is not None:
        targets[(inputs < 0) | (inputs == separator)] = -1
    if rows is not None:
        targets[~rows] = -1
    return Reading(np.maximum(inputs, 0), np.where(targets < 0, -1, targets), segment, position)
