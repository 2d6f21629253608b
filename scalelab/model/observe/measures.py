"""Measures of a training step inside the model: sums and maxima that each module takes of its arrays.

They are taken in the training pass, only at steps that are `due`, and carry no gradient. Sums and maxima, unlike means,
combine simply over micro-batches and devices.

Shapes: L layers, F d_ff.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.sharding import activation_spec, has_explicit_mesh, reshard_to, vary_like

COLLECTION = "measures"  # a collection of flax's variables; modules write into it if they are given `due`


class Measures(NamedTuple):
    """Measures of one batch; `combine` adds several. Zeros and -inf if the step was not due."""

    positions: jax.Array  # [], positions that went through the blocks
    residual_squares: jax.Array  # [L], sum over the residual stream after each block
    mlp_squares: jax.Array  # [L], sum over the MLP's activations, which `down` multiplies
    unit_max: jax.Array  # [L, F], largest |activation| of each MLP unit
    attention_logit_max: jax.Array  # [L], largest number that the softmax takes
    logit_squares: jax.Array  # [], sum over the head's logits at positions with a target
    log_z: jax.Array  # [], sum of their logsumexp


MAXIMA = ("unit_max", "attention_logit_max")
BLOCK_FIELDS = ("residual_squares", "mlp_squares", *MAXIMA)


def nothing(shape: ModelShape, *layers: int) -> Measures:
    """The measures of no batch; `layers`: leading axes of the per-layer fields, by default [L]."""
    layers = layers or (shape.n_layers,)
    zero, zeros_L = jnp.zeros(()), jnp.zeros(layers)
    unit_max = reshard_to(jnp.zeros((*layers, shape.d_ff)), *(None for _ in layers), "mlp")
    return Measures(zero, zeros_L, zeros_L, unit_max, zeros_L - jnp.inf, zero, zero)


def combine(a: Any, b: Any) -> Any:
    """Combine the measures of two batches; () where nothing is measured."""
    if a == () or b == ():
        return ()
    pairs = zip(Measures._fields, a, b, strict=True)
    return Measures(*[jnp.maximum(x, y) if name in MAXIMA else x + y for name, x, y in pairs])


def add_at(total: Measures, index: jax.Array, part: Measures) -> Measures:
    """`total` with the blocks' measures of `part` combined into the entry `index` of its first axis."""
    added = {}
    for name in BLOCK_FIELDS:
        at = getattr(total, name).at[index]
        added[name] = (at.max if name in MAXIMA else at.add)(getattr(part, name))
    return total._replace(**added)


def of_blocks(written: Any, positions: int) -> Measures:
    """The blocks' values in COLLECTION as Measures, without those of the head."""
    units, zero = written["mlp"]["units"], jnp.zeros(())
    logit_max = written["attention"]["logit_max"]
    count = jnp.float32(positions)
    return Measures(count, written["squares"], units["mlp_squares"], units["unit_max"], logit_max, zero, zero)


def when(due: jax.Array, measure: Callable[..., Any], start: Any, *values: Any) -> Any:
    """`measure(*values)` if `due` (a traced boolean), else `start` of equal shape; carries no gradient.

    This is a loop of one turn or none, not a conditional: under vmap trials would take both sides at every step. The
    barrier ties the values to the turn; without it the compiler would measure before the loop, at every step.
    """

    def once(turn: jax.Array, _: Any) -> Any:
        # One by one: all results of a barrier vary over the devices as all of its arguments do.
        return measure(*jax.tree.map(lambda x: jax.lax.optimization_barrier((turn, x))[1], values))

    values = jax.lax.stop_gradient(values)
    return jax.lax.fori_loop(0, due.astype(jnp.int32), once, start)


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


def like(start: jax.Array, x: jax.Array, *names: str) -> jax.Array:
    """A constant laid out like a reduction of `x`: split over the mesh by these logical axes, and varying as `x`."""
    start = vary_like(start, x)
    return jax.sharding.reshard(start, activation_spec(*names)) if has_explicit_mesh() and names else start
