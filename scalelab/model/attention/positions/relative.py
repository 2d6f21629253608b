"""Relative positions of Transformer-XL (Dai et al. 2019, section 3.3): queries also score the distance to each key.

Scores come all at once, for kernels that hold all logits, or for one block of queries and keys (`blockwise.py`,
`ring.py`).

Shapes: B batch, S queries, T keys or distances, N heads, K key/value heads, G = N / K, H d_head, D d_model, b block
length.
"""

import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from scalelab.precision.products import fp32_einsum


class RelativeInputs(NamedTuple):
    """Inputs of the distance scores: queries plus a learned vector [B, S, N, H], and encoded distances [T, N, H]."""

    q_BSNH: jax.Array
    r_TNH: jax.Array


def sinusoidal_encoding(seq_len: int, d_model: int) -> jax.Array:
    """Encoded distances [S, D]: row t has sines, then cosines, of t / 10000^(2i/D) (Vaswani et al. 2017, 3.5)."""
    half = d_model // 2
    angle = jnp.arange(seq_len)[:, None] * (10_000.0 ** (-jnp.arange(half) / half))[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def relative_scores(inputs: RelativeInputs, scale: float, filled: jax.Array | None = None) -> jax.Array:
    """Scores [B, N, S, T] to add to the scaled logits; meaningless for keys after the query, which are masked.

    With `filled` the queries come after that many keys of a cache of T (`decode.py`).
    """
    by_distance_BNST = fp32_einsum("BSNH,TNH->BNST", inputs.q_BSNH, inputs.r_TNH).astype(inputs.q_BSNH.dtype)
    if filled is None:
        return scale * shift_distances(by_distance_BNST)
    distance_ST = filled + jnp.arange(inputs.q_BSNH.shape[1])[:, None] - jnp.arange(inputs.r_TNH.shape[0])[None, :]
    return scale * jnp.take_along_axis(by_distance_BNST, jnp.maximum(distance_ST, 0)[None, None], axis=-1)


def shift_distances(x_BNST: jax.Array) -> jax.Array:
    """[.., i, distance] -> [.., i, j] with distance = i - j; entries above the diagonal are meaningless (masked)."""
    batch, heads, queries, distances = x_BNST.shape
    by_key = x_BNST[..., ::-1]  # column c holds distance S - 1 - c
    padded = jnp.pad(by_key, ((0, 0), (0, 0), (0, 0), (1, 0)))
    return padded.reshape(batch, heads, distances + 1, queries)[:, :, 1:].reshape(batch, heads, queries, distances)


class BlockedRelative(NamedTuple):
    """`RelativeInputs` laid out for blocks: `q` [N, B, S, H], scaled; `r` [N, T + b, H], zero where out of range.

    `r` runs from distance T - 1 down to -b. S and T are whole blocks. `ahead(i, j)`: tokens from key j to query i,
    both the first of a block.
    """

    q: jax.Array
    r: jax.Array
    ahead: Callable[[jax.Array, jax.Array], jax.Array] = operator.sub


def make_blocked_relative(inputs: RelativeInputs, scale: float, block: int) -> BlockedRelative:
    """Scale `inputs` and lay them out for blocks."""
    padding = -inputs.r_TNH.shape[0] % block
    q = jnp.pad(
        (inputs.q_BSNH * scale).transpose(2, 0, 1, 3), ((0, 0), (0, 0), (0, -inputs.q_BSNH.shape[1] % block), (0, 0))
    )
    return BlockedRelative(q, jnp.pad(inputs.r_TNH[::-1].transpose(1, 0, 2), ((0, 0), (padding, block), (0, 0))))


def blocked_relative_gradients(
    grads: tuple[jax.Array, jax.Array], inputs: RelativeInputs, scale: float, block: int
) -> RelativeInputs:
    """Convert gradients of a `BlockedRelative`'s q and r (fp32) to gradients of its `RelativeInputs`."""
    dq, dr = grads
    first = -inputs.r_TNH.shape[0] % block
    dq_BSNH = scale * dq[:, :, : inputs.q_BSNH.shape[1]].transpose(1, 2, 0, 3)
    dr_TNH = dr[:, first:-block].transpose(1, 0, 2)[::-1]
    return RelativeInputs(dq_BSNH.astype(inputs.q_BSNH.dtype), dr_TNH.astype(inputs.r_TNH.dtype))


def relative_block_scores(blocked: BlockedRelative, i: jax.Array, j: jax.Array, block: int) -> jax.Array:
    """Scores [N, B, b, b] in fp32 of queries from i on and keys from j on."""
    q, r = _parts(blocked, i, j, block)
    by_distance = fp32_einsum("nbsh,nch->nbsc", q, r)
    return _shift(by_distance)


def add_block_gradients(
    grads: tuple[jax.Array, jax.Array], blocked: BlockedRelative, ds: jax.Array, i: jax.Array, j: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Add this block's part to `grads` of q and r; `ds` [N, B, b, b], fp32, is the gradient of its scores."""
    (dq, dr), block = grads, ds.shape[-1]
    q, r = _parts(blocked, i, j, block)
    d = _shift_back(ds)
    dq = _add(dq, fp32_einsum("nbsc,nch->nbsh", d, r.astype(d.dtype)), i, 2)
    return dq, _add(dr, fp32_einsum("nbsc,nbsh->nch", d, q.astype(d.dtype)), _first(blocked, i, j, block), 1)


def _parts(blocked: BlockedRelative, i: jax.Array, j: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """The block's queries [N, B, b, H], and its distances from i + b - 1 - j down to i - b - j: [N, 2 b, H]."""
    q = jax.lax.dynamic_slice_in_dim(blocked.q, i, block, 2)
    return q, jax.lax.dynamic_slice_in_dim(blocked.r, _first(blocked, i, j, block), 2 * block, 1)


def _first(blocked: BlockedRelative, i: jax.Array, j: jax.Array, block: int) -> jax.Array:
    return blocked.r.shape[1] - 2 * block - blocked.ahead(i, j)


def _shift(x: jax.Array) -> jax.Array:
    """[.., s, c] of distances falling by c -> [.., s, t] of keys: x[s, b - 1 - s + t], a slice of the flat block."""
    *lead, block, _ = x.shape
    flat = x.reshape(*lead, -1)[..., block - 1 : block - 1 + block * (2 * block - 1)]
    return flat.reshape(*lead, block, 2 * block - 1)[..., :block]


def _shift_back(x: jax.Array) -> jax.Array:
    """Transpose of `_shift`: each entry back in its place, zero elsewhere."""
    *lead, block, _ = x.shape
    no_padding = [(0, 0)] * len(lead)
    flat = jnp.pad(x, (*no_padding, (0, 0), (0, block - 1))).reshape(*lead, -1)
    return jnp.pad(flat, (*no_padding, (block - 1, 1))).reshape(*lead, block, 2 * block)


def _add(x: jax.Array, part: jax.Array, start: jax.Array, axis: int) -> jax.Array:
    old = jax.lax.dynamic_slice_in_dim(x, start, part.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(x, old + part, start, axis)
