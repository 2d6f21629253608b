"""Operands in fp8 with scales: per tensor, or by tiles and blocks (DeepSeek-V3, section 3.3.2).

A tile's scale maps its largest magnitude to the format's largest number; a tensor's is the next power of two, so that
its products can be scaled in bf16 exactly. Values are clipped before each cast, as the cast alone turns 465 into NaN in
e4m3 and 60,000 into Inf in e5m2. Values that are not finite make the product NaN, and the step is skipped. Products of
fp8 operands are summed in fp32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.sharding import target_platform, vary_like

FP8_BLOCK = 128  # length along the contraction, and for weights along their outputs too


class ScaledBlocks(NamedTuple):
    """Numbers stored as `values` (fp8) times `scale` (fp32, one per tensor or per tile)."""

    values: jax.Array
    scale: jax.Array


def fp8_scale(amax: jax.Array, dtype: str) -> jax.Array:
    """The scale that maps `amax` to the format's largest number; never zero."""
    return jnp.maximum(amax / float(jnp.finfo(dtype).max), float(jnp.finfo(jnp.float32).tiny))


def tensor_scale(amax: jax.Array, dtype: str) -> jax.Array:
    """`fp8_scale` rounded up to a power of two."""
    scale = fp8_scale(amax, dtype)
    bits = jax.lax.bitcast_convert_type(scale, jnp.uint32)
    power = jax.lax.bitcast_convert_type((bits + jnp.uint32(0x7FFFFF)) & jnp.uint32(0x7F800000), jnp.float32)
    return jnp.where(jnp.isfinite(scale), power, scale)


def max_magnitude(x: jax.Array) -> jax.Array:
    """The largest magnitude of the whole array, over all its devices, in fp32."""
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


def cast_to_fp8(x: jax.Array, scale: jax.Array, dtype: str) -> jax.Array:
    """Cast x / scale to fp8, clipped to the format's range; NaN stays NaN."""
    most = float(jnp.finfo(dtype).max)
    return jnp.clip(x.astype(jnp.float32) / scale, -most, most).astype(dtype)


def sum_precision() -> Any:
    """The `precision` of a product of fp8 operands that sums in fp32: by default an H100's units keep fewer bits."""
    return jax.lax.Precision.HIGHEST if target_platform() == "gpu" else None


def quantize_tiles(x_MK: jax.Array, dtype: str) -> ScaledBlocks:
    """Quantize by 1 x 128 tiles along the last axis: values [G, M, k], scales [G, M, 1], zero-padded to G k >= K."""
    x_MGk = _cut(x_MK, 1)
    x_GMk = x_MGk.swapaxes(0, 1)
    scale = fp8_scale(jnp.max(jnp.abs(x_GMk), axis=2, keepdims=True).astype(jnp.float32), dtype)
    return ScaledBlocks(cast_to_fp8(x_GMk, scale, dtype), scale)


def quantize_blocks(w_KN: jax.Array, dtype: str) -> ScaledBlocks:
    """Quantize a weight by 128 x 128 blocks, K its contracted axis: values [G, k, N], scales [G, 1, N]."""
    n = w_KN.shape[1]
    w_GkHn = _cut(_cut(w_KN, 1), 0)
    amax = jnp.max(jnp.abs(w_GkHn), axis=(1, 3), keepdims=True).astype(jnp.float32)
    scale = fp8_scale(amax, dtype)
    values, wide = cast_to_fp8(w_GkHn, scale, dtype), jnp.broadcast_to(scale, (*scale.shape[:3], w_GkHn.shape[3]))
    return ScaledBlocks(_joined(values)[:, :, :n], _joined(wide)[:, :, :n])


def block_dot(a: ScaledBlocks, b: ScaledBlocks) -> jax.Array:
    """Multiply a [G, M, k] by b [G, k, N]: each group's fp32 product is scaled, then summed over G: fp32 [M, N]."""
    zeros = jnp.zeros((a.values.shape[1], b.values.shape[2]), jnp.float32)

    def part(total_MN: jax.Array, one: tuple[ScaledBlocks, ScaledBlocks]) -> tuple[jax.Array, None]:
        left, right = one
        dims = (((1,), (0,)), ((), ()))
        y_MN = jax.lax.dot_general(left.values, right.values, dims, sum_precision(), jnp.float32)
        return total_MN + left.scale * y_MN * right.scale, None

    return jax.lax.scan(part, vary_like(zeros, a.values, b.values), (a, b))[0]


def _cut(x: jax.Array, axis: int) -> jax.Array:
    """Split an axis into two, [G, k] with k at most FP8_BLOCK, padded with zeros."""
    length = x.shape[axis]
    k = min(FP8_BLOCK, length)
    groups = -(-length // k)
    filled = jnp.pad(x, [(0, groups * k - length if i == axis else 0) for i in range(x.ndim)])
    return filled.reshape(*x.shape[:axis], groups, k, *x.shape[axis + 1 :])


def _joined(x_GkHn: jax.Array) -> jax.Array:
    return x_GkHn.reshape(*x_GkHn.shape[:2], -1)
