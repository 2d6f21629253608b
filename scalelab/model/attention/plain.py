"""Attention with all logits at once: ours, chosen on CPUs for short sequences, and jax's by XLA's products.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, H d_head.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from scalelab.model.attention.mask import Scoring, attention_mask, by_window, cap_logits
from scalelab.model.attention.positions.relative import relative_scores
from scalelab.precision.products import fp32_einsum

QUERY_CHUNKS, LEAST_QUERIES = 4, 64  # on a CPU: most chunks of the queries, fewest queries of one


def plain_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, scoring: Scoring, chunks: int = 1
) -> jax.Array:
    """Attention with all logits at once and softmax in fp32; has second derivatives (`train/step/update/curvature.py`).

    The queries are cut into up to so many `chunks`, each with the keys that causality and the window leave it.
    """
    bias_BNST, mask_info, window = _distance_scores(scoring), scoring.mask_info, scoring.window
    length, index_S = q_BSNH.shape[1], jnp.arange(q_BSNH.shape[1])
    size = length if chunks == 1 else max(LEAST_QUERIES, -(-length // chunks))
    y_chunks = []
    for start in range(0, length, size):
        first = max(0, start + 1 - window) if chunks > 1 and window and mask_info.is_global is None else 0
        rows, seen = slice(start, start + size), slice(first, start + size)
        segments = [mask_info.segment_BS[:, keys] for keys in (rows, seen)] if mask_info.segment_BS is not None else []
        mask = attention_mask(index_S[rows], index_S[seen], window, mask_info.is_global, *segments)
        bias = None if bias_BNST is None else bias_BNST[:, :, rows, seen]
        q, k, v = q_BSNH[:, rows] * scoring.scale, k_BTKH[:, seen], v_BTKH[:, seen]
        y_chunks.append(masked_attention(q, k, v, LogitRules(mask, bias, scoring.softcap), divide_last=chunks > 1))
    return y_chunks[0] if len(y_chunks) == 1 else jnp.concatenate(y_chunks, axis=1)


def _distance_scores(scoring: Scoring) -> jax.Array | None:
    return None if scoring.relative is None else relative_scores(scoring.relative, scoring.scale)


class LogitRules(NamedTuple):
    """What happens to the logits of scaled queries before the softmax."""

    mask: jax.Array  # [S, T] or [B, S, T]: true where a query attends to a key
    bias_BNST: jax.Array | None  # added
    softcap: float  # bounds their sum; 0: off


def masked_attention(
    q_BSNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, rules: LogitRules, divide_last: bool = False
) -> jax.Array:
    """Attention of scaled queries by one batched product over (sequence, key head).

    `divide_last`: weights are divided by their sum after the product with the values, which saves passes over [S, T].
    """
    batch, length, heads, width = q_BSNH.shape
    keys, stacked = k_BTKH.shape[2], heads // k_BTKH.shape[2] * length  # queries that share a key head are stacked
    q = q_BSNH.transpose(0, 2, 1, 3).reshape(batch * keys, stacked, width)
    k, v = (x.transpose(0, 2, 1, 3).reshape(batch * keys, -1, x.shape[3]) for x in (k_BTKH, v_BTKH))
    logits, hidden = fp32_einsum("bsh,bth->bst", q, k), jnp.where(rules.mask, 0.0, -1e30)
    if rules.bias_BNST is not None:
        logits = logits + rules.bias_BNST.reshape(batch * keys, stacked, -1)
    logits = cap_logits(logits, rules.softcap)
    if rules.mask.ndim == 2:
        logits = logits + jnp.tile(hidden, (stacked // length, 1))[None]
    else:
        by_query = logits.reshape(batch, keys, -1, length, logits.shape[-1])
        logits = (by_query + hidden[:, None, None]).reshape(logits.shape)
    if divide_last:
        weights = jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))
        y = fp32_einsum("bst,bth->bsh", weights.astype(v.dtype), v) / jnp.sum(weights, axis=-1, keepdims=True)
        y = y.astype(v.dtype)
    else:
        y = fp32_einsum("bst,bth->bsh", jax.nn.softmax(logits, axis=-1).astype(v.dtype), v).astype(v.dtype)
    return y.reshape(batch, heads, length, -1).transpose(0, 2, 1, 3)


def attention_logits(q_BSNH: jax.Array, k_BTKH: jax.Array, scoring: Scoring) -> jax.Array:
    """The softmax's input [B, N, S, T] in fp32, NaN where masked; for inspection on one device."""
    index_S = jnp.arange(q_BSNH.shape[1])
    segment_BS, is_global = scoring.mask_info
    mask = attention_mask(index_S, index_S, scoring.window, is_global, segment_BS, segment_BS)
    k_BTNH = jnp.repeat(k_BTKH, q_BSNH.shape[2] // k_BTKH.shape[2], axis=2)
    logits_BNST = fp32_einsum("bsnh,btnh->bnst", q_BSNH * scoring.scale, k_BTNH)
    if scoring.relative is not None:
        logits_BNST = logits_BNST + relative_scores(scoring.relative, scoring.scale)
    logits_BNST = cap_logits(logits_BNST, scoring.softcap)
    return jnp.where(mask if mask.ndim == 2 else mask[:, None], logits_BNST, jnp.nan)


def xla_attention(q: jax.Array, k: jax.Array, v: jax.Array, scoring: Scoring) -> jax.Array:
    """`jax.nn.dot_product_attention` by XLA's own products."""
    bias, index, (segment, is_global) = _distance_scores(scoring), jnp.arange(q.shape[1]), scoring.mask_info
    mask = None if segment is None else attention_mask(index, index, 0, None, segment, segment)[:, None]
    whole = functools.partial(
        jax.nn.dot_product_attention,
        q,
        k,
        v,
        bias=bias,
        mask=mask,
        is_causal=True,
        scale=scoring.scale,
        implementation="xla",
    )
    near = functools.partial(whole, local_window_size=(scoring.window - 1, 0)) if scoring.window else whole
    return by_window(near, whole, is_global)
