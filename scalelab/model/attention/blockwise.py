"""Attention block by block: a running softmax over blocks of keys (Milakov & Gimelshein 2018; Rabe & Staats 2021).

Memory grows linearly with the sequence, forward and backward. The backward is written out and recomputes the blocks
(Dao et al. 2022, section 3.1 and appendix B.2); jax's own would keep every block.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, G = N / K, H d_head; s, t: queries and keys of a block.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.model.attention.mask import NO_MASK, MaskInfo, Scoring, attention_mask, cap_logits
from scalelab.model.attention.positions.relative import (
    BlockedRelative,
    add_block_gradients,
    blocked_relative_gradients,
    make_blocked_relative,
    relative_block_scores,
)
from scalelab.precision.products import fp32_einsum
from scalelab.sharding import target_platform, vary_like

CPU_BLOCK = 128  # queries and keys at once; fastest of 128 to 1024 for 512 to 4k tokens (checks/speed/attention.py)
DEFAULT_BLOCK = 512  # elsewhere: not measured
ENTROPY_STRIDE = 8  # of all queries the entropy would cost a fifth of a small model's step
MIN_EXPONENT = -104.0  # exp of less is zero in fp32


def block_size() -> int:
    """Queries and keys per block on the target backend."""
    return CPU_BLOCK if target_platform() == "cpu" else DEFAULT_BLOCK


class SoftmaxSums(NamedTuple):
    """Running softmax over the keys so far, in fp32."""

    most: jax.Array  # largest logit [B, K, G, S]
    total: jax.Array  # sum of exp(logit - most) [B, K, G, S]
    y: jax.Array  # sum of exp(logit - most) times values [B, K, G, S, H]


class Blocks(NamedTuple):
    """Blocks of logits to compute: `pairs` [n, 2] of a block of queries and one of keys, each of `size` tokens.

    `mask(i, j)`: mask of queries from i on and keys from j on, [s, t] or [B, s, t].
    """

    pairs: np.ndarray | jax.Array
    size: int
    mask: Callable
    distances: BlockedRelative | None = None
    softcap: float = 0.0


class SoftmaxGradient(NamedTuple):
    """Inputs of the softmax's backward besides logits: log of its sum [B, K, G, S], dy, sum of dy y over H."""

    log_z: jax.Array
    dy: jax.Array
    dy_dot_y: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def blockwise_attention(
    q_BSNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, scoring: Scoring, block: int
) -> jax.Array:
    """Causal attention [B, S, N, H] in blocks of `block` queries and keys.

    Blocks that causality or the window mask completely are not computed.
    """
    return blockwise_forward(q_BSNH, k_BSKH, v_BSKH, scoring, block)[0]


def blockwise_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, scoring: Scoring, block: int
) -> tuple[jax.Array, tuple]:
    """(attention, what the backward takes: its last is the log of the softmax's sum [B, K, G, S in whole blocks])."""
    length, block = q.shape[1], min(block, q.shape[1])
    blocks = _visible_blocks(length, scoring, block)
    grouped = group_heads(q * scoring.scale, k.shape[2]), move_heads_first(k), move_heads_first(v)
    q_, k_, v_ = (_pad_to_blocks(x, block) for x in grouped)
    y, log_z = finish_softmax(accumulate_attention(q_, k_, v_, empty_sums(q_, v_), blocks))
    residuals = (q, k, v, scoring, y[..., :length, :], log_z)
    return ungroup_heads(y[..., :length, :]).astype(q.dtype), residuals


def blockwise_backward(block: int, residuals: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, Scoring]:
    """Gradients of `blockwise_attention`'s arrays; `residuals` of `blockwise_forward`."""
    q, k, v, scoring, y, log_z = residuals
    length, block, heads, scale = q.shape[1], min(block, q.shape[1]), k.shape[2], scoring.scale
    blocks = _visible_blocks(length, scoring, block)
    dy_ = group_heads(dy, heads)
    dy_dot_y = _pad_to_blocks(jnp.sum(dy_.astype(jnp.float32) * y, axis=-1)[..., None], block)[..., 0]
    q_, k_, v_, dy_ = (
        _pad_to_blocks(x, block) for x in (group_heads(q * scale, heads), move_heads_first(k), move_heads_first(v), dy_)
    )
    grads = zero_gradients(q, q_, k_, v_, blocks.distances)
    output = SoftmaxGradient(log_z, dy_, dy_dot_y)
    dq, dk, dv, dr = accumulate_gradients(q_, k_, v_, output, grads, blocks)
    dq, dk, dv = (x[..., :length, :] for x in (dq, dk, dv))
    by_distance = scoring_gradient(scoring, dr, block)
    dq = (scale * ungroup_heads(dq)).astype(q.dtype)
    return dq, move_heads_first(dk).astype(k.dtype), move_heads_first(dv).astype(v.dtype), by_distance


blockwise_attention.defvjp(blockwise_forward, blockwise_backward)


def scoring_gradient(scoring: Scoring, dr: Any, block: int) -> Scoring:
    """The gradient of a `Scoring`: that of its distances, from those of a `BlockedRelative`'s q and r."""
    relative = scoring.relative
    by_distance = None if relative is None else blocked_relative_gradients(dr, relative, scoring.scale, block)
    return dataclasses.replace(scoring, mask_info=None, relative=by_distance)  # type: ignore[arg-type]


def visible_block_pairs(blocks: int, block: int, window: int = 0, mask_info: MaskInfo = NO_MASK) -> np.ndarray:
    """Pairs (block of queries, block of keys) [n, 2] that are not completely masked; a query's own block comes first.

    So each query has attended to itself before it meets a block with none of its keys.
    """
    reach = window if window and mask_info.is_global is None else blocks * block
    query, back = np.tril_indices(blocks)  # blocks of queries in order, and how far before each its keys stand
    near = (back - 1) * block + 1 < reach
    return np.stack([query, query - back], axis=1)[near].astype(np.int32)


def empty_sums(q: jax.Array, v: jax.Array) -> SoftmaxSums:
    """Softmax sums before the first key."""
    zero = vary_like(jnp.zeros(q.shape[:-1]), q)
    y = vary_like(jnp.zeros((*q.shape[:-1], v.shape[-1])), q)
    return SoftmaxSums(jnp.full_like(zero, -jnp.inf), zero, y)


def finish_softmax(sums: SoftmaxSums) -> tuple[jax.Array, jax.Array]:
    """From the sums: (attention [B, K, G, S, H], log of the sum of exponentials [B, K, G, S]), in fp32."""
    return sums.y / sums.total[..., None], sums.most + jnp.log(sums.total)


def zero_gradients(
    like: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, distances: BlockedRelative | None
) -> tuple:
    """Zero gradients in fp32 to start from: (dq, dk, dv, those of the distances' q and r or None)."""
    inputs = (q, k, v, None if distances is None else (distances.q, distances.r))
    return jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape), like), inputs)


def accumulate_attention(q: jax.Array, k: jax.Array, v: jax.Array, sums: SoftmaxSums, blocks: Blocks) -> SoftmaxSums:
    """Add the keys of these blocks to `sums`: q [B, K, G, S, H], scaled; k, v [B, K, T, H]."""
    block = blocks.size

    def add_pair(sums: SoftmaxSums, pair: jax.Array) -> tuple[SoftmaxSums, None]:
        i, j = pair[0] * block, pair[1] * block
        k_j, v_j = _slice_axis(k, j, block, -2), _slice_axis(v, j, block, -2)
        most, total, y = (_slice_axis(x, i, block, 3) for x in sums)
        logits = _logits(_slice_axis(q, i, block, 3), k_j, blocks, i, j)
        new = jnp.maximum(most, jnp.max(logits, axis=-1))
        weights, before = jnp.exp(logits - new[..., None]), jnp.exp(most - new)
        y = y * before[..., None] + _product("cmt,cth->cmh", weights.astype(v.dtype), v_j)
        block_sums = SoftmaxSums(new, total * before + jnp.sum(weights, axis=-1), y)
        return jax.tree.map(lambda x, part: _update_axis(x, part, i, 3), sums, block_sums), None

    return jax.lax.scan(add_pair, sums, jnp.asarray(blocks.pairs))[0]


def largest_and_entropy(q: jax.Array, k: jax.Array, blocks: Blocks) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The largest logit [] of these blocks, the sum of the softmax's entropies in nats, and their number.

    Arguments as for `accumulate_attention`, padded here. The entropy, whose exponentials cost most, is of every
    ENTROPY_STRIDE-th query of a block and all heads if that divides the block, else of all queries.
    """
    block = blocks.size
    stride = ENTROPY_STRIDE if block % ENTROPY_STRIDE == 0 else 1
    q, k = _pad_to_blocks(q, block), _pad_to_blocks(k, block)

    def add_pair(sums: Any, pair: jax.Array) -> tuple[Any, None]:
        i, j, at = pair[0] * block, pair[1] * block, pair[0] * (block // stride)
        largest, *sums = sums
        most, total, shifted_sum = (_slice_axis(x, at, block // stride, 3) for x in sums)
        logits = _logits(_slice_axis(q, i, block, 3), _slice_axis(k, j, block, -2), blocks, i, j)
        largest, logits = jnp.maximum(largest, jnp.max(logits)), logits[..., stride - 1 :: stride, :]
        new = jnp.maximum(most, jnp.max(logits, axis=-1))
        base = jnp.where(jnp.isfinite(new), new, 0.0)  # a query that has met no key yet
        shifted = logits - base[..., None]
        weights, before = jnp.exp(shifted), jnp.exp(most - base)
        moved = jnp.where(total > 0, total * (most - base), 0.0)
        # -inf times a weight of 0 is NaN
        shifted_sum = before * (shifted_sum + moved) + jnp.sum(weights * jnp.maximum(shifted, MIN_EXPONENT), axis=-1)
        pair_sums = new, total * before + jnp.sum(weights, axis=-1), shifted_sum
        return (largest, *(_update_axis(x, part, at, 3) for x, part in zip(sums, pair_sums, strict=True))), None

    zeros = vary_like(jnp.zeros((*q.shape[:3], q.shape[3] // stride)), q, k)
    start = vary_like(jnp.float32(-jnp.inf), q, k), zeros - jnp.inf, zeros, zeros
    largest, _, total, shifted_sum = jax.lax.scan(add_pair, start, jnp.asarray(blocks.pairs))[0]
    has_keys = total > 0
    total = jnp.where(has_keys, total, 1.0)
    entropies = jnp.where(has_keys, jnp.log(total) - shifted_sum / total, 0.0)
    return largest, jnp.sum(entropies), jnp.sum(has_keys, dtype=jnp.float32)


def accumulate_gradients(
    q: jax.Array, k: jax.Array, v: jax.Array, output: SoftmaxGradient, grads: Any, blocks: Blocks
) -> Any:
    """Add the part of these blocks to `grads` (as `zero_gradients`)."""
    block, distances = blocks.size, blocks.distances

    def add_pair(grads: Any, pair: jax.Array) -> tuple[Any, None]:
        i, j = pair[0] * block, pair[1] * block
        dq, dk, dv, dr = grads
        by_query = q, output.dy, output.log_z, output.dy_dot_y
        q_i, dy_i, log_z_i, dy_dot_y_i = (_slice_axis(x, i, block, 3) for x in by_query)
        k_j, v_j = _slice_axis(k, j, block, -2), _slice_axis(v, j, block, -2)
        logits = _logits(q_i, k_j, blocks, i, j)
        p = jnp.exp(logits - log_z_i[..., None])
        dp = _product("cmh,cth->cmt", dy_i, v_j)
        ds = p * (dp - dy_dot_y_i[..., None])  # stays fp32: rounded to bf16, gradients of q and k are off by 1 %
        if blocks.softcap:  # the tanh's derivative; ds is zero where keys are masked
            ds = ds * (1 - jnp.square(jnp.where(logits == -jnp.inf, 0.0, logits) / blocks.softcap))
        dv = _update_axis(dv, _slice_axis(dv, j, block, -2) + _product("cmt,cmh->cth", p.astype(v.dtype), dy_i), j, -2)
        dk = _update_axis(dk, _slice_axis(dk, j, block, -2) + _product("cmt,cmh->cth", ds, q_i.astype(ds.dtype)), j, -2)
        dq = _update_axis(dq, _slice_axis(dq, i, block, 3) + _product("cmt,cth->cmh", ds, k_j.astype(ds.dtype)), i, 3)
        if distances is not None:
            heads_first = ds.reshape(ds.shape[0], -1, *ds.shape[3:]).swapaxes(0, 1)
            dr = add_block_gradients(dr, distances, heads_first, i, j)
        return (dq, dk, dv, dr), None

    return jax.lax.scan(add_pair, grads, jnp.asarray(blocks.pairs))[0]


def _logits(q: jax.Array, k: jax.Array, blocks: Blocks, i: jax.Array, j: jax.Array) -> jax.Array:
    """Logits [B, K, G, s, t] in fp32 of queries from i on and keys from j on, -inf where masked."""
    mask, logits = blocks.mask(i, j), _product("cmh,cth->cmt", q, k)
    if blocks.distances is not None:
        logits += relative_block_scores(blocks.distances, i, j, q.shape[3]).swapaxes(0, 1).reshape(logits.shape)
    logits = cap_logits(logits, blocks.softcap)
    return jnp.where(mask if mask.ndim == 2 else mask[:, None, None], logits, -jnp.inf)


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """One product per sequence and key head; the queries [G, s] of a key head are stacked and unstacked here."""
    a_, b_ = (x.reshape(x.shape[0] * x.shape[1], -1, x.shape[-1]) for x in (a, b))
    y = fp32_einsum(subscripts, a_, b_)
    queries = subscripts.endswith("m" + subscripts[-1])
    return y.reshape(*(a.shape[:4] if queries else a.shape[:2]), *y.shape[2:] if queries else y.shape[1:])


def _slice_axis(x: jax.Array, start: jax.Array, size: int, axis: int) -> jax.Array:
    return x if x.shape[axis] == size else jax.lax.dynamic_slice_in_dim(x, start, size, axis % x.ndim)


def _update_axis(x: jax.Array, part: jax.Array, start: jax.Array, axis: int) -> jax.Array:
    return part if x.shape == part.shape else jax.lax.dynamic_update_slice_in_dim(x, part, start, axis % x.ndim)


def _visible_blocks(length: int, scoring: Scoring, block: int) -> Blocks:
    """The blocks of a sequence that are not completely masked."""
    mask_info, window, relative = scoring.mask_info, scoring.window, scoring.relative
    index = jnp.arange(block)
    segment = mask_info.segment_BS
    if segment is not None:  # padding of the last block comes after all real queries, so causality masks it
        segment = jnp.pad(segment, ((0, 0), (0, -length % block)), constant_values=-1)

    def mask_of(i: jax.Array, j: jax.Array) -> jax.Array:
        segments = [None if segment is None else _slice_axis(segment, start, block, 1) for start in (i, j)]
        return attention_mask(i + index, j + index, window, mask_info.is_global, *segments)

    pairs = visible_block_pairs(-(-length // block), block, window, mask_info)
    distances = None if relative is None else make_blocked_relative(relative, scoring.scale, block)
    return Blocks(pairs, block, mask_of, distances, scoring.softcap)


def _pad_to_blocks(x: jax.Array, block: int) -> jax.Array:
    """Pad the axis before the last to whole blocks."""
    padding = -x.shape[-2] % block
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, padding), (0, 0)]) if padding else x


def group_heads(x_BSNH: jax.Array, keys: int) -> jax.Array:
    """[B, S, N, H] -> [B, K, G, S, H]."""
    b, s, n, h = x_BSNH.shape
    return x_BSNH.reshape(b, s, keys, n // keys, h).transpose(0, 2, 3, 1, 4)


def ungroup_heads(x_BKGSH: jax.Array) -> jax.Array:
    """[B, K, G, S, H] -> [B, S, N, H]."""
    b, k, g, s, h = x_BKGSH.shape
    return x_BKGSH.transpose(0, 3, 1, 2, 4).reshape(b, s, k * g, h)


def move_heads_first(x_BTKH: jax.Array) -> jax.Array:
    """[B, T, K, H] -> [B, K, T, H], and back."""
    return x_BTKH.transpose(0, 2, 1, 3)
