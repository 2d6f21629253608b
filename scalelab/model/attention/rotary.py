"""Rotary positions (Su et al. 2021), and the ways to stretch them over longer sequences than they were trained on.

Shapes: B batch, S sequence, N heads, H d_head, P = H / 2 pairs.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.model.layer_flags import LayerFlags

LOW, HIGH = 1.0, 4.0  # llama3: turns within rope_original below which a pair is stretched whole, above which not at all
SLOW, FAST = 1.0, 32.0  # yarn: the same, by the pair's index (Peng et al. 2023, section 4)


def rope_frequencies(shape: ModelShape) -> jax.Array:
    """Radians a position of each pair [P]: theta^(-2i/H) (Su et al. 2021, section 3.2.2), scaled as `rope_scaling` says.

    linear: all slower by the factor (Chen et al. 2023). ntk: a larger theta, so that the slowest pair is slower by the factor
    and the fastest as it was (bloc97 2023, in Peng et al. 2023, section 3.1). llama3: by wavelength (Llama 3.1, as released).
    yarn: by the number of turns within the original length (Peng et al. 2023, section 3.2).
    """
    half, factor = shape.d_head // 2, shape.rope_factor
    base_P = shape.rope_theta ** (-jnp.arange(half) / half)
    if shape.rope_scaling == "linear":
        return base_P / factor
    if shape.rope_scaling == "ntk":
        return (shape.rope_theta * factor ** (half / (half - 1))) ** (-jnp.arange(half) / half)
    if shape.rope_scaling == "llama3":
        turns_P = shape.rope_original * base_P / (2 * math.pi)
        kept_P = jnp.clip((turns_P - LOW) / (HIGH - LOW), 0, 1)
    elif shape.rope_scaling == "yarn":
        first, last = (_pair_index(shape, turns) for turns in (FAST, SLOW))
        first, last = max(math.floor(first), 0), min(math.ceil(last), shape.d_head - 1)
        kept_P = 1 - jnp.clip((jnp.arange(half) - first) / max(last - first, 1e-3), 0, 1)
    else:
        return base_P
    return kept_P * base_P + (1 - kept_P) * base_P / factor


def layer_frequencies(shape: ModelShape, layer: LayerFlags) -> tuple[jax.Array, float | jax.Array]:
    """(frequencies [P], what the logits are multiplied by) of one layer.

    With `rope_local_theta` a layer with a window has that theta and no scaling (Gemma 3, 2025, section 2). A layer without
    positions is not scaled either.
    """
    grown: float | jax.Array = yarn_amplitude(shape) ** 2
    scaled = [layer.everywhere] if shape.rope_local_theta else []
    scaled = [flag for flag in (*scaled, layer.turns) if flag is not None]
    if scaled and grown != 1:
        grown = jnp.where(functools.reduce(jnp.logical_and, scaled), grown, 1.0)
    if not shape.rope_local_theta or layer.everywhere is None:
        return rope_frequencies(shape), grown
    near = dataclasses.replace(shape, rope_theta=shape.rope_local_theta, rope_scaling="none")
    return jnp.where(layer.everywhere, rope_frequencies(shape), rope_frequencies(near)), grown


def _pair_index(shape: ModelShape, turns: float) -> float:
    """The index of the pair that turns so often within the original length."""
    return shape.d_head * math.log(shape.rope_original / (turns * 2 * math.pi)) / (2 * math.log(shape.rope_theta))


def yarn_amplitude(shape: ModelShape) -> float:
    """By how much yarn lengthens queries and keys each (Peng et al. 2023, eq. 22, its square root of 1/t); 1 for the others."""
    return 0.1 * math.log(shape.rope_factor) + 1 if shape.rope_scaling == "yarn" else 1.0


def apply_rope(x_BSNH: jax.Array, frequency_P: jax.Array, position_BS: jax.Array | None = None) -> jax.Array:
    """Rotate pairs (i, i + P) by position x frequency (Su et al. 2021, eq. 34), in fp32; positions 0, 1, … by default."""
    at_BS = jnp.arange(x_BSNH.shape[1])[None] if position_BS is None else position_BS
    angle_BSP = at_BS[:, :, None] * frequency_P[None, None, :]
    cos, sin = jnp.cos(angle_BSP)[:, :, None, :], jnp.sin(angle_BSP)[:, :, None, :]
    a, b = jnp.split(x_BSNH.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BSNH.dtype)
