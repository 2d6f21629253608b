"""Losses on a validation split, per part and in total, with standard errors over sequences."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scalelab.data.batches.batches import NO_WINDOW, Windows
from scalelab.data.dataset import Dataset
from scalelab.evaluate.subject import CHUNK_TOKENS, EvaluatedModel, token_losses

ALL_PARTS = ""  # name of the total over all parts


class PartLoss(NamedTuple):
    """The loss on one part, over `sequences` of the `available` ones.

    `ALL_PARTS`: all parts, weighted by their validation tokens. `loss` is in nats per token, `bpb` in bits per byte;
    `loss_se` and `bpb_se` are their standard errors over sequences.
    """

    part: str
    loss: float
    loss_se: float
    bpb: float
    bpb_se: float
    tokens: int
    sequences: int
    available: int


def validation_losses(
    model: EvaluatedModel, dataset: Dataset, most: int, progress: Callable[[int, int], None] = lambda *_: None
) -> list[PartLoss]:
    """Losses on at most `most` sequences of each part, evenly spaced (0: on all); with several parts, the total first.

    For a single part and `most` = eval.batches x global_batch, these are the sequences of the run's own evaluations.
    `progress(done, all)` counts sequences.
    """
    windows = [Windows({part.name: part.val}, model.seq_len, "validation") for part in dataset.val_parts]
    counts = [min(most or len(each), len(each)) for each in windows]
    losses: list[PartLoss] = []
    for part, each, count in zip(dataset.val_parts, windows, counts, strict=True):
        numbers = (2 * np.arange(count) + 1) * len(each) // (2 * count)  # the middle of each of `count` equal parts
        nll, tokens = _sums(model, dataset.separator, each, numbers)
        losses.append(_part_loss(part.name, nll, tokens, part.bytes_per_token, len(each)))
        progress(sum(loss.sequences for loss in losses), sum(counts))
    if len(losses) == 1:
        return losses
    return [_total_loss(losses, [part.val.n_targets for part in dataset.val_parts], dataset.bytes_per_token), *losses]


def _sums(
    model: EvaluatedModel, separator: int, windows: Windows, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sum (nats, counted tokens) of each window, in batches of one shape, the last one padded."""
    size = min(len(numbers), max(1, CHUNK_TOKENS // model.seq_len))
    nats, tokens = np.zeros((2, len(numbers)))
    for first in range(0, len(numbers), size):
        here = numbers[first : first + size]
        padded = np.full(size, NO_WINDOW)
        padded[: len(here)] = here
        scores = token_losses(model, windows.read(padded), separator)
        for sums, values in ((nats, scores.nats), (tokens, scores.counts)):
            sums[first : first + size] = values.sum(axis=1, dtype=np.float64)[: len(here)]
    return nats, tokens


def _part_loss(name: str, nll: np.ndarray, tokens: np.ndarray, bytes_per_token: float, available: int) -> PartLoss:
    """Loss as a ratio of sums over sequences with its standard error (Cochran 1977, eq. 6.13)."""
    n, total = len(nll), tokens.sum()
    loss = nll.sum() / total
    se = math.sqrt(np.sum((nll - loss * tokens) ** 2) * n / (n - 1)) / total if n > 1 else math.nan
    bits = math.log(2) * bytes_per_token
    return PartLoss(name, float(loss), se, float(loss) / bits, se / bits, int(total), n, available)


def _total_loss(parts: list[PartLoss], val_tokens: list[int], bytes_per_token: float) -> PartLoss:
    """Stratified mean of the parts, weighted by the tokens of their validation splits, like a run's own val_loss."""
    share = np.array(val_tokens) / sum(val_tokens)
    loss = float(share @ [part.loss for part in parts])
    se, bits = float(np.linalg.norm(share * [part.loss_se for part in parts])), math.log(2) * bytes_per_token
    counts = [sum(getattr(part, name) for part in parts) for name in ("tokens", "sequences", "available")]
    return PartLoss(ALL_PARTS, loss, se, loss / bits, se / bits, *counts)
