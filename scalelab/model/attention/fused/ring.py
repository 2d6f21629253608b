"""Ring attention whose blocks are a fused kernel's: each part comes with the log of its softmax's sum.

Queries stay, keys and values go once around (`attention/ring.py`, whose order of tokens this has). A device's own
tokens are in the sequence's order, so they are one causal part. In each later turn a whole chunk of queries meets a
whole chunk of keys twice: the tail the other device's head, and the heads of both if the other comes before, else the
tails. A part's backward takes the sums and outputs over all keys, so that the parts' gradients add up.

Shapes: B batch, s a device's tokens of the sequence, c = s / 2, N heads, K key/value heads, H d_head.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.model.attention.fused import cudnn
from scalelab.model.attention.fused.output import PartOutput
from scalelab.model.attention.fused.splash import splash_parts
from scalelab.model.attention.ring import gather_segments, held_segments, send
from scalelab.sharding import CONTEXT_AXIS, mesh_axis_size


def cudnn_parts(scale: float, causal: bool) -> tuple[Callable, Callable]:
    """cuDNN's (forward, backward) of a part, see `cudnn.forward` and `cudnn.backward`."""
    options = cudnn.Options(scale, causal)
    return cudnn.forward(options), cudnn.backward(options)


PARTS: dict[str, Callable[[float, bool], tuple[Callable, Callable]]] = {"cudnn": cudnn_parts, "splash": splash_parts}


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def fused_ring_attention(
    q_BsNH: jax.Array, k_BsKH: jax.Array, v_BsKH: jax.Array, segment_Bs: jax.Array | None, scale: float, kernel: str
) -> jax.Array:
    """Causal attention [B, s, N, H] over the whole sequence, to be called within a shard_map over `context`."""
    return _forward(q_BsNH, k_BsKH, v_BsKH, segment_Bs, scale, kernel)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_Bs: jax.Array | None, scale: float, kernel: str
) -> tuple[jax.Array, tuple]:
    (own, _), (part, _) = (PARTS[kernel](scale, causal) for causal in (True, False))
    y, log_z = own(q, k, v, segment_Bs if segment_Bs is None else (segment_Bs, segment_Bs))
    chunk, segments = q.shape[1] // 2, gather_segments(segment_Bs)

    def meet(held: Any, sums: Any, turn: Any) -> Any:
        held = *held, held_segments(segments, turn)
        for at, key_at in _chunk_pairs(turn, chunk):
            q_, segment_ = (_chunk(x, at, chunk) for x in (q, segment_Bs))
            k_, v_, key_segment_ = (_chunk(x, key_at, chunk) for x in held)
            sums = _add_part(sums, part(q_, k_, v_, _documents(segment_, key_segment_)), at, chunk)
        return sums

    held, sums = (k, v), (y.astype(jnp.float32), log_z)
    y, log_z = _go_round(meet, held, sums)
    y = y.astype(q.dtype)
    return y, (q, k, v, segment_Bs, log_z, y)


def _backward(scale: float, kernel: str, residuals: tuple, dy: jax.Array) -> tuple[Any, ...]:
    q, k, v, segment_Bs, log_z, y = residuals
    (_, own), (_, part) = (PARTS[kernel](scale, causal) for causal in (True, False))
    grads = own(q, k, v, _documents(segment_Bs, segment_Bs), PartOutput(log_z, y, dy))
    chunk, segments = q.shape[1] // 2, gather_segments(segment_Bs)

    def meet(held: Any, grads: Any, turn: Any) -> Any:
        (dq, *gathered), held = grads, (*held, held_segments(segments, turn))
        # What keys have gathered so far follows them while this turn's part is computed.
        gathered = send(gathered, 1)
        for at, key_at in _chunk_pairs(turn, chunk):
            q_, y_, dy_, segment_ = (_chunk(x, at, chunk) for x in (q, y, dy, segment_Bs))
            k_, v_, key_segment_ = (_chunk(x, key_at, chunk) for x in held)
            documents = _documents(segment_, key_segment_)
            output = PartOutput(_chunk(log_z, at, chunk, 2), y_, dy_)
            new, *of_keys = part(q_, k_, v_, documents, output)
            dq = _add_chunk(dq, new, at)
            gathered = [_add_chunk(x, new, key_at) for x, new in zip(gathered, of_keys, strict=True)]
        return dq, *gathered

    held, start = (k, v), tuple(x.astype(jnp.float32) for x in grads)
    dq, *gathered = _go_round(meet, held, start)
    dk, dv = send(gathered, 1)  # home
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


fused_ring_attention.defvjp(_forward, _backward)


def _go_round(meet: Callable, held: Any, sums: Any) -> Any:
    """The sums after the keys of every device. A turn's attention doesn't wait for what is sent beside it."""
    devices, held = mesh_axis_size(CONTEXT_AXIS), send(held, 1)

    def meet_and_send(carry: Any, turn: jax.Array) -> tuple[Any, None]:
        held, sums = carry
        return (send(held, 1), meet(held, sums, turn)), None

    if devices > 2:
        (held, sums), _ = jax.lax.scan(meet_and_send, (held, sums), jnp.arange(1, devices - 1))
    return meet(held, sums, devices - 1)


def _chunk_pairs(turn: Any, chunk: int) -> tuple[tuple[Any, Any], ...]:
    """Where the chunks of queries and of keys of a turn begin: tail and head, two heads or two tails."""
    comes_before = jax.lax.axis_index(CONTEXT_AXIS) >= turn  # the device of the keys
    alike = jnp.where(comes_before, 0, chunk)
    return (chunk, 0), (alike, alike)


def _documents(segment: jax.Array | None, key_segment: jax.Array | None) -> tuple[jax.Array, jax.Array] | None:
    return None if segment is None or key_segment is None else (segment, key_segment)


def _add_part(sums: Any, part: Any, at: Any, chunk: int) -> Any:
    """The softmax over the keys so far and a part's, of the queries from `at` on."""
    (y, log_z), (new_y, new_log_z) = sums, part
    before = _chunk(log_z, at, chunk, 2)
    both = jnp.logaddexp(before, new_log_z)
    weight, new_weight = (jnp.exp(x - both).swapaxes(1, 2)[..., None] for x in (before, new_log_z))
    merged = weight * _chunk(y, at, chunk) + new_weight * new_y.astype(jnp.float32)
    put = jax.lax.dynamic_update_slice_in_dim
    return put(y, merged, at, 1), put(log_z, both, at, 2)


def _add_chunk(x: jax.Array, new: jax.Array, at: Any) -> jax.Array:
    added = _chunk(x, at, new.shape[1]) + new.astype(x.dtype)
    return jax.lax.dynamic_update_slice_in_dim(x, added, at, 1)


def _chunk(x: jax.Array | None, at: Any, chunk: int, axis: int = 1) -> Any:
    return None if x is None else jax.lax.dynamic_slice_in_dim(x, at, chunk, axis)
