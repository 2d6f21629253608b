"""The largest attention logit and the softmax's entropy, whatever the kernel: kernels don't return their logits.

Logits are computed once more, block by block, at some cost of attention's forward; only steps that measure do it.

Shapes: B batch, S queries, T keys, N heads, K key/value heads, H d_head.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from scalelab.model.attention.blockwise import (
    Blocks,
    block_size,
    group_heads,
    largest_and_entropy,
    move_heads_first,
    visible_block_pairs,
)
from scalelab.model.attention.mask import Scoring, attention_mask
from scalelab.model.attention.order import held_position
from scalelab.model.attention.positions.relative import make_blocked_relative
from scalelab.model.attention.ring import ring_block
from scalelab.sharding import (
    CONTEXT_AXIS,
    TENSOR_AXIS,
    activation_spec,
    has_explicit_mesh,
    mesh_axis_size,
    per_device,
    token_axes,
)


def measure_logits(q_BSNH: jax.Array, k_BTKH: jax.Array, scoring: Scoring) -> dict[str, jax.Array]:
    """`attention_logit_max` [] over all pairs that are not masked, `attention_entropy` [] and `attention_queries` [].

    The entropy of the weights in nats is summed over heads and every ENTROPY_STRIDE-th query, whose number is the last.
    Arguments as for `kernels.compute_attention`, values in fp32.

    Where the mesh splits the sequence, each device gathers all keys, which are small compared to the logits.
    """
    heads = activation_spec("batch", "context", "heads", None)
    arrays, specs = scoring.split()
    axes = (*token_axes(), TENSOR_AXIS)

    def on_device(q: jax.Array, k: jax.Array, *more: jax.Array) -> dict[str, jax.Array]:
        most, *sums = _measure_on_device(q, k, scoring.join(more, q))
        if has_explicit_mesh():
            most, sums = jax.lax.pmax(most, axes), jax.lax.psum(sums, axes)
        return {"attention_logit_max": most, "attention_entropy": sums[0], "attention_queries": sums[1]}

    mapped = per_device(on_device, (heads, heads, *specs), PartitionSpec())
    result: dict[str, jax.Array] = mapped(q_BSNH, k_BTKH, *arrays)
    return result


def _measure_on_device(q: jax.Array, k: jax.Array, scoring: Scoring) -> tuple[jax.Array, jax.Array, jax.Array]:
    length, split = q.shape[1], mesh_axis_size(CONTEXT_AXIS) > 1
    block, mask_info, window, relative = min(block_size(), length), scoring.mask_info, scoring.window, scoring.relative
    key_segment, positions = mask_info.segment_BS, (lambda i: i, lambda j: j)
    pairs = visible_block_pairs(-(-length // block), block, window, mask_info)
    if split:
        block, positions = ring_block(length), _positions(length)
        gather = functools.partial(jax.lax.all_gather, axis_name=CONTEXT_AXIS, axis=1, tiled=True)
        k, key_segment = gather(k), None if key_segment is None else gather(key_segment)
        pairs = np.indices((length // block, k.shape[1] // block)).reshape(2, -1).T.astype(np.int32)
    query, key = positions
    distances = None if relative is None else make_blocked_relative(relative, scoring.scale, block)
    distances = distances and distances._replace(ahead=lambda i, j: query(i) - key(j))
    index, segments = jnp.arange(block), [_filled(x, block) for x in (mask_info.segment_BS, key_segment)]

    def block_mask(i: jax.Array, j: jax.Array) -> jax.Array:
        cut = [_cut(x, start, block) for x, start in zip(segments, (i, j), strict=True)]
        mask = attention_mask(query(i) + index, key(j) + index, window, mask_info.is_global, *cut)
        real = (i + index < length)[:, None]  # padding of the last block is not a query
        return mask & (real if mask.ndim == 2 else real[None])

    blocks = Blocks(pairs, block, block_mask, distances, scoring.softcap)
    return largest_and_entropy(group_heads(q * scoring.scale, k.shape[2]), move_heads_first(k), blocks)


def _positions(length: int) -> tuple[Callable, Callable]:
    """Positions of a device's i-th query and of the j-th key of all devices' (`order.py`)."""
    me, chunk = jax.lax.axis_index(CONTEXT_AXIS), length // 2
    return lambda i: held_position(me, i, chunk), lambda j: held_position(j // length, j % length, chunk)


def _filled(segment_BS: jax.Array | None, block: int) -> Any:
    if segment_BS is None:
        return None
    return jnp.pad(segment_BS, ((0, 0), (0, -segment_BS.shape[1] % block)), constant_values=-1)


def _cut(segment_BS: Any, start: jax.Array, block: int) -> Any:
    return None if segment_BS is None else jax.lax.dynamic_slice_in_dim(segment_BS, start, block, 1)
