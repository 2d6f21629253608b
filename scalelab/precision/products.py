"""Products at a stated precision: `fp32` and `tf32` on each backend, and sums in fp32 for any operands.

The switch is jax's own, `jax.default_matmul_precision`: third-party kernels (attention on GPU) follow it too.
"""

import contextlib
import functools
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.hardware.tactics.transposed_copy import multiply_transposed
from scalelab.precision.policy import TF32, Policy
from scalelab.sharding import target_platform, vary_like

EMULATED_PRECISION = "tensorfloat32"  # jax's name; jax silently uses plain fp32 on backends without such a unit


def product_precision(policy: Policy) -> AbstractContextManager:
    """A context in which products of fp32 arrays follow `policy`; forward and backward must be traced inside it.

    By default a GPU uses TF32 and a TPU bf16 for them, so `fp32` asks for all bits there. A CPU uses them anyway.
    """
    backend = target_platform()
    if policy.forward == TF32:
        return jax.default_matmul_precision("TF32_TF32_F32" if backend == "gpu" else EMULATED_PRECISION)
    exact = policy.forward == "float32" and backend != "cpu"
    return jax.default_matmul_precision("highest") if exact else contextlib.nullcontext()


def emulates_tf32() -> bool:
    """Whether operands must be rounded to TF32 in the current context."""
    return jax.config.jax_default_matmul_precision == EMULATED_PRECISION  # type: ignore[attr-defined]


def round_to_tf32(x: jax.Array) -> jax.Array:
    """Round an fp32 operand as a TF32 unit does (10 bits of mantissa, to nearest even), if TF32 is emulated here."""
    return jax.lax.reduce_precision(x, 8, 10) if emulates_tf32() and x.dtype == jnp.float32 else x


def fp32_einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Einsum of two arrays, summed and returned in fp32."""
    return _rounded_einsum(subscripts, *_alike(a, b)) if emulates_tf32() else _einsum(subscripts, a, b)


def _alike(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Let both vary along equal mesh axes inside a shard_map, so that gradients are summed over the axes one lacks."""
    return vary_like(a, b), vary_like(b, a)


def _einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rounded_einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return _einsum(subscripts, round_to_tf32(a), round_to_tf32(b))


def _rounded_backward(subscripts: str, saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> Any:
    return jax.vjp(functools.partial(_einsum, subscripts), *map(round_to_tf32, saved))[1](round_to_tf32(dy))


_rounded_einsum.defvjp(lambda subscripts, a, b: (_rounded_einsum(subscripts, a, b), (a, b)), _rounded_backward)


def mixed_matmul(x_TD: jax.Array, w_DV: jax.Array, form: Any) -> jax.Array:
    """Multiply x [T, D] by w [D, V], both cast to `form`: [T, V] in fp32; gradients are summed in fp32, w's stay so."""
    return fp32_einsum("td,dv->tv", x_TD, w_DV) if form == jnp.float32 else _half_matmul(*_alike(x_TD, w_DV), form)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _half_matmul(x_TD: jax.Array, w_DV: jax.Array, form: Any) -> jax.Array:
    return _einsum("td,dv->tv", x_TD.astype(form), w_DV.astype(form))


def matmul_gradients(x_TD: jax.Array, w_DV: jax.Array, dy_TV: jax.Array, form: Any) -> tuple[jax.Array, jax.Array]:
    """(dx [T, D], dw [D, V]) of `mixed_matmul` in fp32, whatever the formats of x and w; `dy_TV` in fp32.

    On accelerators a bf16 product takes dy in bf16 too. A TPU rounds it so anyway; a GPU would multiply in TF32, at
    half the rate: 42 of 219 ms of GPT-2 small's step on an H100, where the forward's product takes 8
    (checks/results/gpu.md). fp16 has not the range for gradients of single tokens before the loss scale.
    """
    x_TD, w_DV = (round_to_tf32(values.astype(form)) for values in (x_TD, w_DV))
    if form == jnp.bfloat16 and target_platform() != "cpu":
        dy_TV = dy_TV.astype(form)
    dy_TV = round_to_tf32(dy_TV) if form == jnp.float32 else dy_TV
    return _einsum("tv,dv->td", dy_TV, w_DV), multiply_transposed(_einsum, x_TD, dy_TV)


def _half_backward(form: Any, saved: tuple[jax.Array, jax.Array], dy_TV: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_TD, w_DV = saved
    dx_TD, dw_DV = matmul_gradients(x_TD, w_DV, dy_TV, form)
    return dx_TD.astype(x_TD.dtype), dw_DV.astype(w_DV.dtype)


_half_matmul.defvjp(lambda x_TD, w_DV, form: (_half_matmul(x_TD, w_DV, form), (x_TD, w_DV)), _half_backward)
