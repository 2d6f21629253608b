"""The product of activations with a weight, and its backward, in the formats that a policy names.

The backward is written out for three reasons: the weight's gradient is summed over tokens, and over devices, in fp32 also
where products run in bf16; a weight split by fsdp is gathered anew, so that it isn't held in between; and fp8 wants another
format for the gradient that flows back. No library does it: qwix (0.1.8) brings a backward of its own around
`lax.dot_general`, which would take the place of this one, but names no `out_sharding`, without which no contraction over a
split axis is defined here.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, reshard

from scalelab.precision import fp8
from scalelab.precision.policy import Policy, array_dtype
from scalelab.precision.products import round_to_tf32
from scalelab.sharding import activation_spec, gather_weight, has_explicit_mesh, per_device, reshard_to

AxisNames = tuple[str | None, ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def weight_product(
    x: jax.Array,
    w: jax.Array,
    scales: jax.Array | None,
    ins: int,
    names: tuple[str, ...],
    where: AxisNames,
    policy: Policy,
) -> jax.Array:
    """x [..., ins] times w [ins, outs] (fp32, logical axes `names`) -> [..., outs] in x's dtype, lying as `where` says.

    `scales` [3] are those that delayed scaling gives x, w and the gradient that flows back; what comes back as their
    gradient is not one, but the amax of the three.
    """
    return _forward(x, w, scales, ins, names, where, policy)[0]


class _Operand(NamedTuple):
    values: jax.Array
    scale: jax.Array | None  # of fp8: one number
    amax: jax.Array | None = None


def _operand(x: jax.Array, form: str, policy: Policy, given: jax.Array | None = None) -> _Operand:
    if not policy.scaling:
        return _Operand(round_to_tf32(x.astype(array_dtype(form))), None)
    amax = fp8.max_magnitude(x)
    scale = fp8.fp8_scale(amax, form)
    scale = scale if given is None else jnp.where(given > 0, given, scale)
    return _Operand(fp8.cast_to_fp8(x, scale, form), scale, amax)


def _each(scales: jax.Array | None) -> tuple[jax.Array | None, ...]:
    return (None,) * 3 if scales is None else (scales[0], scales[1], scales[2])


def _scaled(y: jax.Array, a: _Operand, b: _Operand, out: Any) -> jax.Array:
    return (y if a.scale is None or b.scale is None else y * (a.scale * b.scale)).astype(out)


def _forward(x, w, scales, ins, names, where, policy):
    if policy.scaling == "block":
        return _block_forward(x, w, ins, names, where, policy), (x, w)
    of_x, of_w, _ = _each(scales)
    a, b = _operand(x, policy.forward, policy, of_x), _operand(w, policy.forward, policy, of_w)
    y = _dot(a.values, gather_weight(b.values, *names), (x.ndim - ins, x.ndim), (0, ins), activation_spec(*where))
    return _scaled(y, a, b, x.dtype), (a, w, scales)


def _backward(ins, names, where, policy, kept, dy):
    if policy.scaling == "block":
        return _block_backward(ins, names, where, policy, kept, dy)
    a, w, scales = kept
    x, out, lead = a.values, dy.dtype, a.values.ndim - ins
    _, of_w, of_dy = _each(scales)
    b, c = _operand(w, policy.forward, policy, of_w), _operand(dy, policy.backward, policy, of_dy)
    amax = None if scales is None else jnp.stack([part.amax for part in (a, b, c) if part.amax is not None])
    if not has_explicit_mesh():
        tokens, inner = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
        x_TK, dy_TN, w_KN = x.reshape(tokens, inner), c.values.reshape(tokens, -1), b.values.reshape(inner, -1)
        dw, dx = _dot_general(x_TK, dy_TN, (0,), (0,)), _matmul(dy_TN, w_KN.T)
        return _scaled(dx.reshape(x.shape), c, b, out), _scaled(dw.reshape(w.shape), a, c, w.dtype), amax
    dx = _dot(c.values, gather_weight(b.values, *names), (lead, dy.ndim), (ins, w.ndim), jax.typeof(x).sharding.spec)
    dw = _dot(x, c.values, (0, lead), (0, lead), activation_spec(*names))
    return _scaled(dx, c, b, out), reshard(_scaled(dw, a, c, w.dtype), jax.typeof(w).sharding.spec), amax


weight_product.defvjp(_forward, _backward)


def _dot(a: jax.Array, b: jax.Array, of_a: tuple[int, int], of_b: tuple[int, int], out: PartitionSpec) -> jax.Array:
    """Contract axes of_a[0] to of_a[1] of a with those of b, in fp32; on a mesh the result lies as `out` says."""
    if has_explicit_mesh():  # in fp32 first: where the contraction is split, it is the devices' parts that are added
        return _dot_general(a, b, tuple(range(*of_a)), tuple(range(*of_b)), out)
    # As one product of two matrices: left with its own axes, XLA:CPU contracts two of them for the weight's gradient on a
    # strided copy, and a whole step takes 1.5 times as long (experiments/benchmarks).
    y = _matmul(a.reshape(-1, math.prod(a.shape[of_a[0] :])), b.reshape(math.prod(b.shape[: of_b[1]]), -1))
    return y.reshape(*a.shape[: of_a[0]], *b.shape[of_b[1] :])


def _matmul(a_MK: jax.Array, b_KN: jax.Array) -> jax.Array:
    return _dot_general(a_MK, b_KN, (1,), (0,))


def _dot_general(a: jax.Array, b: jax.Array, of_a: tuple, of_b: tuple, out: PartitionSpec | None = None) -> jax.Array:
    dims = ((of_a, of_b), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32, out_sharding=out)


def _block_forward(x, w, ins, names, where, policy):
    """By tiles and blocks. Each device cuts what it holds, so the blocks are one device's where parts are whole blocks."""

    def own(x: jax.Array, w: jax.Array) -> jax.Array:
        x_MK, w_KN = x.reshape(-1, math.prod(x.shape[x.ndim - ins :])), w.reshape(math.prod(w.shape[:ins]), -1)
        y_MN = fp8.block_dot(fp8.quantize_tiles(x_MK, policy.forward), fp8.quantize_blocks(w_KN, policy.forward))
        y = y_MN.reshape(*x.shape[: x.ndim - ins], *w.shape[ins:])
        return _added(y, _axes(names[:ins]))

    x_spec = _spec_of(x)
    y = per_device(own, (x_spec, activation_spec(*names)), activation_spec(*_unsplit(where)))(
        x, gather_weight(w, *names)
    )
    return reshard_to(y, *where).astype(x.dtype)


def _block_backward(ins, names, where, policy, kept, dy):
    x, w = kept
    lead = x.ndim - ins

    def own(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens, inner = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
        x_TK, dy_TN, w_KN = x.reshape(tokens, inner), dy.reshape(tokens, -1), w.reshape(inner, -1)
        dx_TK = fp8.block_dot(fp8.quantize_tiles(dy_TN, policy.backward), fp8.quantize_blocks(w_KN.T, policy.forward))
        along = fp8.quantize_tiles(dy_TN.T, policy.backward)  # now along tokens, which are what is contracted
        swapped = fp8.ScaledBlocks(along.values.swapaxes(1, 2), along.scale.swapaxes(1, 2))
        dw_KN = fp8.block_dot(fp8.quantize_tiles(x_TK.T, policy.forward), swapped)
        dx = _added(dx_TK.reshape(x.shape), _axes(names[ins:]))
        return dx.astype(x.dtype), _added(dw_KN.reshape(w.shape), _axes(_unsplit(where)[:lead]))

    x_spec, ways = _spec_of(x), activation_spec(*names)
    mapped = per_device(own, (x_spec, ways, activation_spec(*_unsplit(where))), (x_spec, ways))
    dx, dw = mapped(x, gather_weight(w, *names), reshard_to(dy, *_unsplit(where)))
    return dx, reshard(dw, jax.typeof(w).sharding.spec) if has_explicit_mesh() else dw, None


def _unsplit(where: AxisNames) -> AxisNames:
    return tuple("context" if name == "split_seq" else name for name in where)


def _spec_of(x: jax.Array) -> PartitionSpec:
    return jax.typeof(x).sharding.spec if has_explicit_mesh() else PartitionSpec()


def _axes(names: AxisNames) -> tuple[str, ...]:
    """The mesh axes that split any of these logical axes."""
    found = [entry for entry in activation_spec(*names) if entry]
    return tuple(axis for entry in found for axis in (entry if isinstance(entry, tuple) else (entry,)))


def _added(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return jax.lax.psum(x, axes) if has_explicit_mesh() and axes else x
