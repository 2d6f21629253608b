"""Logits a few tokens at a time with a cache of earlier keys and values, for sampling and scoring. On one device.

Shapes: L layers, B batch, T new tokens, C the cache's length, K key/value heads, H d_head, V vocab.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention.documents import CachePast, PackedDocuments, SplitTokens
from scalelab.model.attention.latent import attention_kind
from scalelab.model.pieces import end_in_logits, run_pieces
from scalelab.model.stacks import by_stack
from scalelab.precision.policy import FP32, Policy, array_dtype


class KVCache(NamedTuple):
    """Keys, values and documents of the tokens so far."""

    keys: Any  # {"k", "v"}: [L, B, C, K, H] in the policy's compute dtype; of latent attention {"latent"}, one head
    segment_BC: jax.Array  # each token's document, as the index of the document's first token
    filled: jax.Array  # tokens in the cache
    first_B: jax.Array  # index of the current document's first token
    last_B: jax.Array  # the token before the next; -1: none


class DocumentStarts(NamedTuple):
    """Where documents begin; by default each sequence is one, from its first token."""

    separator: jax.Array | int | None = None  # ends a document; for a model trained with data.documents=mask
    first_B: jax.Array | None = None  # index of each sequence's first token; what stands before it is padding


ONE_DOCUMENT = DocumentStarts()


def empty_cache(shape: ModelShape, batch: int, length: int, policy: Policy = FP32) -> KVCache:
    """Create a cache for `batch` sequences of `length` tokens. BadInput where the model has fewer learned positions."""
    if shape.position == "learned" and length > shape.seq_len:
        raise BadInput(
            f"{length} tokens: the model has learned positions for model.seq_len={shape.seq_len}; "
            f"nearest: {shape.seq_len}"
        )
    format, sizes = array_dtype(policy.compute), attention_kind(shape).cache_sizes(shape)
    keys = {name: jnp.zeros((shape.n_layers, batch, length, *size), format) for name, size in sizes.items()}
    zero_B = jnp.zeros(batch, jnp.int32)
    return KVCache(keys, jnp.zeros((batch, length), jnp.int32), jnp.int32(0), zero_B, zero_B - 1)


def decode_tokens(
    shape: ModelShape,
    params: Any,
    tokens_BT: jax.Array,
    cache: KVCache,
    policy: Policy = FP32,
    starts: DocumentStarts = ONE_DOCUMENT,
) -> tuple[jax.Array, KVCache]:
    """Next-token logits [B, T, V] in fp32 after each of `tokens` [B, T], T >= 1, and the extended cache.

    The logits equal those of `transformer.next_token_logits` on all tokens so far. Padding is a document of its own,
    which changes no logits but its own. The caller must leave room: tokens beyond the cache overwrite the last ones.
    """
    index_T = cache.filled + jnp.arange(tokens_BT.shape[1])
    before_BT = jnp.concatenate([cache.last_B[:, None], tokens_BT[:, :-1]], axis=1)
    begins_BT = jnp.zeros(tokens_BT.shape, bool) if starts.separator is None else before_BT == starts.separator
    if starts.first_B is not None:
        begins_BT |= index_T[None] == starts.first_B[:, None]
    first_BT = jax.lax.cummax(jnp.where(begins_BT, index_T[None], cache.first_B[:, None]), axis=1)
    segment_BC = jax.lax.dynamic_update_slice_in_dim(cache.segment_BC, first_BT, cache.filled, axis=1)
    packed = PackedDocuments(first_BT, index_T[None] - first_BT, CachePast(cache.filled, segment_BC))
    tokens = SplitTokens(tokens_BT, None, packed)
    more = {name: {"cache": {"attention": keys}} for name, keys in by_stack(shape, cache.keys).items()}
    pieces = transformer.make_pieces(shape, policy, tokens, end_in_logits(shape))
    logits, written = run_pieces(shape, pieces, params, more)
    keys = written["cache"]["attention"]
    filled = cache.filled + tokens_BT.shape[1]
    return logits, KVCache(keys, segment_BC, filled, first_BT[:, -1], tokens_BT[:, -1].astype(jnp.int32))
