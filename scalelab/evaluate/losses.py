"""The loss on a validation split: of each part, of all together, each with its standard error over sequences."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from scalelab.data.batches import Windows
from scalelab.data.prepare import Dataset
from scalelab.evaluate.subject import CHUNK_TOKENS, PADDING, Subject, token_losses

ALL = ""  # the name of all parts together


class Loss(NamedTuple):
    """Of one part (`ALL`: all of them, each with its share of the validation tokens), on `sequences` of `available` ones.

    `loss` in nats a token and `bpb` in bits a byte; `loss_se`, `bpb_se` their standard errors over sequences.
    """

    part: str
    loss: float
    loss_se: float
    bpb: float
    bpb_se: float
    tokens: int
    sequences: int
    available: int


def losses(of: Subject, dataset: Dataset, most: int, progress: Callable[[int, int], None] = lambda *_: None) -> list[Loss]:
    """The loss on at most `most` sequences of each part, evenly spaced (0: on all of them); of all parts first, if several.

    With as many sequences as a run's own evaluations take (eval.batches x global_batch) a single part's are the same ones.
    `progress(done, all)` counts sequences.
    """
    windows = [Windows([part.val], of.seq_len, f"validation {part.name}") for part in dataset.parts]
    counts = [min(most or len(each), len(each)) for each in windows]
    found, begun = [], 0
    for part, each, count in zip(dataset.parts, windows, counts, strict=True):
        numbers = (2 * np.arange(count) + 1) * len(each) // (2 * count)  # the middle of each of `count` equal parts
        nll, tokens = _sums(of, each, numbers, lambda done, begun=begun: progress(begun + done, sum(counts)))
        found.append(_loss(part.name, nll, tokens, part.bytes_per_token, len(each)))
        begun += count
    return found if len(found) == 1 else [_together(found, dataset.bytes_per_token), *found]


def _sums(of: Subject, windows: Windows, numbers: np.ndarray, progress: Any) -> tuple[np.ndarray, np.ndarray]:
    """Each window's summed nats and the tokens that count; in batches of one shape, the last one filled up with padding."""
    size = min(len(numbers), max(1, CHUNK_TOKENS // of.seq_len))
    nll = np.zeros(len(numbers))
    for first in range(0, len(numbers), size):
        rows = windows[numbers[first : first + size]]
        filled = np.full((size, of.seq_len + 1), PADDING, np.int32)
        filled[: len(rows)] = rows
        nll[first : first + size] = token_losses(of, filled)[0].sum(axis=1, dtype=np.float64)[: len(rows)]
        progress(min(first + size, len(numbers)))
    return nll, np.full(len(numbers), of.seq_len)


def _loss(name: str, nll: np.ndarray, tokens: np.ndarray, bytes_per_token: float, available: int) -> Loss:
    """A ratio of sums over sequences and its standard error (Cochran 1977, eq. 6.13; of equal lengths: the mean's)."""
    n, total = len(nll), tokens.sum()
    loss = nll.sum() / total
    se = math.sqrt(np.sum((nll - loss * tokens) ** 2) * n / (n - 1)) / total if n > 1 else math.nan
    bits = math.log(2) * bytes_per_token
    return Loss(name, float(loss), se, float(loss) / bits, se / bits, int(total), n, available)


def _together(parts: list[Loss], bytes_per_token: float) -> Loss:
    """Parts weighted by their sequences, as if all were read: a stratified mean."""
    available = sum(part.available for part in parts)
    share = np.array([part.available / available for part in parts])
    loss = float(share @ [part.loss for part in parts])
    se, bits = float(np.linalg.norm(share * [part.loss_se for part in parts])), math.log(2) * bytes_per_token
    counts = (sum(part.tokens for part in parts), sum(part.sequences for part in parts), available)
    return Loss(ALL, loss, se, loss / bits, se / bits, *counts)
