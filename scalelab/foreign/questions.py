"""Questions about the units of a run's losses: bits, logarithms of base 10, sums, perplexities; nothing is changed."""

import math
from collections.abc import Mapping

import numpy as np

from scalelab.foreign.run import Column
from scalelab.laws.read.units import question_labels, question_target

EARLY = 0.02  # share of the steps in which a loss still is that of the first weights, ln V
WHOLE = 0.06  # how far a ratio may be from a whole number
NEAR = 0.1  # ... and from that of another base
LOSSES = ("train_loss", "val_loss")


def question_losses(
    columns: Mapping[str, Column], steps: np.ndarray, taken: Mapping[str, str], vocab: int | None
) -> list[str]:
    """Lines about losses whose name or values speak of another unit: `columns` at `steps` [n], `taken` by field."""
    lines = []
    for field in (field for field in LOSSES if field in columns):
        found = question_labels({"loss": taken.get(field, "")})
        column = columns[field]
        values = column.logged()[np.isfinite(column.logged())]
        first = _question_first(column, steps, vocab)
        if not found and not first and len(values):
            late = values[-max(1, len(values) // 2) :]
            found = [] if late.min() < 0 else question_target(late)
        text = found[0].text if found else first
        if text:
            lines.append(f"{field}: {text}".replace("--columns='loss=", f"--columns='{field}="))
    return lines


def _question_first(column: Column, steps: np.ndarray, vocab: int | None) -> str:
    """What is odd about the first loss beside ln V; "" if nothing is, or either is not known."""
    first = next((i for i in np.flatnonzero(column.present) if math.isfinite(column.values[i])), None)
    if vocab is None or vocab < 2 or first is None or steps[first] > max(1, EARLY * steps[-1]):
        return ""
    ratio = float(column.values[first]) / math.log(vocab)
    start = f"the first loss is {column.values[first]:.4g}, and ln V of {vocab:,} tokens {math.log(vocab):.4g}"
    if abs(ratio * math.log(2) - 1) < NEAR:
        return f"{start}: is it in bits? If so, --columns='loss=COLUMN*0.693147'"
    if abs(ratio * math.log(10) - 1) < NEAR:
        return f"{start}: is it a logarithm of base 10? If so, --columns='loss=COLUMN*2.302585'"
    if ratio > 2 - WHOLE and abs(ratio - round(ratio)) < WHOLE * ratio:
        mend = f"--columns='loss=COLUMN*{1 / round(ratio):.6g}'"
        return f"{start}: is it a sum over {round(ratio)} micro-batches? If so, {mend}"
    return ""
