"""The slots of a stage's chunk as it runs: each holds a layer, or passes on what it is given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.model import layer_flags
from scalelab.model.layer_flags import LayerFlags
from scalelab.parallel.stages.assignment import assign_layers, is_even
from scalelab.sharding import has_explicit_mesh, mapped_axes


class Slot(NamedTuple):
    """The flags of a slot's layer, and whether it holds one (traced); None where no slot of any stage is empty."""

    flags: LayerFlags
    is_held: Any = None


def chunk_slots(static: Static, stage: jax.Array, chunk: jax.Array) -> Slot:
    """The slots [k] of a chunk of a stage; both numbers are traced."""
    layout, flags, n_layers = static.layout, layer_flags.all_layer_flags(static.model), static.model.n_layers
    if is_even(n_layers, layout.stage, layout.rounds):
        depth = n_layers // (layout.stage * layout.rounds)
        return Slot(layer_flags.select_layers(flags, (chunk * layout.stage + stage) * depth + jnp.arange(depth)))
    layers = jnp.asarray(assign_layers((n_layers,), layout.stage, layout.rounds).layer)[stage, chunk]
    return Slot(layer_flags.select_layers(flags, jnp.maximum(layers, 0)), layers >= 0)


def where_held(slot: Slot, layer: Callable, nothing: Callable, *values: Any) -> Any:
    """`layer(*values)` if the slot holds a layer, else `nothing(*values)`, of equal types."""
    if slot.is_held is None:
        return layer(*values)
    return jax.lax.cond(slot.is_held, layer, nothing, *values)


def zeros_of(types: Any) -> Any:
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
