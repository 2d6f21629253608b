"""Ring attention (Liu et al. 2023): queries stay, keys and values go once round the devices that share a sequence.

Softmax is gathered up part by part (Milakov & Gimelshein 2018), so that a device holds logits of its own queries and of one
other device's keys. The backward is written out (Dao et al. 2022, section 3.1 and appendix B.2): a derived one would keep
every device's keys. Device i holds the i-th part of the sequence: the last one has work in every turn, the others wait.

Shapes: B batch, s a device's part of the sequence, N heads, K key/value heads, G = N / K, H d_head.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.model.placement import CONTEXT, as_varying, size
from scalelab.model.sight import sees
from scalelab.precision.products import einsum


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def ring_attention(
    q_BsNH: jax.Array, k_BsKH: jax.Array, v_BsKH: jax.Array, segment_Bs: jax.Array | None, scale: float
) -> jax.Array:
    """Causal attention [B, s, N, H] over the whole sequence, within documents where `segment_Bs` tells them apart.

    From within a shard_map over `context`.
    """
    return _forward(q_BsNH, k_BsKH, v_BsKH, segment_Bs, scale)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segment: jax.Array | None, scale: float
) -> tuple[jax.Array, tuple]:
    q_BKGsH = _grouped(q * scale, k.shape[2])
    log_z, y = jnp.full(q_BKGsH.shape[:-1], -jnp.inf), jnp.zeros(q_BKGsH.shape)

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        k, v, of_keys, log_z, y = carry
        logits = _logits(q_BKGsH, k, turns, segment, of_keys)
        new = jnp.logaddexp(log_z, jax.nn.logsumexp(logits, axis=-1))
        weights = jnp.exp(logits - new[..., None]).astype(v.dtype)
        more = einsum("bkgst,btkh->bkgsh", weights, v)
        return (*_pass((k, v, of_keys)), new, y * jnp.exp(log_z - new)[..., None] + more), None

    begin = (k, v, segment, as_varying(log_z, q), as_varying(y, q))
    (_, _, _, log_z, y), _ = jax.lax.scan(turn, begin, jnp.arange(size(CONTEXT)))
    return _ungrouped(y).astype(q.dtype), (
        q,
        k,
        v,
        segment,
        y,
        log_z,
    )  # y kept in fp32: the gradient of keys is a small difference


def _backward(scale: float, kept: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q, k, v, segment, y, log_z = kept
    heads = k.shape[2]
    q_BKGsH, dy_BKGsH = _grouped(q * scale, heads), _grouped(dy, heads)
    spent = jnp.sum(dy_BKGsH.astype(jnp.float32) * y, axis=-1)  # sum of p dp over keys

    def turn(carry: Any, turns: jax.Array) -> tuple[Any, None]:
        k, v, of_keys, dk, dv, dq = carry
        p = jnp.exp(_logits(q_BKGsH, k, turns, segment, of_keys) - log_z[..., None])
        dp = einsum("bkgsh,btkh->bkgst", dy_BKGsH, v)
        ds = p * (
            dp - spent[..., None]
        )  # in fp32 to the end: rounded to bf16 here, gradients of q and k are off by 1 %
        dv += einsum("bkgst,bkgsh->btkh", p.astype(v.dtype), dy_BKGsH)
        dk += einsum("bkgst,bkgsh->btkh", ds, q_BKGsH.astype(ds.dtype))
        dq += einsum("bkgst,btkh->bkgsh", ds, k.astype(ds.dtype))
        return (*_pass((k, v, of_keys, dk, dv)), dq), None

    zeros = (as_varying(jnp.zeros(x.shape), q) for x in (k, v, q_BKGsH))
    (_, _, _, dk, dv, dq), _ = jax.lax.scan(turn, (k, v, segment, *zeros), jnp.arange(size(CONTEXT)))
    return (scale * _ungrouped(dq)).astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


ring_attention.defvjp(_forward, _backward)


def _logits(
    q_BKGsH: jax.Array, k_BtKH: jax.Array, turns: Any, segment_Bs: jax.Array | None, segment_Bt: jax.Array | None
) -> jax.Array:
    """[B, K, G, s, t] in fp32, -inf for what isn't seen, with the keys that have come `turns` devices far; q is scaled already."""
    me, length = jax.lax.axis_index(CONTEXT), k_BtKH.shape[1]
    position, of_key = me * length + jnp.arange(length), (me - turns) % size(CONTEXT) * length + jnp.arange(length)
    logits = einsum("bkgsh,btkh->bkgst", q_BKGsH, k_BtKH)
    seen = sees(position, of_key, segment_Bs, segment_Bt)
    return jnp.where(seen if seen.ndim == 2 else seen[:, None, None], logits, -jnp.inf)


def _pass(tree: Any) -> Any:
    n = size(CONTEXT)
    return jax.lax.ppermute(tree, CONTEXT, [(i, (i + 1) % n) for i in range(n)])


def _grouped(x_BsNH: jax.Array, keys: int) -> jax.Array:
    b, s, n, h = x_BsNH.shape
    return x_BsNH.reshape(b, s, keys, n // keys, h).transpose(0, 2, 3, 1, 4)


def _ungrouped(x_BKGsH: jax.Array) -> jax.Array:
    b, k, g, s, h = x_BKGsH.shape
    return x_BKGsH.transpose(0, 3, 1, 2, 4).reshape(b, s, k * g, h)
