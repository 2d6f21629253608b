"""The trunk is a list of stacks: layers with one kind of block, whose parameters lie along one axis and are scanned.

Within a stack layers differ by flags, which go by a layer's number in the whole model. A single stack's parameters are
`blocks`, those of several blocks_0, blocks_1, …
"""

import functools
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from scalelab.config import ModelShape, with_fields
from scalelab.config.mixture_text import parse_stacks

BLOCKS = "blocks"  # the parameters of a single stack; of several the beginning of each one's name


class Stack(NamedTuple):
    """`depth` layers of the kind `block`, from the model's layer `first` on, whose parameters are the group `name`."""

    name: str
    block: str
    first: int
    depth: int


def stacks(shape: ModelShape) -> tuple[Stack, ...]:
    """The model's stacks, in its order, as `model.block` says."""
    parts = parse_stacks(shape.block, shape.n_layers)
    if len(parts) == 1:
        return (Stack(BLOCKS, parts[0].block, 0, shape.n_layers),)
    firsts = np.cumsum([0, *(part.depth for part in parts)])
    return tuple(Stack(f"{BLOCKS}_{i}", part.block, int(firsts[i]), part.depth) for i, part in enumerate(parts))


def is_stack(group: str) -> bool:
    """Whether this group of parameters is a stack's, of any model."""
    return group == BLOCKS or (group.startswith(f"{BLOCKS}_") and group.removeprefix(f"{BLOCKS}_").isdecimal())


def of_one_kind(shape: ModelShape, stack: Stack) -> ModelShape:
    """The shape of a model all of whose layers have the stack's block."""
    return with_fields(shape, block=stack.block)


def has_expert_blocks(shape: ModelShape) -> bool:
    """Whether a stack's block has experts, or is a user's own, which may: a dense kind's shape has `n_experts` too."""
    return shape.n_experts > 0 and any(s.block == "experts" or ":" in s.block for s in stacks(shape))


@functools.cache
def kinds(shape: ModelShape) -> Mapping[ModelShape, int]:
    """{the shape of a model of one kind of block: number of layers of that kind}. Cached, as a search asks often."""
    counts: dict[ModelShape, int] = {}
    for stack in stacks(shape):
        kind = of_one_kind(shape, stack)
        counts[kind] = counts.get(kind, 0) + stack.depth
    return types.MappingProxyType(counts)


def list_layers(shape: ModelShape, params: Any) -> Iterator[tuple[ModelShape, Any]]:
    """(the shape of a model of its kind, its parameters) of each layer, in the model's order."""
    for stack in stacks(shape):
        for layer in range(stack.depth):
            yield of_one_kind(shape, stack), jax.tree.map(lambda w, i=layer: w[i], params[stack.name])


def by_stack(shape: ModelShape, tree: Any) -> dict[str, Any]:
    """Split arrays [L, …] of all layers into those of each stack."""
    return {s.name: jax.tree.map(lambda x, s=s: x[s.first : s.first + s.depth], tree) for s in stacks(shape)}


def join_stacks(shape: ModelShape, trees: Mapping[str, Any]) -> Any:
    """The inverse of `by_stack`: arrays of all layers, in the model's order, from equal trees of each stack."""
    parts = [trees[stack.name] for stack in stacks(shape)]
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *xs: jax.numpy.concatenate(xs), *parts)


def name_stacks(shape: ModelShape, tree: Any) -> dict[str, Any]:
    """{stack: its part} of what a single stack has bare, and several by name."""
    return {BLOCKS: tree} if len(stacks(shape)) == 1 else tree


def bare_stack(shape: ModelShape, trees: Any) -> Any:
    """The inverse of `name_stacks`, of a tree that may hold other groups, too; a block without parameters has none."""
    parts = {stack.name: trees.get(stack.name, {}) for stack in stacks(shape)}
    return parts[BLOCKS] if len(parts) == 1 else parts


class LayerFlags(NamedTuple):
    """Flags of one layer, or of all layers [L]; None where all layers are alike.

    `is_global`: the layer uses full attention, whatever the window. `has_rope`: RoPE rotates its queries and keys.
    """

    is_global: Any = None
    has_rope: Any = None


UNIFORM_LAYERS = LayerFlags()


@functools.cache
def all_layer_flags(shape: ModelShape) -> LayerFlags:
    """The flags of all layers, which are not to be written to; every n-th is special, counted from 1.

    Gemma 2: every 2nd layer is global. SmolLM3: every 4th has no positions.
    """
    number_L = np.arange(shape.n_layers) + 1
    is_global = number_L % shape.global_every == 0 if shape.window and shape.global_every else None
    has_rope = number_L % shape.nope_every != 0 if shape.nope_every else None
    return LayerFlags(is_global, has_rope)


def select_layers(flags: LayerFlags, index: Any) -> LayerFlags:
    """The flags of the layers at `index`, which may be traced."""
    return jax.tree.map(lambda flag_L: jax.numpy.asarray(flag_L)[index], flags)


def rope_positions(position_BS: jax.Array | None, layer: LayerFlags, length: int) -> jax.Array | None:
    """Positions for RoPE; all zero, which rotates nothing, in a layer without positions."""
    if layer.has_rope is None:
        return position_BS
    return (jax.numpy.arange(length)[None] if position_BS is None else position_BS) * layer.has_rope


def count_local_layers(shape: ModelShape, among: Collection[Stack] | None = None) -> int:
    """Number of layers whose attention is limited to the window; `among`: in these stacks alone."""
    if not shape.window:
        return 0
    return sum(_local_layers(shape, s.first, s.depth) for s in (stacks(shape) if among is None else among))


@functools.cache
def _local_layers(shape: ModelShape, first: int, depth: int) -> int:
    """How many of the `depth` layers from the `first` on have a window. Kept: a search asks it for each layout."""
    flags = all_layer_flags(shape).is_global
    return depth if flags is None else int((~flags[first : first + depth]).sum())
