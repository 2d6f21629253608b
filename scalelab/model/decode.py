"""Logits a few tokens at a time with a cache of earlier keys and values, for sampling and scoring. On one device.

Shapes: L layers, B batch, T new tokens, C the cache's length, K key/value heads, H d_head, V vocab.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention.documents import CachePast, PackedDocuments, SplitTokens
from scalelab.model.attention.latent import attention_kind
from scalelab.model.pieces import Params, Pieces, end_in_logits, layers_at_once, run_pieces
from scalelab.model.stacks import all_layer_flags, by_stack, list_layers, select_layers, stacks
from scalelab.precision.policy import FP32, Policy, array_dtype


class LayerList(NamedTuple):
    """A model's parameters with each layer's in arrays of their own: `by_layer`."""

    outside: Params  # all but the blocks'
    layers: tuple[Params, ...]


class KVCache(NamedTuple):
    """Keys, values and documents of the tokens so far."""

    # {"k", "v"}: [L, B, C, K, H] in the policy's compute dtype; of latent attention {"latent"}, one head. Beside a
    # `LayerList` a tuple of such dicts without L, one a layer.
    keys: Any
    segment_BC: jax.Array  # each token's document, as the index of the document's first token
    filled: jax.Array  # tokens in the cache
    first_B: jax.Array  # index of the current document's first token
    last_B: jax.Array  # the token before the next; -1: none


class DocumentStarts(NamedTuple):
    """Where documents begin; by default each sequence is one, from its first token."""

    separator: jax.Array | int | None = None  # ends a document; for a model trained with data.documents=mask
    first_B: jax.Array | None = None  # index of each sequence's first token; what stands before it is padding


ONE_DOCUMENT = DocumentStarts()


@functools.partial(jax.jit, static_argnums=0)
def _split_layers(shape: ModelShape, params: Params) -> tuple[Params, ...]:
    return tuple(layer for _, layer in list_layers(shape, params))


def by_layer(shape: ModelShape, params: Params) -> Params | LayerList:
    """The parameters as tokens are decoded fastest: where a scan is unrolled, a copy of the blocks' layer by layer.

    From stacked arrays XLA:CPU copies each layer's parameters and cache at every token: more than half of the time
    (checks/speed/sampling).
    """
    if layers_at_once(shape, shape.n_layers) < shape.n_layers:
        return params
    names = {stack.name for stack in stacks(shape)}
    outside = {name: group for name, group in params.items() if name not in names}
    return LayerList(outside, _split_layers(shape, {name: params.get(name, {}) for name in names}))


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
    params: Params | LayerList,
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
    pieces = transformer.make_pieces(shape, policy, tokens, end_in_logits(shape))
    if isinstance(params, LayerList):
        logits, keys = _run_layers(shape, pieces, params, cache.keys)
    else:
        logits, keys = _run_stacks(shape, pieces, params, cache.keys)
    filled = cache.filled + tokens_BT.shape[1]
    return logits, KVCache(keys, segment_BC, filled, first_BT[:, -1], tokens_BT[:, -1].astype(jnp.int32))


def _run_stacks(shape: ModelShape, pieces: Pieces, params: Params, keys: Any) -> tuple[jax.Array, Any]:
    """(logits, the cache's keys) by a scan over each stack."""
    more = {name: {"cache": {"attention": part}} for name, part in by_stack(shape, keys).items()}
    logits, written = run_pieces(shape, pieces, params, more)
    return logits, written["cache"]["attention"]


def _run_layers(shape: ModelShape, pieces: Pieces, params: LayerList, keys: Any) -> tuple[jax.Array, Any]:
    """(logits, the cache's keys) of the layers one after another; a cache that is new is stacked."""
    kinds = [stack.block for stack in stacks(shape) for _ in range(stack.depth)]
    if isinstance(keys, dict):
        keys = [jax.tree.map(lambda x, i=i: x[i], keys) for i in range(shape.n_layers)]
    x_BSD, written = pieces.enter(params.outside), []
    for i, (layer, past) in enumerate(zip(params.layers, keys, strict=True)):
        flags = select_layers(all_layer_flags(shape), i)
        x_BSD, wrote = pieces.block({"params": layer, "cache": {"attention": past}}, x_BSD, flags, kinds[i])
        written.append(wrote["cache"]["attention"])
    return pieces.leave(params.outside, x_BSD), tuple(written)
