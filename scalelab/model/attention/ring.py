"""Ring attention (Liu et al. 2023): queries stay, keys and values go once round the devices that share a sequence.

The arithmetic is that of `blockwise.py`, so that a device holds logits of a block of its own queries and a block of one other
device's keys. Device i holds the i-th part of the sequence: the last one has work in every turn, the others wait.

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
    q_BsNH: jax.Array, k_BsKH: jax.Array, v_BsKH: jax.Array, sight: MaskInfo, scale: float, window: int = 0,
    relative: RelativeInputs | None = None,
) -> jax.Array:  # fmt: skip
    """Causal attention [B, s, N, H] over the whole sequence, from within a shard_map over `context`.

    `relative` holds all distances on every device.
    """
    return _forward(q_BsNH, k_BsKH, v_BsKH, sight, scale, window, relative)[0]


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sight: MaskInfo,
    scale: float,
    window: int,
    relative: RelativeInputs | None,
) -> tuple[jax.Array, tuple]:
    q_, (todo, block) = group_heads(q * scale, k.shape[2]), _pairs(q.shape[1])
    distances = None if relative is None else make_blocked_relative(relative, scale, block)

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        (k, v, of_keys), sums = carry
        seen = _masks(sight, of_keys, turns, window, q.shape[1], block)
        sums = accumulate_attention(
            q_, k, v, sums, todo, block, seen, _relative_after_turns(distances, turns, q.shape[1])
        )
        return (_pass_around_ring((k, v, of_keys)), sums), None

    begin = ((move_heads_first(k), move_heads_first(v), sight.segment_BS), empty_sums(q_))
    (_, sums), _ = jax.lax.scan(turn, begin, jnp.arange(mesh_axis_size(CONTEXT_AXIS)))
    y, log_z = finish_softmax(sums)
    # y is kept in fp32: the gradient of keys is a small difference
    return ungroup_heads(y).astype(q.dtype), (q, k, v, sight, relative, y, log_z)


def _backward(scale: float, window: int, kept: tuple, dy: jax.Array) -> tuple[Any, ...]:
    q, k, v, sight, relative, y, log_z = kept
    heads, (todo, block) = k.shape[2], _pairs(q.shape[1])
    q_, dy_ = group_heads(q * scale, heads), group_heads(dy, heads)
    spent = jnp.sum(dy_.astype(jnp.float32) * y, axis=-1)  # sum of p dp over keys
    distances = None if relative is None else make_blocked_relative(relative, scale, block)

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        (k, v, of_keys, dk, dv), dq, dr = carry
        seen, mine = (
            _masks(sight, of_keys, turns, window, q.shape[1], block),
            _relative_after_turns(distances, turns, q.shape[1]),
        )
        dq, dk, dv, dr = accumulate_gradients(q_, k, v, log_z, dy_, spent, (dq, dk, dv, dr), todo, block, seen, mine)
        return (_pass_around_ring((k, v, of_keys, dk, dv)), dq, dr), None

    k_, v_ = move_heads_first(k), move_heads_first(v)
    dq, dk, dv, dr = zero_gradients(q, q_, k_, v_, distances)
    begin = ((k_, v_, sight.segment_BS, dk, dv), dq, dr)
    ((_, _, _, dk, dv), dq, dr), _ = jax.lax.scan(turn, begin, jnp.arange(mesh_axis_size(CONTEXT_AXIS)))
    by_distance = None if relative is None else blocked_relative_gradients(dr, relative, scale, block)
    dq = (scale * ungroup_heads(dq)).astype(q.dtype)
    return dq, move_heads_first(dk).astype(k.dtype), move_heads_first(dv).astype(v.dtype), None, by_distance


ring_attention.defvjp(_forward, _backward)


def _pairs(length: int) -> tuple[np.ndarray, int]:
    """All pairs of blocks and a block's length; a query's own block comes first, as in `blockwise.visible_block_pairs`."""
    block = block_size() if length % block_size() == 0 else length
    blocks = range(length // block)
    return np.array([(i, (i - j) % len(blocks)) for i in blocks for j in blocks], np.int32), block


def _relative_after_turns(distances: BlockedRelative | None, turns: jax.Array, length: int) -> BlockedRelative | None:
    """Of queries here and the keys that have come `turns` devices far."""
    if distances is None:
        return None
    me = jax.lax.axis_index(CONTEXT_AXIS)
    return distances._replace(ahead=(me - (me - turns) % mesh_axis_size(CONTEXT_AXIS)) * length)


def _masks(
    sight: MaskInfo, segment_of_keys: jax.Array | None, turns: jax.Array, window: int, length: int, block: int
) -> Callable:
    """What blocks of this device's queries see of the keys that have come `turns` devices far."""
    me, index = jax.lax.axis_index(CONTEXT_AXIS), jnp.arange(block)
    first, first_key = me * length, (me - turns) % mesh_axis_size(CONTEXT_AXIS) * length

    def part(segment: jax.Array | None, start: jax.Array) -> jax.Array | None:
        return None if segment is None else jax.lax.dynamic_slice_in_dim(segment, start, block, 1)

    def seen(i: jax.Array, j: jax.Array) -> jax.Array:
        of = part(sight.segment_BS, i), part(segment_of_keys, j)
        return attention_mask(first + i + index, first_key + j + index, window, sight.everywhere, *of)

    return seen


def _pass_around_ring(tree: Any) -> Any:
    n = mesh_axis_size(CONTEXT_AXIS)
    return jax.lax.ppermute(tree, CONTEXT_AXIS, [(i, (i + 1) % n) for i in range(n)])
