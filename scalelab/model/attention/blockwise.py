"""Attention block by block: softmax gathered up over blocks of keys (Milakov & Gimelshein 2018; Rabe & Staats 2021).

Memory grows linearly with the sequence, forward and backward. The backward is written out and computes the blocks again (Dao
et al. 2022, section 3.1 and appendix B.2): a derived one would keep every block.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, G = N / K, H d_head; s and t: those of a block.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.model.attention.mask import UNLIMITED, Sight, sees
from scalelab.model.attention.relative import Far, Relative, add_block_gradients, block_scores, far, far_gradients
from scalelab.precision.products import einsum
from scalelab.sharding import as_varying, platform

CPU_BLOCK = 128  # queries and keys at once: of 128 to 1024 the fastest from 512 to 4k tokens (experiments/attention.py)
BLOCK = 512  # elsewhere: not measured


def block_size() -> int:
    """Of this backend."""
    return CPU_BLOCK if platform() == "cpu" else BLOCK


class Sums(NamedTuple):
    """Softmax so far, in fp32: the largest logit, sum of exp(logit - largest) [B, K, G, S], that times values [B, K, G, S, H]."""

    most: jax.Array
    total: jax.Array
    y: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def blockwise_attention(
    q_BSNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, sight: Sight, scale: float, window: int, block: int,
    relative: Relative | None = None,
) -> jax.Array:  # fmt: skip
    """Causal attention [B, S, N, H]; `window` in tokens, 0: none; `relative` scores distances beside keys.

    No block is computed that causality or window hide whole.
    """
    return _forward(q_BSNH, k_BSKH, v_BSKH, sight, scale, window, block, relative)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sight: Sight, scale: float, window: int, block: int,
    relative: Relative | None,
) -> tuple[jax.Array, tuple]:  # fmt: skip
    length, block = q.shape[1], min(block, q.shape[1])
    seen, todo = _masks(length, sight, window, block), pairs(-(-length // block), block, window, sight)
    q_, k_, v_ = (_filled(x, block) for x in (grouped(q * scale, k.shape[2]), by_head(k), by_head(v)))
    distances = None if relative is None else far(relative, scale, block)
    y, log_z = finish(gather_up(q_, k_, v_, nothing(q_), todo, block, seen, distances))
    kept = (q, k, v, sight, relative, y[..., :length, :], log_z)
    return ungrouped(y[..., :length, :]).astype(q.dtype), kept


def _backward(
    scale: float, window: int, block: int, kept: tuple, dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None, Relative | None]:
    q, k, v, sight, relative, y, log_z = kept
    length, block, heads = q.shape[1], min(block, q.shape[1]), k.shape[2]
    seen, todo = _masks(length, sight, window, block), pairs(-(-length // block), block, window, sight)
    dy_ = grouped(dy, heads)
    spent = _filled(jnp.sum(dy_.astype(jnp.float32) * y, axis=-1)[..., None], block)[..., 0]
    q_, k_, v_, dy_ = (_filled(x, block) for x in (grouped(q * scale, heads), by_head(k), by_head(v), dy_))
    distances = None if relative is None else far(relative, scale, block)
    grads = zeros(q, q_, k_, v_, distances)
    dq, dk, dv, dr = pull_back(q_, k_, v_, log_z, dy_, spent, grads, todo, block, seen, distances)
    dq, dk, dv = (x[..., :length, :] for x in (dq, dk, dv))
    by_distance = None if relative is None else far_gradients(dr, relative, scale, block)
    dq = (scale * ungrouped(dq)).astype(q.dtype)
    return dq, by_head(dk).astype(k.dtype), by_head(dv).astype(v.dtype), None, by_distance


blockwise_attention.defvjp(_forward, _backward)


def pairs(blocks: int, block: int, window: int = 0, sight: Sight = UNLIMITED) -> np.ndarray:
    """(block of queries, block of keys) [n, 2] that hold a query and a key it sees. A query's own block comes first.

    So each query has seen a key, itself, before a block in which it may see none.
    """
    reach = window if window and sight.everywhere is None else blocks * block
    near = [(i, j) for i in range(blocks) for j in range(i, -1, -1) if (i - j - 1) * block + 1 < reach]
    return np.array(near, np.int32)


def nothing(q: jax.Array) -> Sums:
    """The sums before the first key."""
    zero = as_varying(jnp.zeros(q.shape[:-1]), q)
    return Sums(jnp.full_like(zero, -jnp.inf), zero, as_varying(jnp.zeros(q.shape), q))


def finish(sums: Sums) -> tuple[jax.Array, jax.Array]:
    """(attention [B, K, G, S, H], log of the sum of exponentials [B, K, G, S]), in fp32."""
    return sums.y / sums.total[..., None], sums.most + jnp.log(sums.total)


def zeros(like: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, distances: Far | None) -> tuple:
    """Gradients of these before the first pair: (dq, dk, dv, those of the distances' q and r or None), in fp32."""
    of = (q, k, v, None if distances is None else (distances.q, distances.r))
    return jax.tree.map(lambda x: as_varying(jnp.zeros(x.shape), like), of)


def gather_up(
    q: jax.Array, k: jax.Array, v: jax.Array, sums: Sums, todo: np.ndarray, block: int, seen: Callable,
    distances: Far | None = None,
) -> Sums:  # fmt: skip
    """`sums` with the keys of these pairs of blocks: q [B, K, G, S, H], scaled; k, v [B, K, T, H].

    `seen(i, j)`: what queries from i on see of keys from j on, [s, t] or [B, s, t].
    """

    def one(sums: Sums, pair: jax.Array) -> tuple[Sums, None]:
        i, j = pair[0] * block, pair[1] * block
        k_j, v_j = _cut(k, j, block, -2), _cut(v, j, block, -2)
        most, total, y = (_cut(x, i, block, 3) for x in sums)
        logits = _logits(_cut(q, i, block, 3), k_j, seen(i, j), distances, i, j)
        new = jnp.maximum(most, jnp.max(logits, axis=-1))
        weights, before = jnp.exp(logits - new[..., None]), jnp.exp(most - new)
        y = y * before[..., None] + _product("cmt,cth->cmh", weights.astype(v.dtype), v_j)
        found = Sums(new, total * before + jnp.sum(weights, axis=-1), y)
        return jax.tree.map(lambda x, part: _put(x, part, i, 3), sums, found), None

    return jax.lax.scan(one, sums, jnp.asarray(todo))[0]


def pull_back(
    q: jax.Array, k: jax.Array, v: jax.Array, log_z: jax.Array, dy: jax.Array, spent: jax.Array, grads: Any,
    todo: np.ndarray, block: int, seen: Callable, distances: Far | None = None,
) -> Any:  # fmt: skip
    """`grads` (as `zeros`) with the part of these pairs of blocks; `spent`: sum of dy y over H, [B, K, G, S]."""

    def one(grads: Any, pair: jax.Array) -> tuple[Any, None]:
        i, j = pair[0] * block, pair[1] * block
        dq, dk, dv, dr = grads
        q_i, dy_i, log_z_i, spent_i = (_cut(x, i, block, 3) for x in (q, dy, log_z, spent))
        k_j, v_j = _cut(k, j, block, -2), _cut(v, j, block, -2)
        p = jnp.exp(_logits(q_i, k_j, seen(i, j), distances, i, j) - log_z_i[..., None])
        dp = _product("cmh,cth->cmt", dy_i, v_j)
        ds = p * (dp - spent_i[..., None])  # in fp32 to the end: rounded to bf16 gradients of q and k are off by 1 %
        dv = _put(dv, _cut(dv, j, block, -2) + _product("cmt,cmh->cth", p.astype(v.dtype), dy_i), j, -2)
        dk = _put(dk, _cut(dk, j, block, -2) + _product("cmt,cmh->cth", ds, q_i.astype(ds.dtype)), j, -2)
        dq = _put(dq, _cut(dq, i, block, 3) + _product("cmt,cth->cmh", ds, k_j.astype(ds.dtype)), i, 3)
        if distances is not None:
            heads_first = ds.reshape(ds.shape[0], -1, *ds.shape[3:]).swapaxes(0, 1)
            dr = add_block_gradients(dr, distances, heads_first, i, j)
        return (dq, dk, dv, dr), None

    return jax.lax.scan(one, grads, jnp.asarray(todo))[0]


def _logits(
    q: jax.Array, k: jax.Array, seen: jax.Array, distances: Far | None, i: jax.Array, j: jax.Array
) -> jax.Array:
    """[B, K, G, s, t] in fp32, -inf for what isn't seen."""
    logits = _product("cmh,cth->cmt", q, k)
    if distances is not None:
        logits += block_scores(distances, i, j, q.shape[3]).swapaxes(0, 1).reshape(logits.shape)
    return jnp.where(seen if seen.ndim == 2 else seen[:, None, None], logits, -jnp.inf)


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """A product for each sequence and key head; [B, K, G, s, …] has the queries of a key head stacked, in the result too."""
    a_, b_ = (x.reshape(x.shape[0] * x.shape[1], -1, x.shape[-1]) for x in (a, b))
    y = einsum(subscripts, a_, b_)
    queries = subscripts.endswith("m" + subscripts[-1])
    return y.reshape(*(a.shape[:4] if queries else a.shape[:2]), *y.shape[2:] if queries else y.shape[1:])


def _cut(x: jax.Array, start: jax.Array, size: int, axis: int) -> jax.Array:
    return x if x.shape[axis] == size else jax.lax.dynamic_slice_in_dim(x, start, size, axis % x.ndim)


def _put(x: jax.Array, part: jax.Array, start: jax.Array, axis: int) -> jax.Array:
    return part if x.shape == part.shape else jax.lax.dynamic_update_slice_in_dim(x, part, start, axis % x.ndim)


def _masks(length: int, sight: Sight, window: int, block: int) -> Callable:
    index = jnp.arange(block)
    segment = sight.segment_BS
    if segment is not None:  # what fills up the last block is hidden from all others by its place alone
        segment = jnp.pad(segment, ((0, 0), (0, -length % block)), constant_values=-1)

    def seen(i: jax.Array, j: jax.Array) -> jax.Array:
        of = [None if segment is None else _cut(segment, start, block, 1) for start in (i, j)]
        return sees(i + index, j + index, window, sight.everywhere, *of)

    return seen


def _filled(x: jax.Array, block: int) -> jax.Array:
    """Its axis before the last filled up to whole blocks."""
    wanting = -x.shape[-2] % block
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, wanting), (0, 0)]) if wanting else x


def grouped(x_BSNH: jax.Array, keys: int) -> jax.Array:
    """[B, S, N, H] -> [B, K, G, S, H]."""
    b, s, n, h = x_BSNH.shape
    return x_BSNH.reshape(b, s, keys, n // keys, h).transpose(0, 2, 3, 1, 4)


def ungrouped(x_BKGSH: jax.Array) -> jax.Array:
    """And back."""
    b, k, g, s, h = x_BKGSH.shape
    return x_BKGSH.transpose(0, 3, 1, 2, 4).reshape(b, s, k * g, h)


def by_head(x_BTKH: jax.Array) -> jax.Array:
    """[B, T, K, H] -> [B, K, T, H], and back."""
    return x_BTKH.transpose(0, 2, 1, 3)
