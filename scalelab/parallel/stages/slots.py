"""The slots of a stage's chunk as it runs: each holds a layer, or passes on what it is given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.model import stacks
from scalelab.model.stacks import LayerFlags
from scalelab.parallel.stages.assignment import assign_layers, is_even
from scalelab.sharding import has_explicit_mesh, mapped_axes


class Slot(NamedTuple):
    """The flags of a slot's layer, and whether it holds one (traced); None where no slot of any stage is empty."""

    flags: LayerFlags
    is_held: Any = None


def chunk_slots(static: Static, stage: jax.Array, chunk: jax.Array) -> Slot:
    """The slots [k] of a chunk of a stage; both numbers are traced."""
    layout, flags, n_layers = static.layout, stacks.all_layer_flags(static.model), static.model.n_layers
    if is_even(n_layers, layout.stage, layout.rounds):
        depth = n_layers // (layout.stage * layout.rounds)
        return Slot(stacks.select_layers(flags, (chunk * layout.stage + stage) * depth + jnp.arange(depth)))
    layers = jnp.asarray(assign_layers((n_layers,), layout.stage, layout.rounds).layer)[stage, chunk]
    return Slot(stacks.select_layers(flags, jnp.maximum(layers, 0)), layers >= 0)


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
