"""Documents packed into a sequence: each token's document, its position in it, and the targets that count.

Shapes: B batch, S sequence. Token -1 is padding: neither read, predicted nor counted. A token -2 - i is id i that is
read and not predicted: in a chat all but the assistant's turns (`data/tokenizers/chat.py`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.model.attention.order import deal
from scalelab.sharding import reshard_to

MASKED = -2  # id i that is not predicted is MASKED - i


class DocumentEnds(NamedTuple):
    """What ends a document, as traced numbers: a separator token's id, a length in tokens. None: unused."""

    separator: jax.Array | None = None
    length: jax.Array | None = None


class Batch(NamedTuple):
    """Rows of tokens [B, S+1], and how they are read."""

    tokens: jax.Array
    ends: DocumentEnds | None = None  # None: rows are read in full, across documents
    n_micro: jax.Array | None = None  # how many micro-batches are run (traced); None: all


class CachePast(NamedTuple):
    """State of a cache of C tokens before new ones: how many it holds, and their documents' numbers (`decode.py`)."""

    filled: jax.Array
    segment_BC: jax.Array


class PackedDocuments(NamedTuple):
    """Each input token's document number in the sequence, and its position in the document from 0; int32 [B, S]."""

    segment_BS: jax.Array
    position_BS: jax.Array
    past: CachePast | None = None


class SplitTokens(NamedTuple):
    """Inputs and targets of a batch, int32 [B, S], and the documents they are packed in; None: what isn't known."""

    inputs_BS: jax.Array
    targets_BS: Any
    packed: PackedDocuments | None = None


def document_segments(
    tokens_BS: jax.Array, separator: jax.Array | None, length: jax.Array | None = None
) -> PackedDocuments:
    """The documents of the inputs `tokens` [B, S] (padding below zero).

    A document ends with `separator`, and after every `length` tokens: so shorter sequences run in the same program. A
    run of padding is its own document, so no token attends to it. Computed on whole sequences, then dealt to devices.
    """
    index_S = jnp.arange(tokens_BS.shape[1])
    before_BS = jnp.roll(tokens_BS, 1, axis=1)  # wraps around for the first token, which begins a document anyway
    begins_BS = (tokens_BS < 0) != (before_BS < 0)
    if separator is not None:
        begins_BS |= before_BS == jnp.asarray(separator).astype(tokens_BS.dtype)
    if length is not None:
        begins_BS |= (index_S % jnp.asarray(length).astype(jnp.int32) == 0)[None]
    begins_BS |= (index_S == 0)[None]
    first_BS = jax.lax.cummax(jnp.where(begins_BS, index_S[None], 0), axis=1)
    # A document's number is its first token's index, so numbers are equal exactly within a document.
    segment_BS, position_BS = (reshard_to(deal(x), "batch", "context") for x in (first_BS, index_S[None] - first_BS))
    return PackedDocuments(segment_BS, position_BS)


def visible_tokens(tokens: jax.Array) -> jax.Array:
    """The ids that the model reads; below zero for padding."""
    return jnp.where(tokens <= MASKED, MASKED - tokens, tokens)


def prediction_targets(tokens: jax.Array, ends: DocumentEnds | None) -> jax.Array:
    """The targets of `tokens` [B, S+1]: int32 [B, S], below zero for padding and for ids that are not predicted.

    With a separator a document's first token is not a target either: the token before it is another document's, or
    padding.
    """
    inputs, targets = visible_tokens(tokens[:, :-1]), tokens[:, 1:]
    if ends is None or ends.separator is None:
        return targets
    return jnp.where((inputs < 0) | (inputs == jnp.asarray(ends.separator).astype(tokens.dtype)), -1, targets)


def split_inputs_targets(tokens: jax.Array, ends: DocumentEnds | None) -> SplitTokens:
    """Split `tokens` [B, S+1] into inputs, targets and documents; without `ends` documents are None.

    All in the order in which a mesh's devices hold them (`order.py`).
    """
    tokens = tokens.astype(jnp.int32)
    inputs = visible_tokens(tokens[:, :-1])
    packed = None if ends is None else document_segments(inputs, *ends)
    return SplitTokens(deal(jnp.maximum(inputs, 0)), deal(prediction_targets(tokens, ends)), packed)
