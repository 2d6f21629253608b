"""The product of activations with a weight, and its backward, in the policy's formats.

The backward is written out for three reasons. The weight's gradient is summed over tokens and devices in fp32, even
where products run in bf16. A weight is cast and gathered again, so that the copy isn't held in between; where the block
is recomputed, what it gathers then serves the backward too. fp8 needs another format for the gradient that flows back.
No library does this: qwix (0.1.8) has a backward around `lax.dot_general` but sets no `out_sharding`, which a
contraction over a split axis needs here.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, reshard

from scalelab.model.products.parts import (
    GatheredSequence,
    join_parts,
    multiply_parts,
    send_in_turn,
    sequence_gradient_like,
    split_parts,
    whole_sequence,
)
from scalelab.precision import fp8
from scalelab.precision.policy import Policy, array_dtype
from scalelab.precision.products import round_to_tf32
from scalelab.sharding import (
    TENSOR_AXIS,
    Weight,
    activation_spec,
    gather_weight,
    gradient_like,
    gradient_spec,
    has_explicit_mesh,
    is_in_stage,
    mesh_axes,
    mesh_axis_size,
    per_device,
    reshard_to,
    scatter_sum,
    scatters_by_exchange,
    spec_of,
    target_platform,
    times_scalar,
    weight_master,
    weight_values,
)

AxisNames = tuple[str | None, ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def weight_product(
    x: jax.Array | GatheredSequence,
    w: Weight,
    scales: jax.Array | None,
    ins: int,
    names: tuple[str, ...],
    out_axes: AxisNames,
    policy: Policy,
) -> jax.Array:
    """x [..., ins] times w [ins, outs] (logical axes `names`) -> [..., outs] in x's dtype, split by `out_axes`.

    An x that was gathered in parts is multiplied in parts; so is one whose products are added up in `policy.parts`.
    `scales` [3]: delayed scaling's scales of x, w and the gradient that flows back. Their "gradient" is not a gradient:
    it carries the amax of the three.
    """
    return _forward(x, w, scales, ins, names, out_axes, policy)[0]


def share_among_products(x_BSD: Any, policy: Policy) -> Any:
    """`x_BSD` for products whose weights are split over `tensor`: what flows back is added on each device first.

    Between devices it is then added once, in the format of `x_BSD`: not once a product in fp32. Megatron-LM does so by
    one weight for queries, keys and values; here jax's types say it (`reduced`, whose gradient is `unreduced`).
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


class _Operand(NamedTuple):
    values: Any  # an array; as kept for a backward also a `GatheredSequence`
    scale: jax.Array | None  # fp8's scale, one number
    amax: jax.Array | None = None


def _operand(x: jax.Array, form: str, policy: Policy, delayed_scale: jax.Array | None = None) -> _Operand:
    if not policy.scaling:
        return _Operand(round_to_tf32(x.astype(array_dtype(form))), None)
    amax = fp8.max_magnitude(x)
    if delayed_scale is None:
        scale = fp8.tensor_scale(amax, form)
        return _Operand(fp8.cast_to_fp8(x, scale, form), scale, amax)
    # The barrier holds cast and maximum together, as one pass; else XLA casts once for each layout that is multiplied.
    values, amax = jax.lax.optimization_barrier((fp8.cast_to_fp8(x, delayed_scale, form), amax))
    return _Operand(values, delayed_scale, amax)


def _unpack_scales(scales: jax.Array | None) -> tuple[jax.Array | None, ...]:
    return (None,) * 3 if scales is None else (scales[0], scales[1], scales[2])


def _scaled(y: jax.Array, a: _Operand, b: _Operand, out: Any) -> jax.Array:
    if a.scale is None or b.scale is None:
        return y.astype(out)
    return times_scalar(y, (a.scale * b.scale).astype(y.dtype)).astype(out)


def _result_form(a: _Operand, out: Any, summed: AxisNames) -> Any:
    """The format in which a product comes: fp32, and on a GPU `out` if it is of fp8 and no devices add up parts.

    There the library's product takes scales and rounds its sums once, which saves a pass in fp32 over the result.
    Scales are powers of two, so it makes no difference to the numbers that they come after the rounding.
    """
    split = any(mesh_axis_size(axis) > 1 for axis in _axes(summed))
    return out if a.scale is not None and not split and target_platform() == "gpu" else jnp.float32


def _forward(x, w, scales, ins, names, out_axes, policy):
    values = weight_values(w)
    if policy.scaling == "block":
        return _block_forward(x, values, ins, names, out_axes, policy), (x, w)
    of_x, of_w, _ = _unpack_scales(scales)
    a, b = _operand(whole_sequence(x), policy.forward, policy, of_x), _operand(values, policy.forward, policy, of_w)
    added, place, dtype = TENSOR_AXIS in _axes(names[:ins]), activation_spec(*out_axes), x.dtype
    partial = added and (_sends_partial_sums(policy) or policy.parts > 1)
    out = PartitionSpec(*activation_spec(*_unsplit(out_axes)), unreduced={TENSOR_AXIS}) if partial else place
    whole, form = gather_weight(b.values, *names), _result_form(a, dtype, names[:ins])
    sent = jnp.float32 if partial and not policy.sums_in_compute else dtype

    def multiply(x: jax.Array, w: jax.Array) -> jax.Array:
        return _scaled(_dot(x, w, (x.ndim - ins, x.ndim), (0, ins), out, form), a, b, sent)

    if isinstance(x, GatheredSequence):
        xs = tuple(_operand(part, policy.forward, policy).values for part in x.parts)
    else:
        xs = split_parts(a.values, policy.parts if added else 1, "batch", "context", *names[:ins])
    ys = multiply_parts(multiply, xs, whole)
    ys = send_in_turn(lambda y: reshard(y, place), ys) if partial else ys
    keep = (policy.recomputed or is_in_stage()) and "fsdp" in mesh_axes(spec_of(values).partitions)
    gathered = b._replace(values=whole) if keep else None
    saved = x._replace(parts=(), whole=a.values) if isinstance(x, GatheredSequence) else a.values
    return join_parts(ys, *out_axes).astype(dtype), (a._replace(values=saved), w, gathered, scales)


def _backward(ins, names, out_axes, policy, residuals, dy):
    if policy.scaling == "block":
        return _block_backward(ins, names, out_axes, policy, residuals, dy)
    saved, weight, gathered, scales = residuals
    w, a = weight_master(weight), saved._replace(values=whole_sequence(saved.values))
    x, out, lead = a.values, dy.dtype, a.values.ndim - ins
    _, of_w, of_dy = _unpack_scales(scales)
    b = gathered or _operand(weight_values(weight), policy.forward, policy, of_w)
    c = _operand(dy, policy.backward, policy, of_dy)
    form = _result_form(a, out, names[ins:])
    amax = None if scales is None else jnp.stack([part.amax for part in (a, b, c) if part.amax is not None])
    if not has_explicit_mesh():
        tokens, inner = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
        x_TK, dy_TN, w_KN = x.reshape(tokens, inner), c.values.reshape(tokens, -1), b.values.reshape(inner, -1)
        dw, dx = _dot_general(x_TK, dy_TN, (0,), (0,)), _matmul(dy_TN, w_KN.T, form)
        return _scaled(dx.reshape(x.shape), c, b, out), _scaled(dw.reshape(w.shape), a, c, w.dtype), amax
    dy, dw_spec, whole = c.values, gradient_spec(w), activation_spec(*names)
    if dw_spec.unreduced:  # jax then wants both operands split alike, and all axes of the sum or none
        dy = reshard_to(dy, *_unsplit(out_axes))
        whole = PartitionSpec(*whole, unreduced={*mesh_axes(jax.typeof(x).sharding.spec.partitions[:lead])})
    if by_exchange := scatters_by_exchange(dw_spec):
        # The barrier holds dy in memory: XLA would make it of its factors within each product that reads it, which
        # takes 3 % of an 8B's cycles on 8 v5p (libtpu's estimate).
        dy = jax.lax.optimization_barrier(reshard_to(dy, *_unsplit(out_axes)))
    dx = _dot(dy, gather_weight(b.values, *names), (lead, dy.ndim), (ins, w.ndim), gradient_spec(x), form)
    dw = _scattered_gradient(x, dy, lead, dw_spec) if by_exchange else _dot(x, dy, (0, lead), (0, lead), whole)
    dx = sequence_gradient_like(saved.values, _scaled(dx, c, b, out))
    return dx, gradient_like(weight, reshard(_scaled(dw, a, c, w.dtype), dw_spec)), amax


weight_product.defvjp(_forward, _backward)


def _scattered_gradient(x: jax.Array, dy: jax.Array, lead: int, dw_spec: PartitionSpec) -> jax.Array:
    """The weight's gradient, of each device's tokens first, then added up between devices by `scatter_sum`."""
    split = dw_spec.partitions.index("fsdp")
    rest = tuple(axis for axis in mesh_axes(spec_of(dy).partitions[:lead]) if axis != "fsdp")

    def device_gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
        tokens = tuple(range(lead))
        return _sum_over(scatter_sum(_dot_general(x, dy, tokens, tokens), ("fsdp",), split), rest)

    specs = (PartitionSpec(*spec_of(x).partitions), PartitionSpec(*spec_of(dy).partitions))
    return per_device(device_gradient, specs, dw_spec)(reshard(x, specs[0]), dy)


def _dot(
    a: jax.Array,
    b: jax.Array,
    of_a: tuple[int, int],
    of_b: tuple[int, int],
    out: PartitionSpec,
    form: Any = jnp.float32,
) -> jax.Array:
    """Contract axes of_a[0] to of_a[1] of `a` with of_b of `b`, summed in fp32; a mesh splits the result by `out`."""
    if has_explicit_mesh():  # in fp32: where the contraction is split, the devices' parts are added after it
        return _dot_general(a, b, tuple(range(*of_a)), tuple(range(*of_b)), form, out)
    # As one product of two matrices: with more axes, XLA:CPU contracts two of them on a strided copy for the weight's
    # gradient, and a whole step takes 1.5 times as long (checks/speed/benchmarks).
    y = _matmul(a.reshape(-1, math.prod(a.shape[of_a[0] :])), b.reshape(math.prod(b.shape[: of_b[1]]), -1), form)
    return y.reshape(*a.shape[: of_a[0]], *b.shape[of_b[1] :])


def _matmul(a_MK: jax.Array, b_KN: jax.Array, form: Any) -> jax.Array:
    return _dot_general(a_MK, b_KN, (1,), (0,), form)


def _dot_general(
    a: jax.Array, b: jax.Array, of_a: tuple, of_b: tuple, form: Any = jnp.float32, out: PartitionSpec | None = None
) -> jax.Array:
    precision = fp8.sum_precision() if a.dtype.itemsize == 1 else None
    dims = ((of_a, of_b), ((), ()))
    return jax.lax.dot_general(a, b, dims, precision, form, out_sharding=out)


def _block_forward(x, w, ins, names, out_axes, policy):
    """Product in fp8 tiles and blocks of each device's part; same as on one device where parts are whole blocks."""

    added = _axes(names[:ins])

    def device_product(x: jax.Array, w: jax.Array) -> jax.Array:
        x_MK, w_KN = x.reshape(-1, math.prod(x.shape[x.ndim - ins :])), w.reshape(math.prod(w.shape[:ins]), -1)
        y_MN = fp8.block_dot(fp8.quantize_tiles(x_MK, policy.forward), fp8.quantize_blocks(w_KN, policy.forward))
        y = y_MN.reshape(*x.shape[: x.ndim - ins], *w.shape[ins:])
        return _sum_over(y, added)

    x_spec = spec_of(x)
    y = per_device(device_product, (x_spec, activation_spec(*names)), activation_spec(*_unsplit(out_axes)))(
        x, gather_weight(w, *names)
    )
    return reshard_to(y, *out_axes).astype(x.dtype)


def _block_backward(ins, names, out_axes, policy, residuals, dy):
    x, weight = residuals
    w, lead = weight_values(weight), x.ndim - ins
    of_x, of_w = _axes(names[ins:]), _axes(_unsplit(out_axes)[:lead])

    def device_gradients(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens, inner = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
        x_TK, dy_TN, w_KN = x.reshape(tokens, inner), dy.reshape(tokens, -1), w.reshape(inner, -1)
        dx_TK = fp8.block_dot(fp8.quantize_tiles(dy_TN, policy.backward), fp8.quantize_blocks(w_KN.T, policy.forward))
        dy_tiles = fp8.quantize_tiles(dy_TN.T, policy.backward)  # along tokens, the contracted axis
        swapped = fp8.ScaledBlocks(dy_tiles.values.swapaxes(1, 2), dy_tiles.scale.swapaxes(1, 2))
        dw_KN = fp8.block_dot(fp8.quantize_tiles(x_TK.T, policy.forward), swapped)
        dx = _sum_over(dx_TK.reshape(x.shape), of_x)
        return dx.astype(x.dtype), _sum_over(dw_KN.reshape(w.shape), of_w)

    x_spec, w_spec = spec_of(x), activation_spec(*names)
    mapped = per_device(device_gradients, (x_spec, w_spec, activation_spec(*_unsplit(out_axes))), (x_spec, w_spec))
    dx, dw = mapped(x, gather_weight(w, *names), reshard_to(dy, *_unsplit(out_axes)))
    if has_explicit_mesh():
        dw = reshard(dw, gradient_spec(weight_master(weight)))
    return dx, gradient_like(weight, dw), None


def _unsplit(out_axes: AxisNames) -> AxisNames:
    return tuple("context" if name == "split_seq" else name for name in out_axes)


def _axes(names: AxisNames) -> tuple[str, ...]:
    """The mesh axes that split any of these logical axes."""
    return mesh_axes(activation_spec(*names))


def _sum_over(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return jax.lax.psum(x, axes) if has_explicit_mesh() and axes else x
