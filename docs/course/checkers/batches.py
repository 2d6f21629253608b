"""Problems of batches: the gradient of micro-batches of unequal size, and the masks of packed documents."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from scalelab.model.attention import documents
from scalelab.model.attention.mask import attention_mask

from .judging import call_answer, judge

COUNTS = (3, 7, 0, 10)  # tokens that count in each micro-batch of problem 12
SEPARATOR = 0
ROW = np.array([5, 6, 0, 7, 8, 9, 0, 4, 4, -1, -1], np.int32)  # of problem 13: three documents and padding


def check_whole_batch(answer: Any) -> None:
    """Problem 12: the gradient of a batch from those of its micro-batches."""
    each = np.random.default_rng(12).normal(1.0, 2.0, (sum(COUNTS), 4))  # the gradient of each token
    parts = np.split(each, np.cumsum(COUNTS)[:-1])
    means = np.stack([part.mean(0) if len(part) else np.zeros(4) for part in parts])
    mistakes = {
        "a mean of means: a token of a short micro-batch counts for more": means.mean(0),
        "that leaves the empty micro-batch out, and still weights the others alike": means.sum(0) / 3,
        "divide by the tokens of the whole batch": each.sum(0),
        "the sum is not divided by anything": means.sum(0),
    }
    judge(call_answer(answer, means, np.array(COUNTS)), each.mean(0), 1e-6, mistakes)


def true_masks() -> tuple[np.ndarray, np.ndarray]:
    """(which inputs each input attends to [S, S], which targets count [S]) of ROW, as the trainer reads them."""
    tokens, ends = jnp.asarray(ROW)[None], documents.DocumentEnds(jnp.int32(SEPARATOR))
    segments = documents.document_segments(documents.visible_tokens(tokens[:, :-1]), SEPARATOR).segment_BS
    places = jnp.arange(len(ROW) - 1)
    allowed = attention_mask(places, places, segment_BS=segments, segment_BT=segments)[0]
    return np.asarray(allowed), np.asarray(documents.prediction_targets(tokens, ends)[0] >= 0)


def check_masks(answer: Any) -> None:
    """Problem 13: the masks of a row of packed documents. What padding attends to is not asked."""
    allowed, counted = true_masks()
    real = ROW[:-1] >= 0
    pair = call_answer(answer, ROW.copy(), SEPARATOR)
    assert isinstance(pair, tuple | list) and len(pair) == 2, "a pair is asked for: the mask [S, S] and the targets [S]"
    causal = np.tril(np.ones_like(allowed))
    begins = np.cumsum(ROW[:-1] == SEPARATOR)  # the separator as the first token of the next document
    one_later = (begins[:, None] == begins) & causal
    mistakes = {
        "a token must not see what comes after it": (allowed | allowed.T)[real],
        "a token must not see other documents": causal[real],
        "the separator ends its document; it does not begin the next one": one_later[real],
    }
    judge(np.asarray(pair[0])[real] if np.shape(pair[0]) == allowed.shape else pair[0], allowed[real], 0, mistakes)
    mistakes = {
        "the first token of a document is not a target: what stands before it belongs to another": ROW[1:] >= 0,
        "padding is not a target": counted | (ROW[1:] < 0),
        "the end of a document is a target too": counted & (ROW[1:] != SEPARATOR),
    }
    judge(pair[1], counted, 0, mistakes)
