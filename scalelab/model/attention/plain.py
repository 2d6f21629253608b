"""Attention with all logits at once: ours, chosen on CPUs for short sequences, and jax's by XLA's products.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, H d_head.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.model.attention.mask import NO_MASK, MaskInfo, attention_mask, by_window
from scalelab.model.attention.relative import RelativeInputs, relative_scores
from scalelab.precision.products import fp32_einsum

QUERY_CHUNKS, LEAST_QUERIES = 4, 64  # on a CPU: most chunks of the queries, fewest queries of one


def plain_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, bias_BNST: jax.Array | None, scale: float,
    mask_info: MaskInfo = NO_MASK, window: int = 0, chunks: int = 1,
) -> jax.Array:  # fmt: skip
    """Attention with all logits at once and softmax in fp32; has second derivatives (`train/step/update/curvature.py`).

    The queries are cut into up to so many `chunks`, each with the keys that causality and the window leave it.
    """
    length, index_S = q_BSNH.shape[1], jnp.arange(q_BSNH.shape[1])
    size = length if chunks == 1 else max(LEAST_QUERIES, -(-length // chunks))
    y_chunks = []
    for start in range(0, length, size):
        first = max(0, start + 1 - window) if chunks > 1 and window and mask_info.is_global is None else 0
        rows, seen = slice(start, start + size), slice(first, start + size)
        segments = [mask_info.segment_BS[:, keys] for keys in (rows, seen)] if mask_info.segment_BS is not None else []
        mask = attention_mask(index_S[rows], index_S[seen], window, mask_info.is_global, *segments)
        bias = None if bias_BNST is None else bias_BNST[:, :, rows, seen]
        qkv = q_BSNH[:, rows], k_BTKH[:, seen], v_BTKH[:, seen]
        y_chunks.append(masked_attention(*qkv, bias, scale, mask, divide_last=chunks > 1))
    return y_chunks[0] if len(y_chunks) == 1 else jnp.concatenate(y_chunks, axis=1)


def masked_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, bias_BNST: jax.Array | None, scale: float,
    mask: jax.Array, divide_last: bool = False,
) -> jax.Array:  # fmt: skip
    """Attention where `mask` [S, T] or [B, S, T] is true; one batched product over (sequence, key head).

    `divide_last`: weights are divided by their sum after the product with the values, which saves passes over [S, T].
    """
    batch, length, heads, width = q_BSNH.shape
    keys, stacked = k_BTKH.shape[2], heads // k_BTKH.shape[2] * length  # queries that share a key head are stacked
    q = (q_BSNH * scale).transpose(0, 2, 1, 3).reshape(batch * keys, stacked, width)
    k, v = (x.transpose(0, 2, 1, 3).reshape(batch * keys, -1, width) for x in (k_BTKH, v_BTKH))
    logits, hidden = fp32_einsum("bsh,bth->bst", q, k), jnp.where(mask, 0.0, -1e30)
    if mask.ndim == 2:
        logits = logits + jnp.tile(hidden, (stacked // length, 1))[None]
    else:
        by_query = logits.reshape(batch, keys, -1, length, logits.shape[-1])
        logits = (by_query + hidden[:, None, None]).reshape(logits.shape)
    if bias_BNST is not None:
        logits = logits + bias_BNST.reshape(batch * keys, stacked, -1)
    if divide_last:
        weights = jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))
        y = fp32_einsum("bst,bth->bsh", weights.astype(v.dtype), v) / jnp.sum(weights, axis=-1, keepdims=True)
        y = y.astype(v.dtype)
    else:
        y = fp32_einsum("bst,bth->bsh", jax.nn.softmax(logits, axis=-1).astype(v.dtype), v).astype(v.dtype)
    return y.reshape(batch, heads, length, width).transpose(0, 2, 1, 3)


def attention_logits(
    q_BSNH: jax.Array,
    k_BTKH: jax.Array,
    relative: RelativeInputs | None,
    scale: float,
    mask_info: MaskInfo,
    window: int,
) -> jax.Array:
    """The softmax's input [B, N, S, T] in fp32, NaN where masked; for inspection on one device."""
    index_S = jnp.arange(q_BSNH.shape[1])
    mask = attention_mask(index_S, index_S, window, mask_info.is_global, mask_info.segment_BS, mask_info.segment_BS)
    k_BTNH = jnp.repeat(k_BTKH, q_BSNH.shape[2] // k_BTKH.shape[2], axis=2)
    logits_BNST = fp32_einsum("bsnh,btnh->bnst", q_BSNH * scale, k_BTNH)
    if relative is not None:
        logits_BNST = logits_BNST + relative_scores(relative, scale)
    return jnp.where(mask if mask.ndim == 2 else mask[:, None], logits_BNST, jnp.nan)


def xla_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, bias: Any, scale: float, mask_info: MaskInfo, window: int
) -> jax.Array:
    """`jax.nn.dot_product_attention` by XLA's own products."""
    index, segment = jnp.arange(q.shape[1]), mask_info.segment_BS
    mask = None if segment is None else attention_mask(index, index, 0, None, segment, segment)[:, None]
    whole = functools.partial(
        jax.nn.dot_product_attention,
        q, k, v, bias=bias, mask=mask, is_causal=True, scale=scale, implementation="xla",
    )  # fmt: skip
    near = functools.partial(whole, local_window_size=(window - 1, 0)) if window else whole
    return by_window(near, whole, mask_info.is_global)
