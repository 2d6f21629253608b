"""Rotary positions written out (Su et al. 2021, eq. 34), with the scalings of the papers that the config names."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.diagnose.probes.reference.knobs import Knobs, choose, is_default


def frequencies(shape: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """(radians a position of layers with full attention [H/2], of layers with a window, factor on scaled logits)."""
    width = shape.d_head_rope if shape.d_kv_latent else int(shape.rope_share * shape.d_head)
    half = width // 2
    i = np.arange(half).astype(dtype)

    def powers(theta: float) -> np.ndarray:
        return np.asarray(theta, dtype) ** (-i / np.asarray(half, dtype))

    plain, factor, kind, amplitude = powers(shape.rope_theta), shape.rope_factor, shape.rope_scaling, 1.0
    if kind == "none":
        whole = plain
    elif kind == "linear":  # Chen et al. 2023: positions are divided
        whole = plain / factor
    elif kind == "ntk":  # theta grows so that the last pair turns `factor` times as slowly
        whole = powers(shape.rope_theta * factor ** (half / (half - 1)))
    elif kind == "llama3":  # between 1 and 4 turns within the original length the two are mixed
        share = np.clip((shape.rope_original * plain / (2 * math.pi) - 1) / 3, 0, 1)
        whole = share * plain + (1 - share) * plain / factor
    elif (
        kind == "yarn"
    ):  # Peng et al. 2023, section 3.2: pairs with 32 turns and more are left, with 1 and less divided

        def pair(turns: float) -> float:
            return width * math.log(shape.rope_original / (turns * 2 * math.pi)) / (2 * math.log(shape.rope_theta))

        first, last = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), width - 1)
        share = 1 - np.clip((i - first) / max(last - first, 1e-3), 0, 1)
        whole, amplitude = share * plain + (1 - share) * plain / factor, 0.1 * shape.rope_mscale * math.log(factor) + 1
    else:
        raise NotImplementedError(f"model.rope_scaling={kind}")
    local = powers(shape.rope_local_theta) if shape.rope_local_theta else whole
    return whole.astype(dtype), local.astype(dtype), amplitude**2


def rotate(x: Any, position: Any, frequency: Any, shape: Any, knobs: Knobs) -> Any:
    """x [B, S, N, H] with each pair turned by position x frequency; position [B, S], frequency [H/2]."""
    half = x.shape[-1] // 2
    to = lambda y: jax.lax.reduce_precision(y, 8, 7)  # noqa: E731 - not a cast, which compilers drop
    if not is_default(knobs.rope_theta, 1.0):
        frequency = frequency * knobs.rope_theta ** (-jnp.arange(half).astype(x.dtype) / half)
    angle = position.astype(x.dtype)[:, :, None, None] * frequency[None, None, None, :]
    angle = angle * knobs.rope_sign
    traced = not is_default(knobs.rope_bf16, 0)
    if traced:
        factors = to(position.astype(x.dtype))[:, :, None, None], to(frequency)[None, None, None, :]
        angle = choose(knobs.rope_bf16 == 1, to(factors[0] * factors[1]), angle)
        angle = choose(knobs.rope_bf16 == 4, factors[0] * factors[1], angle)
        angle = choose(knobs.rope_bf16 == 5, position.astype(x.dtype)[:, :, None, None] * factors[1], angle)
        angle = choose(knobs.rope_bf16 == 6, to(angle), angle)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    if traced:
        cos, sin = (choose(knobs.rope_bf16 == 2, to(y), y) for y in (cos, sin))
    a, b = x[..., :half], x[..., half:]
    y = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    if traced:
        y = choose(knobs.rope_bf16 == 3, to(y), y)
    if not is_default(knobs.rope_pairs, False):
        a, b = x[..., 0::2], x[..., 1::2]
        pairs = jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
        y = choose(knobs.rope_pairs, pairs, y)
    return choose(knobs.no_rope, x, y)
