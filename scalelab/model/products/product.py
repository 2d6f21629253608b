"""The product of activations with a weight, and its backward, under a precision policy and on a mesh.

The backward is written out for three reasons. The weight's gradient is summed over tokens and devices in fp32, even
where products run in bf16. A weight is cast and gathered again, so that the copy isn't held in between; where the block
is recomputed, what it gathers then serves the backward too. fp8 needs another format for the gradient that flows back.
No library does this: qwix (0.1.8) has a backward around `lax.dot_general` but sets no `out_sharding`, which a
contraction over a split axis needs here.

Calls into `hardware/tactics/` and `parts.py` change the program and not its result: each of these files says what its
tactic gains, and the code reads the same without them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, reshard

from scalelab.hardware.tactics.exchange import exchanged_gradient, scatters_by_exchange
from scalelab.hardware.tactics.held_gradient import hold_gradient
from scalelab.hardware.tactics.narrow_result import result_format
from scalelab.hardware.tactics.two_matrices import flat_gradients, flattens, multiply_flat
from scalelab.model.products.fp8_blocks import block_backward, block_forward
from scalelab.model.products.operands import ProductAxes, cast_operand, scale_result, stack_amax, unpack_scales
from scalelab.model.products.parts import (
    GatheredSequence,
    cast_parts,
    multiply_in_parts,
    sequence_gradient_like,
    sequence_like,
    whole_sequence,
)
from scalelab.precision import fp8
from scalelab.precision.policy import Policy
from scalelab.sharding import (
    TENSOR_AXIS,
    Weight,
    activation_spec,
    axes_of,
    gather_weight,
    gradient_like,
    gradient_spec,
    has_explicit_mesh,
    is_in_stage,
    mesh_axes,
    mesh_axis_size,
    reshard_to,
    spec_of,
    weight_master,
    weight_values,
    within_block,
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def weight_product(
    x: jax.Array | GatheredSequence, w: Weight, scales: jax.Array | None, axes: ProductAxes, policy: Policy
) -> jax.Array:
    """x [..., ins] times w [ins, outs] (logical axes `axes.names`) -> [..., outs] in x's dtype, split by `axes.outs`.

    An x that was gathered in parts is multiplied in parts; so is one whose products are added up in `policy.parts`.
    `scales` [3]: delayed scaling's scales of x, w and the gradient that flows back. Their "gradient" is not a gradient:
    it carries the amax of the three.
    """
    return _forward(x, w, scales, axes, policy)[0]


def _forward(x, w, scales, axes, policy):
    values, (ins, names, out_axes) = weight_values(w), axes
    if policy.scaling == "block":
        return block_forward(x, values, axes, policy), (x, w)
    x_scale, w_scale, _ = unpack_scales(scales)
    a = cast_operand(whole_sequence(x), policy.forward, policy, x_scale)
    b = cast_operand(values, policy.forward, policy, w_scale)
    added, place, dtype = axes_of(*names[:ins]), activation_spec(*out_axes), x.dtype
    partial = TENSOR_AXIS in added and (_sends_partial_sums(policy) or policy.parts > 1)
    out = PartitionSpec(*activation_spec(*within_block(out_axes)), unreduced={TENSOR_AXIS}) if partial else place
    whole = gather_weight(b.values, *names)
    form = result_format(dtype, any(mesh_axis_size(axis) > 1 for axis in added))
    sent = jnp.float32 if partial and not policy.sums_in_compute else dtype

    def multiply(x: jax.Array, w: jax.Array) -> jax.Array:
        return scale_result(_contract_features(x, w, ins, out, form), a, b, sent)

    xs = cast_parts(
        x,
        a.values,
        lambda part: cast_operand(part, policy.forward, policy).values,
        policy.parts if TENSOR_AXIS in added else 1,
        names[:ins],
    )
    y = multiply_in_parts(multiply, (lambda y: reshard(y, place)) if partial else None, xs, whole, out_axes)
    keep = (policy.recomputed or is_in_stage()) and "fsdp" in mesh_axes(spec_of(values).partitions)
    gathered = b._replace(values=whole) if keep else None
    return y.astype(dtype), (a._replace(values=sequence_like(x, a.values)), w, gathered, scales)


def _backward(axes, policy, residuals, dy):
    if policy.scaling == "block":
        return block_backward(axes, policy, residuals, dy)
    saved, weight, gathered, scales = residuals
    w, a = weight_master(weight), saved._replace(values=whole_sequence(saved.values))
    _, w_scale, dy_scale = unpack_scales(scales)
    b = gathered or cast_operand(weight_values(weight), policy.forward, policy, w_scale)
    c = cast_operand(dy, policy.backward, policy, dy_scale)
    added = any(mesh_axis_size(axis) > 1 for axis in axes_of(*axes.names[axes.ins :]))
    form = result_format(dy.dtype, added)
    amax = stack_amax(scales, a, b, c)
    lead = a.values.ndim - axes.ins
    if flattens():
        dx, dw = flat_gradients(_dot_general, a.values, b.values, c.values, lead, form)
    else:
        dx, dw = _gradients(a.values, b.values, c.values, w, axes, form)
    dx = scale_result(dx.reshape(a.values.shape), c, b, dy.dtype)
    dw = scale_result(dw.reshape(w.shape), a, c, w.dtype)
    dw = reshard(dw, gradient_spec(w)) if has_explicit_mesh() else dw
    return sequence_gradient_like(saved.values, dx), gradient_like(weight, dw), amax


weight_product.defvjp(_forward, _backward)


def _gradients(
    x: jax.Array, w: jax.Array, dy: jax.Array, master: jax.Array, axes: ProductAxes, form: Any
) -> tuple[jax.Array, jax.Array]:
    """(dx, dw) of the operands `x` and `w`; dw may still be whole along axes along which that of `master` is split."""
    lead = x.ndim - axes.ins
    tokens, outs, w_outs = tuple(range(lead)), tuple(range(lead, dy.ndim)), tuple(range(axes.ins, w.ndim))
    dw_spec, out = gradient_spec(master), activation_spec(*axes.names)
    if dw_spec.unreduced:  # jax then wants both operands split alike, and all axes of the sum or none
        dy = reshard_to(dy, *within_block(axes.outs))
        out = PartitionSpec(*out, unreduced={*mesh_axes(spec_of(x).partitions[:lead])})
    by_exchange = scatters_by_exchange(dw_spec)
    dy = hold_gradient(reshard_to(dy, *within_block(axes.outs))) if by_exchange else dy
    dx = _dot_general(dy, gather_weight(w, *axes.names), outs, w_outs, form, gradient_spec(x))
    if by_exchange:
        return dx, exchanged_gradient(_dot_general, x, dy, lead, dw_spec)
    return dx, _dot_general(x, dy, tokens, tokens, out=out)


def _contract_features(x: jax.Array, w: jax.Array, ins: int, out: PartitionSpec, form: Any) -> jax.Array:
    """x [..., ins] times w [ins, outs]; a mesh splits the result by `out`.

    In fp32, so that the devices' parts are added after it where the contraction is split.
    """
    if flattens():
        return multiply_flat(_dot_general, x, w, ins, form)
    return _dot_general(x, w, tuple(range(x.ndim - ins, x.ndim)), tuple(range(ins)), form, out)


def _dot_general(
    a: jax.Array, b: jax.Array, of_a: tuple, of_b: tuple, form: Any = jnp.float32, out: PartitionSpec | None = None
) -> jax.Array:
    """Contract the axes `of_a` of `a` with `of_b` of `b`, summed in fp32, in the format `form`."""
    precision = fp8.sum_precision() if a.dtype.itemsize == 1 else None
    dims = ((of_a, of_b), ((), ()))
    out = out if has_explicit_mesh() else None
    return jax.lax.dot_general(a, b, dims, precision, form, out_sharding=out)


def share_among_products(x_BSD: Any, policy: Policy) -> Any:
    """`x_BSD` for products whose weights are split over `tensor`: what flows back is added on each device first.

    Between devices it is then added once, in the format of `x_BSD`: not once a product in fp32. Megatron-LM does so by
    one weight for queries, keys and values; here jax's types say it (`reduced`, whose gradient is `unreduced`).
    `parallel.sums=float32` goes without.
    """
    if not _sends_partial_sums(policy) or policy.scaling:
        return x_BSD
    if isinstance(x_BSD, GatheredSequence):
        return x_BSD._replace(whole=share_among_products(x_BSD.whole, policy))
    return reshard(x_BSD, PartitionSpec(*spec_of(x_BSD).partitions, reduced={TENSOR_AXIS}))


def _sends_partial_sums(policy: Policy) -> bool:
    """Whether partial products are sent in the format of activations; jax has no types for it within a stage."""
    split = mesh_axis_size(TENSOR_AXIS) > 1 and not jax.sharding.get_abstract_mesh().manual_axes
    return split and policy.sums_in_compute
