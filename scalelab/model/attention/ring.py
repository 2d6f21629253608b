"""Ring attention (Liu et al. 2023): queries stay, keys and values go once around the devices that share a sequence.

The arithmetic is that of `blockwise.py`: a device holds the logits of one block of its own queries and one block of
another device's keys. Device i of n has chunks i and 2n - 1 - i, a head and a tail (`order.py`). Of another device's
keys, causality leaves its tail the other's head, and one more whole pair of chunks: the heads of both if the other
comes before, else the tails. So a turn is equal work for all devices, without a wholly masked pair.

Shapes: B batch, s a device's tokens of the sequence, N heads, K key/value heads, H d_head.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.model.attention.blockwise import (
    Blocks,
    SoftmaxGradient,
    accumulate_attention,
    accumulate_gradients,
    block_size,
    empty_sums,
    finish_softmax,
    group_heads,
    move_heads_first,
    scoring_gradient,
    ungroup_heads,
    zero_gradients,
)
from scalelab.model.attention.mask import Scoring, attention_mask
from scalelab.model.attention.order import held_position
from scalelab.model.attention.positions.relative import BlockedRelative, make_blocked_relative
from scalelab.sharding import CONTEXT_AXIS, mesh_axis_size

BlockPairs = tuple[tuple[int, int], ...]  # (block of queries, block of keys), each counted within its chunk


class Stretch(NamedTuple):
    """Turns in a row that take the same pairs of blocks: of tail and head, and of two heads or two tails."""

    turns: range
    tail_to_head: BlockPairs
    alike: BlockPairs


@jax.custom_vjp
def ring_attention(q_BsNH: jax.Array, k_BsKH: jax.Array, v_BsKH: jax.Array, scoring: Scoring) -> jax.Array:
    """Causal attention [B, s, N, H] over the whole sequence, to be called within a shard_map over `context`.

    `scoring.relative` holds all distances on every device.
    """
    return _forward(q_BsNH, k_BsKH, v_BsKH, scoring)[0]


def _forward(q: jax.Array, k: jax.Array, v: jax.Array, scoring: Scoring) -> tuple[jax.Array, tuple]:
    q_, block, segments = group_heads(q * scoring.scale, k.shape[2]), ring_block(q.shape[1]), _segments(scoring)
    distances = _distances(scoring, block)

    def attend(held: Any, sums: Any, turn: Any, pairs: jax.Array, window: int, by: int) -> tuple[Any, Any]:
        del by
        k, v = held
        mask, ahead = _relations(segments, turn, window, q.shape[1] // 2, block)
        turned = distances and distances._replace(ahead=ahead)
        return held, accumulate_attention(q_, k, v, sums, Blocks(pairs, block, mask, turned, scoring.softcap))

    held, start = (move_heads_first(k), move_heads_first(v)), empty_sums(q_, v)
    sums = _by_window(lambda window: _go_round(attend, held, start, block, window)[1], scoring)
    y, log_z = finish_softmax(sums)
    # y stays in fp32: the gradient of keys is a small difference
    return ungroup_heads(y).astype(q.dtype), (q, k, v, scoring, y, log_z)


def _backward(residuals: tuple, dy: jax.Array) -> tuple[Any, ...]:
    q, k, v, scoring, y, log_z = residuals
    scale, segments = scoring.scale, _segments(scoring)
    heads, block = k.shape[2], ring_block(q.shape[1])
    q_, dy_ = group_heads(q * scale, heads), group_heads(dy, heads)
    dy_dot_y = jnp.sum(dy_.astype(jnp.float32) * y, axis=-1)  # sum of p dp over keys
    output, distances = SoftmaxGradient(log_z, dy_, dy_dot_y), _distances(scoring, block)

    def attend(held: Any, sums: Any, turn: Any, pairs: jax.Array, window: int, by: int) -> tuple[Any, Any]:
        (k, v), (dq, dr, before) = held, sums
        mask, ahead = _relations(segments, turn, window, q.shape[1] // 2, block)
        turned, grads = distances and distances._replace(ahead=ahead), (dq, *zeros, dr)
        blocks = Blocks(pairs, block, mask, turned, scoring.softcap)
        dq, *new, dr = accumulate_gradients(q_, k, v, output, grads, blocks)
        # What keys have gathered so far follows them while this turn's part is computed.
        return held, (dq, dr, jax.tree.map(jnp.add, send(before, by), new))

    def go_round(window: int) -> Any:
        _, (dq, dr, gathered), turn = _go_round(attend, held, start, block, window)
        return dq, dr, send(gathered, mesh_axis_size(CONTEXT_AXIS) - turn)

    k_, v_ = move_heads_first(k), move_heads_first(v)
    dq, *zeros, dr = zero_gradients(q, q_, k_, v_, distances)
    held, start = (k_, v_), (dq, dr, zeros)
    dq, dr, (dk, dv) = _by_window(go_round, scoring)
    by_distance = scoring_gradient(scoring, dr, block)
    dq = (scale * ungroup_heads(dq)).astype(q.dtype)
    return dq, move_heads_first(dk).astype(k.dtype), move_heads_first(dv).astype(v.dtype), by_distance


ring_attention.defvjp(_forward, _backward)


def ring_block(length: int) -> int:
    """Queries and keys at once, of a device's `length` tokens; divides each of its two chunks."""
    return block_size() if length // 2 % block_size() == 0 else length // 2


def own_pairs(chunk: int, block: int, window: int) -> np.ndarray:
    """Pairs of blocks [n, 2] of a device's own queries and keys; a query's own block comes first.

    So each query has attended to itself before it meets a block with none of its keys.
    """
    blocks = chunk // block
    alike, tail_to_head = (_pairs_at(distance, chunk, block, window) for distance in (0, 1))
    tails = [(i + blocks, j + blocks) for i, j in alike]
    return np.array([*alike, *tails, *((i + blocks, j) for i, j in tail_to_head)], np.int32)


def ring_stretches(devices: int, chunk: int, block: int, window: int) -> list[Stretch]:
    """The turns after the first; in a turn the keys of the device so many places before are held.

    Heads are then `turn` chunks apart, tails devices - turn, tail and head further than the lesser of both. Where a
    window hides all of them the turn is left out, so keys travel its reach, forwards and backwards.
    """

    def pairs(turn: int) -> tuple[BlockPairs, BlockPairs]:
        near = min(turn, devices - turn)
        return _pairs_at(near + 1, chunk, block, window), _pairs_at(near, chunk, block, window)

    alike = ((key, list(turns)) for key, turns in itertools.groupby(range(1, devices), pairs))
    return [Stretch(range(turns[0], turns[-1] + 1), *key) for key, turns in alike if key[1]]


def turn_pairs(stretch: Stretch, comes_before: Any, blocks: int) -> jax.Array:
    """Pairs of blocks [n, 2] of a turn; `comes_before`: whether the keys' device comes before the queries'."""
    alike = jnp.where(comes_before, 0, blocks) + np.array(stretch.alike, np.int32)
    if not stretch.tail_to_head:  # jaxlib 0.11.2 crashes on an empty array, a constant in a shard_map
        return alike
    return jnp.concatenate([np.array([(i + blocks, j) for i, j in stretch.tail_to_head], np.int32), alike])


def _pairs_at(distance: int, chunk: int, block: int, window: int) -> BlockPairs:
    """Pairs of blocks that are not masked completely, of queries so many chunks after the keys."""
    blocks, reach = chunk // block, window or math.inf
    causal = ((i, j) for i in range(blocks) for j in range(blocks - 1 if distance else i, -1, -1))
    return tuple((i, j) for i, j in causal if distance * chunk + (i - j - 1) * block + 1 < reach)


def _go_round(attend: Callable, held: Any, sums: Any, block: int, window: int) -> tuple[Any, Any, int]:
    """(what is held, sums, turns that it went) after the keys of every device that this one may see.

    A turn's attention doesn't wait for what is sent beside it. `by`: places that keys moved since the turn before. More
    than one begin a stretch of one turn, as a window then hides the chunks one further.
    """
    devices, chunk, turn = mesh_axis_size(CONTEXT_AXIS), held[0].shape[2] // 2, 0
    held, sums = attend(held, sums, turn, jnp.array(own_pairs(chunk, block, window)), window, 0)
    for stretch in ring_stretches(devices, chunk, block, window):
        by = stretch.turns[0] - turn
        assert by == 1 or len(stretch.turns) == 1

        def meet(held: Any, sums: Any, turn: Any, stretch: Stretch = stretch, by: int = by) -> tuple[Any, Any]:
            comes_before = jax.lax.axis_index(CONTEXT_AXIS) >= turn
            return attend(held, sums, turn, turn_pairs(stretch, comes_before, chunk // block), window, by)

        def meet_and_send(carry: Any, turn: Any, meet: Callable = meet) -> tuple[Any, None]:
            held, sums = meet(*carry, turn)
            return (send(held, 1), sums), None

        held, *turns = send(held, by), *stretch.turns
        if turns[1:]:
            (held, sums), _ = jax.lax.scan(meet_and_send, (held, sums), jnp.array(turns[:-1]))
        held, sums = meet(held, sums, turns[-1])
        turn = turns[-1]
    return held, sums, turn


def _distances(scoring: Scoring, block: int) -> BlockedRelative | None:
    return None if scoring.relative is None else make_blocked_relative(scoring.relative, scoring.scale, block)


def _by_window(go_round: Callable, scoring: Scoring) -> Any:
    """One round with or without the window, by the layer's flag; all devices take the same one, as they exchange."""
    window, is_global = scoring.window, scoring.mask_info.is_global
    if not window or is_global is None:
        return go_round(window)
    return jax.lax.cond(is_global, lambda: go_round(0), lambda: go_round(window))


def _segments(scoring: Scoring) -> tuple[jax.Array | None, jax.Array | None]:
    segment_Bs = scoring.mask_info.segment_BS
    return segment_Bs, gather_segments(segment_Bs)


def gather_segments(segment_Bs: jax.Array | None) -> jax.Array | None:
    """The documents of every device's tokens [devices, B, s]; None where rows are one document.

    Sent around beside the keys they would be a chain of exchanges of their own, which XLA moves to a loop of its own:
    fake devices then take one's exchange for the other's, and crash (`hardware/fake_devices.py`).
    """
    return None if segment_Bs is None else jax.lax.all_gather(segment_Bs, CONTEXT_AXIS)


def held_segments(gathered: jax.Array | None, turn: Any) -> jax.Array | None:
    """The documents [B, s] of the keys that have moved by `turn` devices, from those of all devices."""
    if gathered is None:
        return None
    other = (jax.lax.axis_index(CONTEXT_AXIS) - turn) % gathered.shape[0]
    return jax.lax.dynamic_index_in_dim(gathered, other, keepdims=False)


def _relations(
    segments: tuple[jax.Array | None, jax.Array | None], turn: Any, window: int, chunk: int, block: int
) -> tuple[Callable, Callable]:
    """Mask and distance of blocks: this device's queries against the keys that have moved by `turn` devices.

    `segments`: the documents of its own tokens, and those of all devices.
    """
    me, index = jax.lax.axis_index(CONTEXT_AXIS), jnp.arange(block)
    other = (me - turn) % mesh_axis_size(CONTEXT_AXIS)

    def part(segment: jax.Array | None, start: jax.Array) -> jax.Array | None:
        return None if segment is None else jax.lax.dynamic_slice_in_dim(segment, start, block, 1)

    def mask_of(i: jax.Array, j: jax.Array) -> jax.Array:
        query, key = held_position(me, i, chunk), held_position(other, j, chunk)
        documents = part(segments[0], i), part(held_segments(segments[1], turn), j)
        return attention_mask(query + index, key + index, window, None, *documents)

    return mask_of, lambda i, j: held_position(me, i, chunk) - held_position(other, j, chunk)


def send(tree: Any, by: int) -> Any:
    """What the device `by` places before holds."""
    n = mesh_axis_size(CONTEXT_AXIS)
    if by == 0:
        return tree
    return jax.lax.ppermute(tree, CONTEXT_AXIS, [(i, (i + by) % n) for i in range(n)])
