"""Products at a stated precision: what `fp32` and `tf32` mean on each backend, and sums in fp32 whatever the operands.

The choice between them is jax's own, `jax.default_matmul_precision`: kernels of others (attention on GPU) follow it too.
"""

import contextlib
import functools
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.precision.policy import TF32, Policy
from scalelab.sharding import target_platform, vary_like

EMULATED_PRECISION = "tensorfloat32"  # what jax calls it; silently plain fp32 where the backend has no such unit


def product_precision(policy: Policy) -> AbstractContextManager:
    """Within it products of fp32 arrays are what `policy` says; forward and backward have to be traced within.

    Left alone a GPU takes TF32 and a TPU bf16 for them, so `fp32` asks for all bits there. A CPU has them anyway.
    """
    backend = target_platform()
    if policy.forward == TF32:
        return jax.default_matmul_precision("TF32_TF32_F32" if backend == "gpu" else EMULATED_PRECISION)
    exact = policy.forward == "float32" and backend != "cpu"
    return jax.default_matmul_precision("highest") if exact else contextlib.nullcontext()


def emulates_tf32() -> bool:
    """Whether operands have to be rounded to TF32 here."""
    return jax.config.jax_default_matmul_precision == EMULATED_PRECISION  # type: ignore[attr-defined]


def round_to_tf32(x: jax.Array) -> jax.Array:
    """An operand as a TF32 unit sees it, where that is emulated: 8 bits of exponent, 10 of mantissa, to nearest even."""
    return jax.lax.reduce_precision(x, 8, 10) if emulates_tf32() and x.dtype == jnp.float32 else x


def fp32_einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Two arrays' einsum, summed and returned in fp32."""
    return _rounded_einsum(subscripts, *_alike(a, b)) if emulates_tf32() else _einsum(subscripts, a, b)


def _alike(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Within a shard_map both differ along the same axes: over those that one doesn't have, its gradient is then summed."""
    return vary_like(a, b), vary_like(b, a)


def _einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rounded_einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return _einsum(subscripts, round_to_tf32(a), round_to_tf32(b))


def _rounded_backward(subscripts: str, kept: tuple[jax.Array, jax.Array], dy: jax.Array) -> Any:
    return jax.vjp(functools.partial(_einsum, subscripts), *map(round_to_tf32, kept))[1](round_to_tf32(dy))


_rounded_einsum.defvjp(lambda subscripts, a, b: (_rounded_einsum(subscripts, a, b), (a, b)), _rounded_backward)


def mixed_matmul(x_TD: jax.Array, w_DV: jax.Array, form: Any) -> jax.Array:
    """x [T, D] times w [D, V], both cast to `form` -> [T, V] in fp32; gradients are summed in fp32, w's (fp32) stays there."""
    return fp32_einsum("td,dv->tv", x_TD, w_DV) if form == jnp.float32 else _half_matmul(*_alike(x_TD, w_DV), form)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _half_matmul(x_TD: jax.Array, w_DV: jax.Array, form: Any) -> jax.Array:
    return _einsum("td,dv->tv", x_TD.astype(form), w_DV.astype(form))


def _half_backward(form: Any, kept: tuple[jax.Array, jax.Array], dy_TV: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_TD, w_DV = kept
    dx_TD = _einsum("tv,dv->td", dy_TV, w_DV.astype(form)).astype(x_TD.dtype)
    return dx_TD, _einsum("td,tv->dv", x_TD.astype(form), dy_TV).astype(w_DV.dtype)


_half_matmul.defvjp(lambda x_TD, w_DV, form: (_half_matmul(x_TD, w_DV, form), (x_TD, w_DV)), _half_backward)
