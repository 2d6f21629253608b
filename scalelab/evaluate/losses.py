"""The loss on a validation split: of each part, of all together, each with its standard error over sequences."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scalelab.data.batches.batches import NO_WINDOW, Windows
from scalelab.data.dataset import Dataset
from scalelab.evaluate.subject import CHUNK_TOKENS, EvaluatedModel, token_losses

ALL_PARTS = ""  # the name of all parts together


class PartLoss(NamedTuple):
    """Of one part (`ALL_PARTS`: all of them, each with its share of the validation tokens), on `sequences` of `available` ones.

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


def validation_losses(
    of: EvaluatedModel, dataset: Dataset, most: int, progress: Callable[[int, int], None] = lambda *_: None
) -> list[PartLoss]:
    """The loss on at most `most` sequences of each part, evenly spaced (0: on all of them); of all parts first, if several.

    With as many sequences as a run's own evaluations take (eval.batches x global_batch) a single part's are the same ones.
    `progress(done, all)` counts sequences.
    """
    windows = [Windows({part.name: part.val}, of.seq_len, "validation") for part in dataset.parts]
    counts = [min(most or len(each), len(each)) for each in windows]
    found: list[PartLoss] = []
    for part, each, count in zip(dataset.parts, windows, counts, strict=True):
        numbers = (2 * np.arange(count) + 1) * len(each) // (2 * count)  # the middle of each of `count` equal parts
        nll, tokens = _sums(of, dataset.separator, each, numbers)
        found.append(_loss(part.name, nll, tokens, part.bytes_per_token, len(each)))
        progress(sum(one.sequences for one in found), sum(counts))
    if len(found) == 1:
        return found
    return [_together(found, [part.val.n_tokens for part in dataset.parts], dataset.bytes_per_token), *found]


def _sums(of: EvaluatedModel, separator: int, windows: Windows, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each window's summed nats and the tokens that count; in batches of one shape, the last one filled up with padding."""
    size = min(len(numbers), max(1, CHUNK_TOKENS // of.seq_len))
    sums = np.zeros((2, len(numbers)))
    for first in range(0, len(numbers), size):
        mine = np.full(size, NO_WINDOW)
        here = numbers[first : first + size]
        mine[: len(here)] = here
        found = token_losses(of, windows.read(mine), separator)
        for kept, each in zip(sums, (found.nats, found.counts), strict=True):
            kept[first : first + size] = each.sum(axis=1, dtype=np.float64)[: len(here)]
    return sums[0], sums[1]


def _loss(name: str, nll: np.ndarray, tokens: np.ndarray, bytes_per_token: float, available: int) -> PartLoss:
    """A ratio of sums over sequences and its standard error (Cochran 1977, eq. 6.13; of equal lengths: the mean's)."""
    n, total = len(nll), tokens.sum()
    loss = nll.sum() / total
    se = math.sqrt(np.sum((nll - loss * tokens) ** 2) * n / (n - 1)) / total if n > 1 else math.nan
    bits = math.log(2) * bytes_per_token
    return PartLoss(name, float(loss), se, float(loss) / bits, se / bits, int(total), n, available)


def _together(parts: list[PartLoss], val_tokens: list[int], bytes_per_token: float) -> PartLoss:
    """Parts weighted by the tokens of their validation splits, as a run's own val_loss has it: a stratified mean."""
    share = np.array(val_tokens) / sum(val_tokens)
    loss = float(share @ [part.loss for part in parts])
    se, bits = float(np.linalg.norm(share * [part.loss_se for part in parts])), math.log(2) * bytes_per_token
    counts = [sum(getattr(part, name) for part in parts) for name in ("tokens", "sequences", "available")]
    return PartLoss(ALL_PARTS, loss, se, loss / bits, se / bits, *counts)
