"""Measures of a training step inside the model: sums and maxima that each module takes of its arrays.

They are taken in the training pass, only at steps that are `due`, and carry no gradient. Sums and maxima, unlike means,
combine simply over micro-batches and devices.

Shapes: L layers, F d_ff, B batch, S sequence, T tokens, V vocab.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scalelab.config import ModelShape
from scalelab.hardware.tactics.turn import run_if
from scalelab.model.stacks import stacks
from scalelab.precision.fp8 import cast_to_fp8, fp8_scale, max_magnitude
from scalelab.precision.policy import E4M3, E5M2, Policy
from scalelab.sharding import TENSOR_AXIS, activation_spec, has_explicit_mesh, reshard_to, vary_like

COLLECTION = "measures"  # a collection of flax's variables; modules write into it if they are given `due`


class HeadMeasures(NamedTuple):
    """Measures of the head on one batch, at positions with a target."""

    logit_squares: jax.Array  # [], sum over the logits
    log_z: jax.Array  # [], sum of their logsumexp
    logit_max: jax.Array  # [], largest logit of the vocabulary
    token_nll: Any  # [B, S], each target's loss in nats; NO_TOKEN where there is none, or in another micro-batch


class Measures(NamedTuple):
    """Measures of one batch; `combine` adds several. Zeros and -inf if the step was not due."""

    positions: jax.Array  # [], positions that went through the blocks
    residual_squares: jax.Array  # [L], sum over the residual stream after each block
    mlp_squares: jax.Array  # [L], sum over the activations of MLP or experts, which `down` multiplies
    attention_entropy: jax.Array  # [L], sum over some queries and all heads of their weights' entropy, in nats
    attention_queries: jax.Array  # [L], number of these queries times heads
    gradient_zeros: jax.Array  # [L], zeros in the gradient that comes back to each block's output (`count_zeros`)
    unit_max: jax.Array  # [L, F], largest |activation| of each unit; infinite where another layer has more units
    attention_logit_max: jax.Array  # [L], largest number that the softmax takes
    head: Any  # HeadMeasures; () on the stages of a pipeline


NO_TOKEN = -1.0
MAXIMA = ("unit_max", "attention_logit_max", "logit_max", "token_nll")
BLOCK_FIELDS = Measures._fields[1:-1]


def nothing(shape: ModelShape, head: Any, *layers: int) -> Measures:
    """The measures of no batch; `layers`: leading axes of the per-layer fields, by default [L]."""
    layers = layers or (shape.n_layers,)
    zeros_L = jnp.zeros(layers)
    width, split = max(count_units(shape).total_L), None if shape.n_experts else "mlp"
    unit_max = reshard_to(jnp.zeros((*layers, width)), *(None for _ in layers), split)
    return Measures(jnp.zeros(()), zeros_L, zeros_L, zeros_L, zeros_L, zeros_L, unit_max, zeros_L - jnp.inf, head)


def nothing_of_head(rows: int, length: int) -> HeadMeasures:
    """The head's measures of no batch, with places for the tokens of `rows` sequences."""
    zero = jnp.zeros(())
    token_nll = reshard_to(jnp.full((rows, length), NO_TOKEN), "batch", "context")
    return HeadMeasures(zero, zero, zero - jnp.inf, token_nll)


def combine(a: Any, b: Any) -> Any:
    """Combine the measures (`Measures` or `HeadMeasures`) of two batches; () where nothing is measured."""
    if a == () or b == ():
        return ()

    def combine_field(name: str, a: Any, b: Any) -> Any:
        if isinstance(a, tuple):
            return combine(a, b)
        return jnp.maximum(a, b) if name in MAXIMA else a + b

    return type(a)(*[combine_field(name, x, y) for name, x, y in zip(a._fields, a, b, strict=True)])


def sum_over_devices(head: HeadMeasures, axes: Any) -> HeadMeasures:
    """The head's measures combined over the devices along mesh `axes`, each of which has a part; in a shard_map."""

    def over(name: str, x: Any) -> Any:  # x may be (), without leaves
        return jax.tree.map(lambda x: (jax.lax.pmax if name in MAXIMA else jax.lax.psum)(x, axes), x)

    return HeadMeasures(*[over(name, x) for name, x in zip(HeadMeasures._fields, head, strict=True)])


def place_rows(head: HeadMeasures, index: Any, parts: int) -> HeadMeasures:
    """`head` of micro-batch `index` of `parts`, which has every so-manieth row, with the places of the whole batch."""
    token_nll = jnp.where(jnp.arange(parts)[None, :, None] == index, head.token_nll[:, None], NO_TOKEN)
    return head._replace(token_nll=jax.lax.collapse(token_nll, 0, 2))


def add_at(total: Measures, index: jax.Array, part: Measures) -> Measures:
    """`total` with the blocks' measures of `part` combined into the entry `index` of its first axis."""
    added = {}
    for name in BLOCK_FIELDS:
        at = getattr(total, name).at[index]
        added[name] = (at.max if name in MAXIMA else at.add)(getattr(part, name))
    return total._replace(**added)


def of_blocks(written: Any, positions: int, head: Any = ()) -> Measures:
    """The blocks' values in COLLECTION as Measures, with those of the `head`."""
    no_zeros = jnp.zeros_like(written["residual_squares"])
    return Measures(positions=jnp.float32(positions), gradient_zeros=no_zeros, head=head, **written)


def by_field(shape: ModelShape, written: Any) -> dict[str, jax.Array]:
    """One block's values in COLLECTION by field, of equal shapes whatever the kind of block."""
    units = written.get("mlp", written.get("experts"))["units"]
    if shape.n_experts:
        more = max(count_units(shape).total_L) - units["unit_max"].size
        units = units | {"unit_max": jnp.pad(units["unit_max"], (0, more), constant_values=jnp.inf)}
    return {**units, **written["attention"]["logits"], "residual_squares": written["squares"]}


class Units(NamedTuple):
    """Hidden units of each layer's MLP or routed experts: all of them, and those that a token goes through."""

    total_L: list[int]
    active_L: list[int]


def count_units(shape: ModelShape) -> Units:
    """The hidden units of each layer."""
    dense, experts = (shape.d_ff,) * 2, (shape.n_experts * shape.d_expert, shape.experts_per_token * shape.d_expert)
    each_L = [experts if stack.block == "experts" else dense for stack in stacks(shape) for _ in range(stack.depth)]
    return Units([total for total, _ in each_L], [active for _, active in each_L])


def when(due: jax.Array, measure: Callable[..., Any], start: Any, *values: Any) -> Any:
    """`measure(*values)` if `due` (a traced boolean), else `start` of equal shape; carries no gradient."""
    return run_if(due, lambda _, *values: measure(*values), start, *jax.lax.stop_gradient(values))


def sum_of_squares(x: jax.Array) -> jax.Array:
    """Sum of squares [], in fp32."""
    return jnp.sum(jnp.square(x.astype(jnp.float32)))


def mlp_measures(due: jax.Array, h_BSF: jax.Array) -> dict[str, jax.Array]:
    """`mlp_squares` and `unit_max` of one layer's activations."""

    def measure(h_BSF: jax.Array) -> dict[str, jax.Array]:
        size_BSF = jnp.abs(h_BSF.astype(jnp.float32))
        return {"mlp_squares": sum_of_squares(size_BSF), "unit_max": jnp.max(size_BSF, axis=(0, 1))}

    zeros_F = like(jnp.zeros(h_BSF.shape[-1:]), h_BSF, "mlp")
    return when(due, measure, {"mlp_squares": like(jnp.zeros(()), h_BSF), "unit_max": zeros_F}, h_BSF)


def expert_measures(due: jax.Array, h_PF: jax.Array, expert_P: jax.Array, experts: int) -> dict[str, jax.Array]:
    """`mlp_squares` and `unit_max` [E F] of one layer's experts, by the expert of each row; empty rows are zero."""

    def measure(h_PF: jax.Array, expert_P: jax.Array) -> dict[str, jax.Array]:
        size_PF = jnp.abs(h_PF.astype(jnp.float32))
        most_EF = jnp.maximum(jax.ops.segment_max(size_PF, expert_P, experts), 0.0)
        return {"mlp_squares": sum_of_squares(size_PF), "unit_max": most_EF.ravel()}

    start = {"mlp_squares": jnp.zeros(()), "unit_max": jnp.zeros(experts * h_PF.shape[1])}
    return when(due, measure, {name: vary_like(x, h_PF, expert_P) for name, x in start.items()}, h_PF, expert_P)


def like(start: jax.Array, x: jax.Array, *names: str) -> jax.Array:
    """A constant laid out like a reduction of `x`: split over the mesh by these logical axes, and varying as `x`."""
    start = vary_like(start, x)
    return jax.sharding.reshard(start, activation_spec(*names)) if has_explicit_mesh() and names else start


def underflow_format(policy: Policy) -> str:
    """The format of gradients that flow back, where small ones become zero in it (fp16, fp8); else ""."""
    return policy.backward if policy.backward in ("float16", E4M3, E5M2) else ""


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def count_zeros(x: jax.Array, count: jax.Array, due: jax.Array, form: str) -> jax.Array:
    """`x` itself. The "gradient" of `count` [] is not a gradient: it counts zeros in x's, cast to `form`, if `due`.

    Casts to fp8 are scaled by the largest magnitude of the whole gradient, whatever the policy's tiles or history are.
    """
    del count, due, form
    return x


def zeros_after_cast(due: jax.Array, dx: jax.Array, form: str) -> jax.Array:
    """The number [] of zeros in `dx` in this format; 0 unless `due`."""

    def count(dx: jax.Array) -> jax.Array:
        small = dx.astype(form) if form == "float16" else cast_to_fp8(dx, fp8_scale(max_magnitude(dx), form), form)
        return jnp.sum(small.astype(jnp.float32) == 0, dtype=jnp.float32)

    return when(due, count, like(jnp.zeros(()), dx), dx)


def _forward(x: jax.Array, count: jax.Array, due: jax.Array, form: str) -> tuple[jax.Array, jax.Array]:
    del count, form
    return x, due


def _backward(form: str, due: jax.Array, dx: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    return dx, zeros_after_cast(due, dx, form), None


count_zeros.defvjp(_forward, _backward)


# Measures of the head, taken by the loss while a chunk's logits exist; () where nothing is measured.


def measure_head(
    due: jax.Array, logits_TV: jax.Array, log_z_T: jax.Array, correct_T: jax.Array, counts_T: jax.Array
) -> HeadMeasures:
    """Measures of the tokens that count, on this device's part of the vocabulary; `token_nll` is [T]."""

    def measure(logits_TV: jax.Array, log_z_T: jax.Array, correct_T: jax.Array, counts_T: jax.Array) -> HeadMeasures:
        squares_T, most_T = jnp.sum(jnp.square(logits_TV), axis=-1), jnp.max(logits_TV, axis=-1)
        return HeadMeasures(
            jnp.sum(jnp.where(counts_T, squares_T, 0.0)),
            jnp.sum(jnp.where(counts_T, log_z_T, 0.0)),
            jnp.max(jnp.where(counts_T, most_T, -jnp.inf)),
            jnp.where(counts_T, jnp.maximum(log_z_T - correct_T, 0.0), NO_TOKEN),  # rounding may leave less than 0
        )

    by_both, by_token = vary_like(jnp.zeros(()), logits_TV, log_z_T), vary_like(jnp.zeros(()), log_z_T)
    nothing = zero_measures(by_both, by_token)
    nothing = nothing._replace(token_nll=vary_like(jnp.full(counts_T.size, NO_TOKEN), log_z_T))
    return when(due, measure, nothing, logits_TV, log_z_T, correct_T, counts_T)


def zero_measures(by_both: jax.Array, by_token: jax.Array) -> HeadMeasures:
    """Measures of no token, made of zeros that vary over devices as logits and as tokens do; no losses of tokens."""
    return HeadMeasures(by_both, by_token, by_both - jnp.inf, ())


def add_chunk(measured: Any, chunk: Any) -> Any:
    """The measures with those of one more chunk, but for losses of single tokens (`token_losses`)."""
    return combine(measured, chunk and chunk._replace(token_nll=()))


def token_losses(chunk: Any) -> Any:
    """Losses of a chunk's tokens."""
    return chunk.token_nll if chunk else ()


def with_token_losses(measured: Any, nll: Any, targets_BS: jax.Array) -> Any:
    """The measures with the chunks' losses [n, c] as `token_nll` [B, S]."""
    if not measured:
        return measured
    return measured._replace(token_nll=nll.ravel()[: targets_BS.size].reshape(targets_BS.shape))


def measures_specs() -> HeadMeasures:
    """How a mesh splits the measures: only single tokens' losses are split."""
    whole: Any = PartitionSpec()
    return HeadMeasures(whole, whole, whole, activation_spec("batch", "context"))


def sum_head_over_devices(measured: HeadMeasures, axes: tuple[str, ...]) -> HeadMeasures:
    """Measures of all devices. Of the logits' squares each device has those of its part of the vocabulary."""
    squares, log_z, most, _ = measured
    squares, most = jax.lax.psum(squares, TENSOR_AXIS), jax.lax.pmax(most, TENSOR_AXIS)
    return sum_over_devices(HeadMeasures(squares, log_z, most, ()), axes)
