"""Ring attention (Liu et al. 2023): queries stay, keys and values go once around the devices that share a sequence.

The arithmetic is that of `blockwise.py`: a device holds the logits of one block of its own queries and one block of
another device's keys. Device i holds the i-th part of the sequence, so the last one works in every turn, others wait.

Shapes: B batch, s a device's part of the sequence, N heads, K key/value heads, H d_head.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.model.attention.blockwise import (
    accumulate_attention,
    accumulate_gradients,
    block_size,
    empty_sums,
    finish_softmax,
    group_heads,
    move_heads_first,
    ungroup_heads,
    zero_gradients,
)
from scalelab.model.attention.mask import MaskInfo, attention_mask
from scalelab.model.attention.relative import (
    BlockedRelative,
    RelativeInputs,
    blocked_relative_gradients,
    make_blocked_relative,
)
from scalelab.sharding import CONTEXT_AXIS, mesh_axis_size


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def ring_attention(
    q_BsNH: jax.Array, k_BsKH: jax.Array, v_BsKH: jax.Array, mask_info: MaskInfo, scale: float, window: int = 0,
    relative: RelativeInputs | None = None,
) -> jax.Array:  # fmt: skip
    """Causal attention [B, s, N, H] over the whole sequence, to be called within a shard_map over `context`.

    `relative` holds all distances on every device.
    """
    return _forward(q_BsNH, k_BsKH, v_BsKH, mask_info, scale, window, relative)[0]


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask_info: MaskInfo,
    scale: float,
    window: int,
    relative: RelativeInputs | None,
) -> tuple[jax.Array, tuple]:
    q_, (pairs, block) = group_heads(q * scale, k.shape[2]), _pairs(q.shape[1])
    distances = None if relative is None else make_blocked_relative(relative, scale, block)

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        (k, v, key_segments), sums = carry
        mask = _masks(mask_info, key_segments, turns, window, q.shape[1], block)
        turned = _relative_after_turns(distances, turns, q.shape[1])
        sums = accumulate_attention(q_, k, v, sums, pairs, block, mask, turned)
        return (_pass_around_ring((k, v, key_segments)), sums), None

    begin = ((move_heads_first(k), move_heads_first(v), mask_info.segment_BS), empty_sums(q_))
    (_, sums), _ = jax.lax.scan(turn, begin, jnp.arange(mesh_axis_size(CONTEXT_AXIS)))
    y, log_z = finish_softmax(sums)
    # y stays in fp32: the gradient of keys is a small difference
    return ungroup_heads(y).astype(q.dtype), (q, k, v, mask_info, relative, y, log_z)


def _backward(scale: float, window: int, residuals: tuple, dy: jax.Array) -> tuple[Any, ...]:
    q, k, v, mask_info, relative, y, log_z = residuals
    heads, (pairs, block) = k.shape[2], _pairs(q.shape[1])
    q_, dy_ = group_heads(q * scale, heads), group_heads(dy, heads)
    dy_dot_y = jnp.sum(dy_.astype(jnp.float32) * y, axis=-1)  # sum of p dp over keys
    distances = None if relative is None else make_blocked_relative(relative, scale, block)

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        (k, v, key_segments, dk, dv), dq, dr = carry
        mask = _masks(mask_info, key_segments, turns, window, q.shape[1], block)
        turned = _relative_after_turns(distances, turns, q.shape[1])
        sums = dq, dk, dv, dr
        dq, dk, dv, dr = accumulate_gradients(q_, k, v, log_z, dy_, dy_dot_y, sums, pairs, block, mask, turned)
        return (_pass_around_ring((k, v, key_segments, dk, dv)), dq, dr), None

    k_, v_ = move_heads_first(k), move_heads_first(v)
    dq, dk, dv, dr = zero_gradients(q, q_, k_, v_, distances)
    begin = ((k_, v_, mask_info.segment_BS, dk, dv), dq, dr)
    ((_, _, _, dk, dv), dq, dr), _ = jax.lax.scan(turn, begin, jnp.arange(mesh_axis_size(CONTEXT_AXIS)))
    by_distance = None if relative is None else blocked_relative_gradients(dr, relative, scale, block)
    dq = (scale * ungroup_heads(dq)).astype(q.dtype)
    return dq, move_heads_first(dk).astype(k.dtype), move_heads_first(dv).astype(v.dtype), None, by_distance


ring_attention.defvjp(_forward, _backward)


def _pairs(length: int) -> tuple[np.ndarray, int]:
    """All pairs of blocks, and a block's length; a query's own block comes first, as in `visible_block_pairs`."""
    block = block_size() if length % block_size() == 0 else length
    blocks = range(length // block)
    return np.array([(i, (i - j) % len(blocks)) for i in blocks for j in blocks], np.int32), block


def _relative_after_turns(distances: BlockedRelative | None, turns: jax.Array, length: int) -> BlockedRelative | None:
    """`distances` between this device's queries and the keys that have moved by `turns` devices."""
    if distances is None:
        return None
    me = jax.lax.axis_index(CONTEXT_AXIS)
    return distances._replace(ahead=(me - (me - turns) % mesh_axis_size(CONTEXT_AXIS)) * length)


def _masks(
    mask_info: MaskInfo, key_segments: jax.Array | None, turns: jax.Array, window: int, length: int, block: int
) -> Callable:
    """Mask function of blocks: this device's queries against the keys that have moved by `turns` devices."""
    me, index = jax.lax.axis_index(CONTEXT_AXIS), jnp.arange(block)
    first, first_key = me * length, (me - turns) % mesh_axis_size(CONTEXT_AXIS) * length

    def part(segment: jax.Array | None, start: jax.Array) -> jax.Array | None:
        return None if segment is None else jax.lax.dynamic_slice_in_dim(segment, start, block, 1)

    def mask_of(i: jax.Array, j: jax.Array) -> jax.Array:
        segments = part(mask_info.segment_BS, i), part(key_segments, j)
        return attention_mask(first + i + index, first_key + j + index, window, mask_info.is_global, *segments)

    return mask_of


def _pass_around_ring(tree: Any) -> Any:
    n = mesh_axis_size(CONTEXT_AXIS)
    return jax.lax.ppermute(tree, CONTEXT_AXIS, [(i, (i + 1) % n) for i in range(n)])
