"""The product of rows with their experts' weights, and its backward, under a precision policy: on one device.

As `products/product.py`: the weights' gradient is summed in fp32 whatever the operands' formats are, and a weight is
cast again in the backward.

Shapes: P rows, E experts, N and O features.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.hardware.tactics.narrow_result import result_format
from scalelab.model.experts.rows import Rows
from scalelab.model.experts.ways import Dot, Way
from scalelab.model.products.operands import Operand, cast_operand, scale_result, stack_amax, unpack_scales
from scalelab.precision import fp8
from scalelab.precision.policy import Policy
from scalelab.sharding import Weight, gradient_like, weight_values


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def expert_product(
    x_PN: jax.Array, w_ENO: Weight, scales: jax.Array | None, rows: Rows, way: Way, policy: Policy
) -> jax.Array:
    """Each row times its expert's weight [P, O], in x's dtype; `scales` as in `weight_product`."""
    return _forward(x_PN, w_ENO, scales, rows, way, policy)[0]


def _forward(x, w, scales, rows, way, policy):
    if policy.scaling == "block":
        y = way.multiply(_dot_of_tiles(policy.forward, policy), x, weight_values(w), rows)
        return y.astype(x.dtype), (Operand(x, None), w, scales, rows)
    x_scale, w_scale, _ = unpack_scales(scales)
    a = cast_operand(x, policy.forward, policy, x_scale)
    b = cast_operand(weight_values(w), policy.forward, policy, w_scale)
    y = way.multiply(_dot_in(x.dtype), a.values, b.values, rows)
    return scale_result(y, a, b, x.dtype), (a, w, scales, rows)


def _backward(way, policy, residuals, dy):
    a, weight, scales, rows = residuals
    if policy.scaling == "block":
        dx = way.multiply(_dot_of_tiles(policy.backward, policy), dy, weight_values(weight).mT, rows).astype(dy.dtype)
        dw = way.add_outer(functools.partial(_outer_of_tiles, policy), a.values, dy, rows)
        return dx, gradient_like(weight, dw), None, None
    _, w_scale, dy_scale = unpack_scales(scales)
    b = cast_operand(weight_values(weight), policy.forward, policy, w_scale)
    c = cast_operand(dy, policy.backward, policy, dy_scale)
    dx = scale_result(way.multiply(_dot_in(dy.dtype), c.values, b.values.mT, rows), c, b, dy.dtype)
    dw = scale_result(way.add_outer(_dot_in(jnp.float32), a.values, c.values, rows), a, c, jnp.float32)
    return dx, gradient_like(weight, dw), stack_amax(scales, a, b, c), None


expert_product.defvjp(_forward, _backward)


def _dot_in(form: Any) -> Dot:
    """A product of two matrices summed in fp32, in the format that `result_format` takes for `form`."""

    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        precision = fp8.sum_precision() if a.dtype.itemsize == 1 else None
        return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), precision, result_format(form, False))

    return dot


def _dot_of_tiles(form: str, policy: Policy) -> Dot:
    """A product in fp8 of rows in the format `form`, with a scale a tile, and a weight, with a scale a block."""
    return lambda x, w: fp8.block_dot(fp8.quantize_tiles(x, form), fp8.quantize_blocks(w, policy.forward))


def _outer_of_tiles(policy: Policy, x_NM: jax.Array, dy_MO: jax.Array) -> jax.Array:
    """The product in fp8 of rows and gradients, with scales of tiles along the rows."""
    tiles = fp8.quantize_tiles(dy_MO.T, policy.backward)
    swapped = fp8.ScaledBlocks(tiles.values.swapaxes(1, 2), tiles.scale.swapaxes(1, 2))
    return fp8.block_dot(fp8.quantize_tiles(x_NM, policy.forward), swapped)
