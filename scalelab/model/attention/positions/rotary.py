"""Rotary positions (Su et al. 2021), and their scalings to sequences longer than in training.

Shapes: B batch, S sequence, N heads, H the numbers of a head that are rotated, P = H / 2 pairs.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.model.stacks import LayerFlags

LOW, HIGH = 1.0, 4.0  # llama3: turns within rope_original; up to LOW a pair is scaled fully, from HIGH not at all
SLOW, FAST = 1.0, 32.0  # yarn: as LOW and HIGH, but interpolated by the pair's index (Peng et al. 2023, section 4)


def rope_frequencies(shape: ModelShape) -> jax.Array:
    """Radians per position of each pair [P]: theta^(-2i/H) (Su et al. 2021, section 3.2.2), scaled by `rope_scaling`.

    linear: all slower by the factor (Chen et al. 2023). ntk: a larger theta, so that the slowest pair is slower by the
    factor and the fastest is unchanged (bloc97 2023, in Peng et al. 2023, section 3.1). llama3: by wavelength (Llama
    3.1, as released). yarn: by the number of turns within the original length (Peng et al. 2023, section 3.2).
    """
    half = shape.d_rotated // 2
    return ROPE_SCALINGS[shape.rope_scaling](shape, shape.rope_theta ** (-jnp.arange(half) / half))


def _ntk_frequencies(shape: ModelShape, base_P: jax.Array) -> jax.Array:
    del base_P
    half = shape.d_rotated // 2
    return (shape.rope_theta * shape.rope_factor ** (half / (half - 1))) ** (-jnp.arange(half) / half)


def _llama3_frequencies(shape: ModelShape, base_P: jax.Array) -> jax.Array:
    turns_P = shape.rope_original * base_P / (2 * math.pi)
    return _slow_partly(shape, base_P, jnp.clip((turns_P - LOW) / (HIGH - LOW), 0, 1))


def _yarn_frequencies(shape: ModelShape, base_P: jax.Array) -> jax.Array:
    first, last = (_pair_index(shape, turns) for turns in (FAST, SLOW))
    first, last = max(math.floor(first), 0), min(math.ceil(last), shape.d_rotated - 1)
    unscaled_P = 1 - jnp.clip((jnp.arange(shape.d_rotated // 2) - first) / max(last - first, 1e-3), 0, 1)
    return _slow_partly(shape, base_P, unscaled_P)


def _slow_partly(shape: ModelShape, base_P: jax.Array, unscaled_P: jax.Array) -> jax.Array:
    """Frequencies slower by the factor, but for their share `unscaled_P`."""
    return unscaled_P * base_P + (1 - unscaled_P) * base_P / shape.rope_factor


ROPE_SCALINGS: dict[str, Callable[[ModelShape, jax.Array], jax.Array]] = {
    "none": lambda shape, base_P: base_P,
    "linear": lambda shape, base_P: base_P / shape.rope_factor,
    "ntk": _ntk_frequencies,
    "llama3": _llama3_frequencies,
    "yarn": _yarn_frequencies,
}


def layer_frequencies(shape: ModelShape, layer: LayerFlags) -> tuple[jax.Array, float | jax.Array]:
    """One layer's (frequencies [P], factor on the logits).

    With `rope_local_theta` a layer with a window has that theta and no scaling (Gemma 3, 2025, section 2). A layer
    without positions is not scaled either.
    """
    logit_factor: float | jax.Array = yarn_amplitude(shape) ** 2
    flags = [layer.is_global] if shape.rope_local_theta else []
    flags = [flag for flag in (*flags, layer.has_rope) if flag is not None]
    if flags and logit_factor != 1:
        logit_factor = jnp.where(functools.reduce(jnp.logical_and, flags), logit_factor, 1.0)
    if not shape.rope_local_theta or layer.is_global is None:
        return rope_frequencies(shape), logit_factor
    local = dataclasses.replace(shape, rope_theta=shape.rope_local_theta, rope_scaling="none")
    return jnp.where(layer.is_global, rope_frequencies(shape), rope_frequencies(local)), logit_factor


def _pair_index(shape: ModelShape, turns: float) -> float:
    """Index of the pair that makes this many turns within the original length."""
    return shape.d_rotated * math.log(shape.rope_original / (turns * 2 * math.pi)) / (2 * math.log(shape.rope_theta))


def yarn_amplitude(shape: ModelShape) -> float:
    """Yarn's factor on queries and on keys (Peng et al. 2023, eq. 22: the square root of 1/t); 1 for other scalings."""
    return 0.1 * shape.rope_mscale * math.log(shape.rope_factor) + 1 if shape.rope_scaling == "yarn" else 1.0


def apply_rope(x_BSNH: jax.Array, frequency_P: jax.Array, position_BS: jax.Array | None = None) -> jax.Array:
    """Rotate pairs (i, i + P) by position x frequency (Su et al. 2021, eq. 34), in fp32; default positions: 0, 1, …."""
    position_BS = jnp.arange(x_BSNH.shape[1])[None] if position_BS is None else position_BS
    angle_BSP = position_BS[:, :, None] * frequency_P[None, None, :]
    cos, sin = jnp.cos(angle_BSP)[:, :, None, :], jnp.sin(angle_BSP)[:, :, None, :]
    a, b = jnp.split(x_BSNH.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BSNH.dtype)


def rotate_part(x_BSNH: jax.Array, frequency_P: jax.Array, position_BS: jax.Array | None, first: bool) -> jax.Array:
    """`apply_rope` to the first 2 P numbers of each head, or the last; the others stay as they are."""
    width = 2 * frequency_P.shape[0]
    if x_BSNH.shape[-1] == width:
        return apply_rope(x_BSNH, frequency_P, position_BS)
    at = width if first else x_BSNH.shape[-1] - width
    parts = jnp.split(x_BSNH, [at], axis=-1)
    turned = 0 if first else 1
    parts[turned] = apply_rope(parts[turned], frequency_P, position_BS)
    return jnp.concatenate(parts, axis=-1)
