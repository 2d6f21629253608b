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
    block_size,
    by_head,
    finish,
    gather_up,
    grouped,
    nothing,
    pull_back,
    ungrouped,
    zeros,
)
from scalelab.model.attention.mask import Sight, sees
from scalelab.model.attention.relative import Far, Relative, far, far_gradients
from scalelab.sharding import CONTEXT, size


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def ring_attention(
    q_BsNH: jax.Array, k_BsKH: jax.Array, v_BsKH: jax.Array, sight: Sight, scale: float, window: int = 0,
    relative: Relative | None = None,
) -> jax.Array:  # fmt: skip
    """Causal attention [B, s, N, H] over the whole sequence, from within a shard_map over `context`.

    `relative` holds all distances on every device.
    """
    return _forward(q_BsNH, k_BsKH, v_BsKH, sight, scale, window, relative)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sight: Sight, scale: float, window: int, relative: Relative | None
) -> tuple[jax.Array, tuple]:
    q_, (todo, block) = grouped(q * scale, k.shape[2]), _pairs(q.shape[1])
    distances = None if relative is None else far(relative, scale, block)

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        (k, v, of_keys), sums = carry
        seen = _masks(sight, of_keys, turns, window, q.shape[1], block)
        sums = gather_up(q_, k, v, sums, todo, block, seen, _ahead(distances, turns, q.shape[1]))
        return (_pass((k, v, of_keys)), sums), None

    begin = ((by_head(k), by_head(v), sight.segment_BS), nothing(q_))
    (_, sums), _ = jax.lax.scan(turn, begin, jnp.arange(size(CONTEXT)))
    y, log_z = finish(sums)
    # y is kept in fp32: the gradient of keys is a small difference
    return ungrouped(y).astype(q.dtype), (q, k, v, sight, relative, y, log_z)


def _backward(scale: float, window: int, kept: tuple, dy: jax.Array) -> tuple[Any, ...]:
    q, k, v, sight, relative, y, log_z = kept
    heads, (todo, block) = k.shape[2], _pairs(q.shape[1])
    q_, dy_ = grouped(q * scale, heads), grouped(dy, heads)
    spent = jnp.sum(dy_.astype(jnp.float32) * y, axis=-1)  # sum of p dp over keys
    distances = None if relative is None else far(relative, scale, block)

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        (k, v, of_keys, dk, dv), dq, dr = carry
        seen, mine = _masks(sight, of_keys, turns, window, q.shape[1], block), _ahead(distances, turns, q.shape[1])
        dq, dk, dv, dr = pull_back(q_, k, v, log_z, dy_, spent, (dq, dk, dv, dr), todo, block, seen, mine)
        return (_pass((k, v, of_keys, dk, dv)), dq, dr), None

    k_, v_ = by_head(k), by_head(v)
    dq, dk, dv, dr = zeros(q, q_, k_, v_, distances)
    begin = ((k_, v_, sight.segment_BS, dk, dv), dq, dr)
    ((_, _, _, dk, dv), dq, dr), _ = jax.lax.scan(turn, begin, jnp.arange(size(CONTEXT)))
    by_distance = None if relative is None else far_gradients(dr, relative, scale, block)
    dq = (scale * ungrouped(dq)).astype(q.dtype)
    return dq, by_head(dk).astype(k.dtype), by_head(dv).astype(v.dtype), None, by_distance


ring_attention.defvjp(_forward, _backward)


def _pairs(length: int) -> tuple[np.ndarray, int]:
    """All pairs of blocks and a block's length; a query's own block comes first, as in `blockwise.pairs`."""
    block = block_size() if length % block_size() == 0 else length
    blocks = range(length // block)
    return np.array([(i, (i - j) % len(blocks)) for i in blocks for j in blocks], np.int32), block


def _ahead(distances: Far | None, turns: jax.Array, length: int) -> Far | None:
    """Of queries here and the keys that have come `turns` devices far."""
    if distances is None:
        return None
    me = jax.lax.axis_index(CONTEXT)
    return distances._replace(ahead=(me - (me - turns) % size(CONTEXT)) * length)


def _masks(
    sight: Sight, segment_of_keys: jax.Array | None, turns: jax.Array, window: int, length: int, block: int
) -> Callable:
    """What blocks of this device's queries see of the keys that have come `turns` devices far."""
    me, index = jax.lax.axis_index(CONTEXT), jnp.arange(block)
    first, first_key = me * length, (me - turns) % size(CONTEXT) * length

    def part(segment: jax.Array | None, start: jax.Array) -> jax.Array | None:
        return None if segment is None else jax.lax.dynamic_slice_in_dim(segment, start, block, 1)

    def seen(i: jax.Array, j: jax.Array) -> jax.Array:
        of = part(sight.segment_BS, i), part(segment_of_keys, j)
        return sees(first + i + index, first_key + j + index, window, sight.everywhere, *of)

    return seen


def _pass(tree: Any) -> Any:
    n = size(CONTEXT)
    return jax.lax.ppermute(tree, CONTEXT, [(i, (i + 1) % n) for i in range(n)])
