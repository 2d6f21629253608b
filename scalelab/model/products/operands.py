"""Operands of a product in a policy's formats: cast, and in fp8 with their scale and amax."""

from typing import Any, NamedTuple

import jax

from scalelab.hardware.tactics.cast_with_maximum import cast_with_maximum
from scalelab.precision import fp8
from scalelab.precision.policy import Policy, array_dtype
from scalelab.precision.products import round_to_tf32
from scalelab.sharding import AxisNames, times_scalar


class ProductAxes(NamedTuple):
    """How many axes of a weight are contracted, the weight's logical axes, and those of the product."""

    ins: int
    names: tuple[str, ...]
    outs: AxisNames


class Operand(NamedTuple):
    """What is multiplied; the true values are `values` times `scale`."""

    values: Any  # an array; as kept for a backward also a `GatheredSequence`
    scale: jax.Array | None  # fp8's scale, one number
    amax: jax.Array | None = None


def cast_operand(x: jax.Array, form: str, policy: Policy, delayed_scale: jax.Array | None = None) -> Operand:
    """`x` in the format `form`; in fp8 by `delayed_scale`, or else by the scale of its own maximum."""
    if not policy.scaling:
        return Operand(round_to_tf32(x.astype(array_dtype(form))), None)
    amax = fp8.max_magnitude(x)
    if delayed_scale is None:
        scale = fp8.tensor_scale(amax, form)
        return Operand(fp8.cast_to_fp8(x, scale, form), scale, amax)
    values, amax = cast_with_maximum(fp8.cast_to_fp8(x, delayed_scale, form), amax)
    return Operand(values, delayed_scale, amax)


def unpack_scales(scales: jax.Array | None) -> tuple[jax.Array | None, ...]:
    """Delayed scaling's scales of x, w and the gradient that flows back; None each where there are none."""
    return (None,) * 3 if scales is None else (scales[0], scales[1], scales[2])


def stack_amax(scales: jax.Array | None, *operands: Operand) -> jax.Array | None:
    """What delayed scaling gets in the place of the scales' gradient."""
    return None if scales is None else jax.numpy.stack([each.amax for each in operands if each.amax is not None])


def scale_result(y: jax.Array, a: Operand, b: Operand, out: Any) -> jax.Array:
    """The product `y` of two operands' values, times their scales, in the format `out`."""
    if a.scale is None or b.scale is None:
        return y.astype(out)
    return times_scalar(y, (a.scale * b.scale).astype(y.dtype)).astype(out)
