"""Relative positions as Transformer-XL has them (Dai et al. 2019, section 3.3): queries score distances beside keys.

All at once for attention that holds all logits, or for a block of queries and a block of keys (`blockwise.py`, `ring.py`).

Shapes: B batch, S queries, T keys or distances, N heads, K key/value heads, G = N / K, H d_head, D d_model; b a block's length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from scalelab.precision.products import fp32_einsum


class RelativeInputs(NamedTuple):
    """What scores distances: queries with their learned vector, [B, S, N, H], and what stands for distance t, [T, N, H]."""

    q_BSNH: jax.Array
    r_TNH: jax.Array


def sinusoidal_encoding(seq_len: int, d_model: int) -> jax.Array:
    """Row t encodes distance t: sines then cosines of t / 10000^(2i/D) (Vaswani et al. 2017, section 3.5). [S, D]."""
    half = d_model // 2
    angle = jnp.arange(seq_len)[:, None] * (10_000.0 ** (-jnp.arange(half) / half))[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def relative_scores(of: RelativeInputs, scale: float, filled: jax.Array | None = None) -> jax.Array:
    """What is added to the scaled logits [B, N, S, T]; of keys after the query it is meaningless (masked).

    With `filled` the queries are the ones after so many keys of a cache of T (`decode.py`).
    """
    by_distance_BNST = fp32_einsum("BSNH,TNH->BNST", of.q_BSNH, of.r_TNH).astype(of.q_BSNH.dtype)
    if filled is None:
        return scale * shift_distances(by_distance_BNST)
    distance_ST = filled + jnp.arange(of.q_BSNH.shape[1])[:, None] - jnp.arange(of.r_TNH.shape[0])[None, :]
    return scale * jnp.take_along_axis(by_distance_BNST, jnp.maximum(distance_ST, 0)[None, None], axis=-1)


def shift_distances(x_BNST: jax.Array) -> jax.Array:
    """From [.., i, distance] to [.., i, j] with distance = i - j; entries above the diagonal are meaningless (masked)."""
    batch, heads, queries, distances = x_BNST.shape
    by_key = x_BNST[..., ::-1]  # column c holds distance S - 1 - c
    padded = jnp.pad(by_key, ((0, 0), (0, 0), (0, 0), (1, 0)))
    return padded.reshape(batch, heads, distances + 1, queries)[:, :, 1:].reshape(batch, heads, queries, distances)


class BlockedRelative(NamedTuple):
    """The same for blocks: `q` [N, B, S, H], scaled; `r` [N, T + b, H], from distance T - 1 down to -b, zero where there is none.

    S and T are whole blocks. The queries begin `ahead` tokens after the keys, a whole number of blocks.
    """

    q: jax.Array
    r: jax.Array
    ahead: jax.Array | int = 0


def make_blocked_relative(of: RelativeInputs, scale: float, block: int) -> BlockedRelative:
    """Made of `of`."""
    wanting = -of.r_TNH.shape[0] % block
    q = jnp.pad((of.q_BSNH * scale).transpose(2, 0, 1, 3), ((0, 0), (0, 0), (0, -of.q_BSNH.shape[1] % block), (0, 0)))
    return BlockedRelative(q, jnp.pad(of.r_TNH[::-1].transpose(1, 0, 2), ((0, 0), (wanting, block), (0, 0))))


def blocked_relative_gradients(
    grads: tuple[jax.Array, jax.Array], of: RelativeInputs, scale: float, block: int
) -> RelativeInputs:
    """From the gradients of a `BlockedRelative`'s q and r, in fp32, to those of what it was made of."""
    dq, dr = grads
    first = -of.r_TNH.shape[0] % block
    dq_BSNH = scale * dq[:, :, : of.q_BSNH.shape[1]].transpose(1, 2, 0, 3)
    dr_TNH = dr[:, first:-block].transpose(1, 0, 2)[::-1]
    return RelativeInputs(dq_BSNH.astype(of.q_BSNH.dtype), dr_TNH.astype(of.r_TNH.dtype))


def relative_block_scores(of: BlockedRelative, i: jax.Array, j: jax.Array, block: int) -> jax.Array:
    """[N, B, b, b] in fp32: of queries from i on with keys from j on."""
    q, r = _parts(of, i, j, block)
    by_distance = fp32_einsum("nbsh,nch->nbsc", q, r)
    return _shift(by_distance)


def add_block_gradients(
    grads: tuple[jax.Array, jax.Array], of: BlockedRelative, ds: jax.Array, i: jax.Array, j: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`grads` of q and r with the part of this block, whose scores' gradient is `ds` [N, B, b, b] in fp32."""
    (dq, dr), block = grads, ds.shape[-1]
    q, r = _parts(of, i, j, block)
    d = _shift_back(ds)
    dq = _add(dq, fp32_einsum("nbsc,nch->nbsh", d, r.astype(d.dtype)), i, 2)
    return dq, _add(dr, fp32_einsum("nbsc,nbsh->nch", d, q.astype(d.dtype)), _first(of, i, j, block), 1)


def _parts(of: BlockedRelative, i: jax.Array, j: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """Queries [N, B, b, H], and distances from i + b - 1 - j down to i - b - j, as they score: [N, 2 b, H]."""
    q = jax.lax.dynamic_slice_in_dim(of.q, i, block, 2)
    return q, jax.lax.dynamic_slice_in_dim(of.r, _first(of, i, j, block), 2 * block, 1)


def _first(of: BlockedRelative, i: jax.Array, j: jax.Array, block: int) -> jax.Array:
    return of.r.shape[1] - 2 * block - (of.ahead + i - j)


def _shift(x: jax.Array) -> jax.Array:
    """[.., s, c] of distances falling by c -> [.., s, t] of keys: x[s, b - 1 - s + t], which is an index in the flat block."""
    *lead, block, _ = x.shape
    flat = x.reshape(*lead, -1)[..., block - 1 : block - 1 + block * (2 * block - 1)]
    return flat.reshape(*lead, block, 2 * block - 1)[..., :block]


def _shift_back(x: jax.Array) -> jax.Array:
    """The transpose: each entry where `_shift` took it, zero elsewhere."""
    *lead, block, _ = x.shape
    none = [(0, 0)] * len(lead)
    flat = jnp.pad(x, (*none, (0, 0), (0, block - 1))).reshape(*lead, -1)
    return jnp.pad(flat, (*none, (block - 1, 1))).reshape(*lead, block, 2 * block)


def _add(x: jax.Array, part: jax.Array, start: jax.Array, axis: int) -> jax.Array:
    old = jax.lax.dynamic_slice_in_dim(x, start, part.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(x, old + part, start, axis)
