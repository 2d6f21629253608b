"""Documents packed into a sequence: which one each token is of, its position there, and which targets count.

Shapes: B batch, S sequence. Tokens below zero are padding: neither predicted nor counted.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from scalelab.sharding import reshard_to


class DocumentEnds(NamedTuple):
    """What ends a document, as traced numbers: the id of its last token, a length in tokens. None: nothing of the kind."""

    separator: jax.Array | None = None
    length: jax.Array | None = None


class CachePast(NamedTuple):
    """Where new tokens go on from a cache of C: how many it holds, and their documents' numbers (`decode.py`)."""

    filled: jax.Array
    segment_BC: jax.Array


class PackedDocuments(NamedTuple):
    """Per input token, int32 [B, S]: its document's number in the sequence, and its position in the document, from 0."""

    segment_BS: jax.Array
    position_BS: jax.Array
    past: CachePast | None = None


def document_segments(
    tokens_BS: jax.Array, separator: jax.Array | None, length: jax.Array | None = None
) -> PackedDocuments:
    """The documents of `tokens` [B, S], the inputs as the data give them (padding below zero).

    A document ends with `separator`, and after every `length` tokens of the sequence: a shorter sequence is the same program.
    A run of padding is one by itself, so that no token sees it. Computed on whole sequences, then split as a mesh has it.
    """
    index_S = jnp.arange(tokens_BS.shape[1])
    before_BS = jnp.roll(tokens_BS, 1, axis=1)  # the first token's is meaningless: it begins a document anyway
    begins_BS = (tokens_BS < 0) != (before_BS < 0)
    if separator is not None:
        begins_BS |= before_BS == jnp.asarray(separator).astype(tokens_BS.dtype)
    if length is not None:
        begins_BS |= (index_S % jnp.asarray(length).astype(jnp.int32) == 0)[None]
    begins_BS |= (index_S == 0)[None]
    first_BS = jax.lax.cummax(jnp.where(begins_BS, index_S[None], 0), axis=1)
    # A document is known by its first token's index: equal where and only where the documents are.
    return PackedDocuments(
        reshard_to(first_BS, "batch", "context"), reshard_to(index_S[None] - first_BS, "batch", "context")
    )


def prediction_targets(tokens: jax.Array, ends: DocumentEnds | None) -> jax.Array:
    """What is predicted of `tokens` [B, S+1]: int32 [B, S], below zero for padding.

    Where documents end, also for a document's first token: what stands before it is another's last, or padding.
    """
    inputs, found = tokens[:, :-1], tokens[:, 1:]
    if ends is None or ends.separator is None:
        return found
    return jnp.where((inputs < 0) | (inputs == jnp.asarray(ends.separator).astype(tokens.dtype)), -1, found)


def split_inputs_targets(
    tokens: jax.Array, ends: DocumentEnds | None
) -> tuple[jax.Array, jax.Array, PackedDocuments | None]:
    """`tokens` [B, S+1] -> (inputs [B, S], targets [B, S], documents): without `ends` everything is one document."""
    tokens = tokens.astype(jnp.int32)
    packed = None if ends is None else document_segments(tokens[:, :-1], *ends)
    return jnp.maximum(tokens[:, :-1], 0), prediction_targets(tokens, ends), packed
