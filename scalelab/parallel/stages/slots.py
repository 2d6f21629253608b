"""The slots of a stage's chunk as it runs: each holds a layer, or passes on what it is given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import Layout, ModelShape, Static
from scalelab.model.stacks import BLOCKS, LayerFlags, all_layer_flags, select_layers, stacks
from scalelab.parallel.stages.assignment import stack_slots
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.sharding import has_explicit_mesh, mapped_axes


class Slot(NamedTuple):
    """The flags of a slot's layer, and whether it holds one (traced); None where no slot of any stage is empty."""

    flags: LayerFlags
    is_held: Any = None


def chunk_slots(static: Static, stage: jax.Array, chunk: jax.Array) -> dict[str, Slot]:
    """The slots [k] of each stack in a chunk of a stage; both numbers are traced."""
    shape, layout, flags = static.model, static.layout, all_layer_flags(static.model)
    if has_even_stages(shape, layout):
        depth = shape.n_layers // (layout.stage * layout.rounds)
        return {BLOCKS: Slot(select_layers(flags, (chunk * layout.stage + stage) * depth + jnp.arange(depth)))}
    slots = {}
    for stack, table in zip(stacks(shape), layer_tables(shape, layout), strict=True):
        layers = jnp.asarray(table)[stage, chunk]
        slots[stack.name] = Slot(select_layers(flags, stack.first + jnp.maximum(layers, 0)), layers >= 0)
    return slots


def layer_tables(shape: ModelShape, layout: Layout) -> tuple[np.ndarray, ...]:
    """`stack_slots` of the model's stacks."""
    return stack_slots(tuple(stack.depth for stack in stacks(shape)), layout.stage, layout.rounds)


def in_slot(slot: Slot, function: Callable[..., tuple[Any, Any]], x: Any, *values: Any) -> tuple[Any, Any]:
    """`function(x, *values)`, a pair; in an empty slot `x` itself and zeros."""
    if slot.is_held is None:
        return function(x, *values)

    def nothing(x: Any, *values: Any) -> tuple[Any, Any]:
        return x, _zeros(jax.eval_shape(function, x, *values)[1])

    held: tuple[Any, Any] = jax.lax.cond(slot.is_held, function, nothing, x, *values)
    return held


def _zeros(types: Any) -> Any:
    """Zeros of these types of arrays, as a stage computes them."""

    def zeros(kind: jax.ShapeDtypeStruct) -> jax.Array:
        x = jnp.zeros(kind.shape, kind.dtype)
        return jax.sharding.reshard(x, kind.sharding.spec) if has_explicit_mesh() else x

    return vary(jax.tree.map(zeros, types))


def vary(tree: Any) -> Any:
    """Mark values as different from stage to stage and from replica to replica; the values stay."""

    def mark(x: jax.Array) -> jax.Array:
        return jax.lax.pcast(x, tuple(mapped_axes() - jax.typeof(x).manual_axis_type.varying), to="varying")

    return jax.tree.map(mark, tree)
