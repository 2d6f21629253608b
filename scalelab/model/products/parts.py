"""Only a compiler's estimate speaks for this: sequences are gathered and added up in parts, beside products of others.

A block's first products wait for the whole sequence that `tensor` splits between blocks, and what follows its last ones
for their sums over devices. In parts, one is multiplied while the next is on its way (Wang et al. 2023, "Overlap
communication with dependent computation via decomposition", do so inside the compiler). By plan a step of Llama 3 8B on
8 x 8 H100 in 64 micro-batches takes 22.3 s, not 24.2 (2026-11-27, run on none; checks/results/printed.json). Only
forward: in parts a backward would write the weights' gradients once a part, and gathering its gradients in parts costs
more in copies than it hides (an 8B compiled for 64 H100, by `plan/compiled/timeline.py`: 2 % of the step).
Off: SCALELAB_TACTICS_OFF=parts, for one run parallel.parts=1.

Shapes: B batch, S sequence, W devices that split it, P parts, T = S / (W P) positions; trailing axes are free.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.hardware.tactics.switch import is_on
from scalelab.precision.policy import Policy
from scalelab.sharding import (
    BATCH_AXES,
    CONTEXT_AXIS,
    TENSOR_AXIS,
    AxisNames,
    activation_spec,
    has_explicit_mesh,
    mapped_axes,
    mesh_axis_size,
    reshard_to,
    target_platform,
)

Parts = tuple[jax.Array, ...]  # each [B, W T, ...]: the same stretch of every device's positions, by device
WHOLE, SPLIT = ("batch", "context", None), ("batch", "split_seq", None)  # logical axes within and between blocks
LEAST_TOKENS = 1024  # of a part on a device: smaller products leave an accelerator's units idle


class GatheredSequence(NamedTuple):
    """A sequence gathered in parts: a forward multiplies `parts`, a backward `whole`, which also gets the gradient."""

    parts: Parts
    whole: jax.Array

    @property
    def dtype(self) -> jnp.dtype:
        """The format of all of them."""
        return self.whole.dtype


def whole_sequence(x: jax.Array | GatheredSequence) -> jax.Array:
    """The sequence as one array."""
    return x.whole if isinstance(x, GatheredSequence) else x


def sequence_like(x: jax.Array | GatheredSequence, whole: jax.Array) -> Any:
    """`whole` in the place of `x`, without its parts: what a backward reads."""
    return GatheredSequence((), whole) if isinstance(x, GatheredSequence) else whole


def sequence_gradient_like(x: jax.Array | GatheredSequence, gradient: jax.Array) -> Any:
    """The gradient of `x` as a backward returns it."""
    return GatheredSequence(None, gradient) if isinstance(x, GatheredSequence) else gradient  # type: ignore[arg-type]


def count_parts(shape: ModelShape, policy: Policy, rows: int, length: int) -> int:
    """The number of parts of a sequence of `length` in the program that is traced; `rows`: sequences on all devices.

    One part where nothing is gathered.
    """
    if not shape.sequence_parallel or not has_explicit_mesh() or refuses_parts(policy, staged=bool(mapped_axes())):
        return 1
    ways = math.prod(mesh_axis_size(axis) for axis in (*BATCH_AXES, CONTEXT_AXIS))
    return choose_parts(shape.parts, target_platform(), rows * length // ways, length // _devices())


def refuses_parts(policy: Policy, staged: bool) -> str:
    """Why a sequence is gathered as a whole; "" if it can have parts."""
    if policy.scaling:
        return "fp8 takes a scale from a whole operand"
    return "a pipeline's stage gathers whole sequences" if staged else ""


def choose_parts(asked: int, platform: str, tokens: int, stretch: int) -> int:
    """`asked` parts, or where that is 0 up to four, as many as leave products large enough. One if they don't divide.

    `tokens` of a micro-batch on a device in a product; `stretch`: positions of a sequence on a device between blocks.
    """
    if not is_on("parts"):
        return 1
    if asked:
        return 1 if stretch % asked else asked
    if platform == "cpu":
        return 1  # its devices share one memory: nothing is on its way
    return next((parts for parts in (4, 2) if tokens >= parts * LEAST_TOKENS and stretch % parts == 0), 1)


def split_parts(x: jax.Array, parts: int, *names: str | None) -> Parts:
    """x [B, S, ...] with logical axes `names` -> its parts; the sequence stays split over devices as it is."""
    if parts == 1:
        return (x,)
    ways, (rows, length, *rest) = _devices(), x.shape
    apart = activation_spec(names[0], names[1], None, None, *names[2:])
    x_BWPT = jnp.reshape(x, (rows, ways, parts, length // (ways * parts), *rest), out_sharding=apart)
    flat, place = (rows, length // parts, *rest), activation_spec(*names)
    return tuple(jnp.reshape(x_BWPT[:, :, part], flat, out_sharding=place) for part in range(parts))


def join_parts(xs: Parts, *names: str | None) -> jax.Array:
    """The inverse of `split_parts`; `names` are the logical axes of each part and of the whole."""
    if len(xs) == 1:
        return xs[0]
    ways, (rows, length, *rest) = _devices(), xs[0].shape
    apart = activation_spec(names[0], names[1], None, *names[2:])
    xs_BWT = [jnp.reshape(x, (rows, ways, length // ways, *rest), out_sharding=apart) for x in xs]
    whole = (rows, length * len(xs), *rest)
    return jnp.reshape(jnp.stack(xs_BWT, axis=2), whole, out_sharding=activation_spec(*names))


def map_parts(function: Callable[[jax.Array], jax.Array], xs: Parts) -> Parts:
    """`function` of each part."""
    return tuple(function(x) for x in xs)


def gather_sequence(xs: Parts) -> jax.Array | GatheredSequence:
    """The residual stream, normalised, in parts -> whole along `tensor`, for products."""
    return reshard_to(xs[0], *WHOLE) if len(xs) == 1 else _gather_parts(xs)


@jax.custom_vjp
def _gather_parts(xs: Parts) -> GatheredSequence:
    gathered = send_in_turn(lambda x: reshard_to(x, *WHOLE), xs)
    return GatheredSequence(gathered, join_parts(gathered, *WHOLE))


_gather_parts.defvjp(
    lambda xs: (_gather_parts(xs), (None,) * len(xs)),  # of the parts only how many there are
    lambda xs, gradient: (split_parts(reshard_to(gradient.whole, *SPLIT), len(xs), *SPLIT),),
)


def send_in_turn(send: Callable[[jax.Array], jax.Array], xs: Parts) -> Parts:
    """`send` each part once the one before has arrived: a compiler would join what may be sent at once."""
    sent: list[jax.Array] = []
    for x in xs:
        if sent:
            x, sent[-1] = jax.lax.optimization_barrier((x, sent[-1]))
        sent.append(send(x))
    return tuple(sent)


def cast_parts(
    x: jax.Array | GatheredSequence, whole: jax.Array, cast: Callable, parts: int, names: AxisNames
) -> Parts:
    """The operand in the parts in which it is multiplied: each that was gathered, `cast`; else the cast `whole` split.

    `names`: the logical axes of its features; `parts`: those in which the products will be added up.
    """
    if isinstance(x, GatheredSequence):
        return map_parts(cast, x.parts)
    return split_parts(whole, parts, "batch", "context", *names)


def multiply_in_parts(
    multiply: Callable[[jax.Array, jax.Array], jax.Array],
    add_up: Callable[[jax.Array], jax.Array] | None,
    xs: Parts,
    w: jax.Array,
    out_axes: AxisNames,
) -> jax.Array:
    """`add_up(multiply(x, w))`, part by part and joined; None: the products are whole sums."""
    ys = _multiply_in_turn(multiply, xs, w)
    ys = send_in_turn(add_up, ys) if add_up else ys
    return join_parts(ys, *out_axes)


def _multiply_in_turn(multiply: Callable[[jax.Array, jax.Array], jax.Array], xs: Parts, w: jax.Array) -> Parts:
    """Each part times the weight, one after the other: a compiler would join products that read one weight."""
    ys: list[jax.Array] = []
    for x in xs:
        if ys:
            w, ys[-1] = jax.lax.optimization_barrier((w, ys[-1]))
        ys.append(multiply(x, w))
    return tuple(ys)


def _devices() -> int:
    """The devices that split a sequence between blocks."""
    return mesh_axis_size(CONTEXT_AXIS) * mesh_axis_size(TENSOR_AXIS)
