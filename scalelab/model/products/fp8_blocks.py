"""The product in fp8 with a scale a tile or block, and its backward: `weight_product` where `policy.scaling` is block.

Each device multiplies its own part; the result is that of one device where parts are whole blocks.
"""

import math
from typing import Any

import jax
from jax.sharding import reshard

from scalelab.model.products.operands import ProductAxes
from scalelab.precision import fp8
from scalelab.precision.policy import Policy
from scalelab.sharding import (
    Weight,
    activation_spec,
    axes_of,
    gather_weight,
    gradient_like,
    gradient_spec,
    has_explicit_mesh,
    per_device,
    reshard_to,
    spec_of,
    sum_along,
    weight_master,
    weight_values,
    within_block,
)


def block_forward(x: jax.Array, w: jax.Array, axes: ProductAxes, policy: Policy) -> jax.Array:
    """x [..., ins] times w [ins, outs] -> [..., outs]."""
    ins, names, out_axes = axes
    added = axes_of(*names[:ins])

    def device_product(x: jax.Array, w: jax.Array) -> jax.Array:
        x_MK, w_KN = x.reshape(-1, math.prod(x.shape[x.ndim - ins :])), w.reshape(math.prod(w.shape[:ins]), -1)
        y_MN = fp8.block_dot(fp8.quantize_tiles(x_MK, policy.forward), fp8.quantize_blocks(w_KN, policy.forward))
        y = y_MN.reshape(*x.shape[: x.ndim - ins], *w.shape[ins:])
        return sum_along(y, added)

    x_spec = spec_of(x)
    y = per_device(device_product, (x_spec, activation_spec(*names)), activation_spec(*within_block(out_axes)))(
        x, gather_weight(w, *names)
    )
    return reshard_to(y, *out_axes).astype(x.dtype)


def block_backward(
    axes: ProductAxes, policy: Policy, residuals: tuple[jax.Array, Weight], dy: jax.Array
) -> tuple[jax.Array, Any, None]:
    """The gradients of x and of the weight, and none of scales."""
    (x, weight), (ins, names, out_axes) = residuals, axes
    w, lead = weight_values(weight), x.ndim - ins
    of_x, of_w = axes_of(*names[ins:]), axes_of(*within_block(out_axes)[:lead])

    def device_gradients(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens, inner = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
        x_TK, dy_TN, w_KN = x.reshape(tokens, inner), dy.reshape(tokens, -1), w.reshape(inner, -1)
        dx_TK = fp8.block_dot(fp8.quantize_tiles(dy_TN, policy.backward), fp8.quantize_blocks(w_KN.T, policy.forward))
        dy_tiles = fp8.quantize_tiles(dy_TN.T, policy.backward)  # along tokens, the contracted axis
        swapped = fp8.ScaledBlocks(dy_tiles.values.swapaxes(1, 2), dy_tiles.scale.swapaxes(1, 2))
        dw_KN = fp8.block_dot(fp8.quantize_tiles(x_TK.T, policy.forward), swapped)
        dx = sum_along(dx_TK.reshape(x.shape), of_x)
        return dx.astype(x.dtype), sum_along(dw_KN.reshape(w.shape), of_w)

    x_spec, w_spec = spec_of(x), activation_spec(*names)
    whole = within_block(out_axes)
    mapped = per_device(device_gradients, (x_spec, w_spec, activation_spec(*whole)), (x_spec, w_spec))
    dx, dw = mapped(x, gather_weight(w, *names), reshard_to(dy, *whole))
    if has_explicit_mesh():
        dw = reshard(dw, gradient_spec(weight_master(weight)))
    return dx, gradient_like(weight, dw), None
