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

from scalelab.model.blockwise import block_size, by_head, finish, gather_up, grouped, nothing, pull_back, ungrouped
from scalelab.model.placement import CONTEXT, as_varying, size
from scalelab.model.sight import Sight, sees


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def ring_attention(
    q_BsNH: jax.Array, k_BsKH: jax.Array, v_BsKH: jax.Array, sight: Sight, scale: float, window: int = 0
) -> jax.Array:
    """Causal attention [B, s, N, H] over the whole sequence, from within a shard_map over `context`."""
    return _forward(q_BsNH, k_BsKH, v_BsKH, sight, scale, window)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sight: Sight, scale: float, window: int
) -> tuple[jax.Array, tuple]:
    q_, (todo, block) = grouped(q * scale, k.shape[2]), _pairs(q.shape[1])

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        (k, v, of_keys), sums = carry
        sums = gather_up(q_, k, v, sums, todo, block, _masks(sight, of_keys, turns, window, q.shape[1], block))
        return (_pass((k, v, of_keys)), sums), None

    begin = ((by_head(k), by_head(v), sight.segment_BS), nothing(q_))
    (_, sums), _ = jax.lax.scan(turn, begin, jnp.arange(size(CONTEXT)))
    y, log_z = finish(sums)
    # y is kept in fp32: the gradient of keys is a small difference
    return ungrouped(y).astype(q.dtype), (q, k, v, sight, y, log_z)


def _backward(scale: float, window: int, kept: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q, k, v, sight, y, log_z = kept
    heads, (todo, block) = k.shape[2], _pairs(q.shape[1])
    q_, dy_ = grouped(q * scale, heads), grouped(dy, heads)
    spent = jnp.sum(dy_.astype(jnp.float32) * y, axis=-1)  # sum of p dp over keys

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        (k, v, of_keys, dk, dv), dq = carry
        seen = _masks(sight, of_keys, turns, window, q.shape[1], block)
        dq, dk, dv = pull_back(q_, k, v, log_z, dy_, spent, (dq, dk, dv), todo, block, seen)
        return (_pass((k, v, of_keys, dk, dv)), dq), None

    k_, v_ = by_head(k), by_head(v)
    dq, dk, dv = (as_varying(jnp.zeros(x.shape), q) for x in (q_, k_, v_))
    ((_, _, _, dk, dv), dq), _ = jax.lax.scan(turn, ((k_, v_, sight.segment_BS, dk, dv), dq), jnp.arange(size(CONTEXT)))
    return (scale * ungrouped(dq)).astype(q.dtype), by_head(dk).astype(k.dtype), by_head(dv).astype(v.dtype), None


ring_attention.defvjp(_forward, _backward)


def _pairs(length: int) -> tuple[np.ndarray, int]:
    """All pairs of blocks and a block's length; a query's own block comes first, as in `blockwise.pairs`."""
    block = block_size() if length % block_size() == 0 else length
    blocks = range(length // block)
    return np.array([(i, (i - j) % len(blocks)) for i in blocks for j in blocks], np.int32), block


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
