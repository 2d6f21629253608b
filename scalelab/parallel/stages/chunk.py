"""A stage's chunk on one micro-batch: its forward, and its backward, which computes each block once more.

Shapes: b rows of a micro-batch, S sequence, D d_model, k slots of a chunk.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.model.pieces import Pieces
from scalelab.model.stacks import Stack
from scalelab.model.sums.block_sums import SUMS, Sums, sums_cotangent
from scalelab.model.sums.loss_sums import LossSums, add_sums, objective_cotangent
from scalelab.parallel.stages.slots import Slot, in_slot


class ChunkWork(NamedTuple):
    """A chunk's work at a tick; `first` and `last`: whether it is the model's first or last chunk (traced).

    An empty slot passes on what it is given.
    """

    pieces: Pieces  # of the micro-batch; `leave` gives its loss sums
    measured: bool  # whether blocks write their measures
    zeros: Callable | None  # counts zeros in a gradient, where it can underflow; None: nothing is counted
    stacks: tuple[Stack, ...]  # a chunk runs them one after the other, each in slots of its own
    blocks: Any  # parameters of the chunk's blocks by stack [k, …]
    layers: dict[str, Slot]  # of these blocks [k]
    rest: Any  # parameters outside the blocks
    chunk: jax.Array  # its number in the stage
    first: jax.Array
    last: jax.Array
    counted: Any  # targets of the batch, by which the loss is divided


def count_slots(tree: Any, axis: int = 0) -> int:
    """Slots along an axis of stacked arrays."""
    return int(jax.tree.leaves(tree)[0].shape[axis])


def apply_chunk(work: ChunkWork, x_bSD: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Any]]:
    """A chunk's output, and the input [k, b, S, D] and measures of each block; the first chunk embeds tokens."""

    def apply(kind: str, x: jax.Array, part: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
        y, written = work.pieces.block({"params": part[1]}, x, part[0], kind)
        return y, (x, written)

    x_bSD = jax.lax.cond(work.first, lambda rest, _: work.pieces.enter(rest), lambda _, x: x, work.rest, x_bSD)
    parts = []
    for name, kind, *_ in work.stacks:
        x_bSD, part = jax.lax.scan(functools.partial(apply, kind), x_bSD, (work.layers[name], work.blocks[name]))
        parts.append(part)
    return x_bSD, _join(parts)


def _join(parts: list[Any]) -> Any:
    """Arrays of the slots of all stacks, one stack's after the other's."""
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)


def differentiate_chunk(
    work: ChunkWork, inputs_kbSD: jax.Array, dy_bSD: jax.Array, rest_grads: Any, sums: LossSums
) -> tuple[jax.Array, Any, Any, LossSums]:
    """Gradients of a chunk's input, of its blocks and of the rest so far, and loss sums so far, from its output's.

    Beside the blocks' gradients stand the zeros that came back to each of them (() if they are not counted), and the
    sums that each gives, whose losses are differentiated as the head's.
    """

    def block(kind: str, layer: Slot, weights: Any, x: jax.Array) -> tuple[jax.Array, Sums]:
        y, written = work.pieces.block({"params": weights}, x, layer, kind)
        return y, written.get(SUMS, {})

    def end(dy: jax.Array, grads: Any, sums: LossSums) -> tuple:
        stack = work.stacks[-1]
        layer, weights = jax.tree.map(lambda w: w[-1], (work.layers[stack.name], work.blocks[stack.name]))
        y, _ = block(stack.block, layer, weights, inputs_kbSD[-1])
        more, pull = jax.vjp(work.pieces.leave, work.rest, y)
        d_rest, dy = pull(objective_cotangent(more, 1 / work.counted))
        return dy, jax.tree.map(jnp.add, grads, d_rest), add_sums(sums, more)

    def through(kind: str, dy: jax.Array, part: tuple[Slot, Any, jax.Array]) -> tuple[jax.Array, Any]:
        def pull(dy: jax.Array, weights: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            (_, given), pull_back = jax.vjp(functools.partial(block, kind, Slot(part[0].flags)), weights, x)
            d_block, dx = pull_back((dy, sums_cotangent(given, 1 / work.counted)))
            return dx, (d_block, () if work.zeros is None else work.zeros(dy), given)

        return in_slot(part[0], pull, dy, *part[1:])

    def begin(dx: jax.Array, grads: Any) -> Any:
        (d_rest,) = jax.vjp(work.pieces.enter, work.rest)[1](dx)
        return jax.tree.map(jnp.add, grads, d_rest)

    dy, rest_grads, sums = jax.lax.cond(work.last, end, lambda *unchanged: unchanged, dy_bSD, rest_grads, sums)
    dx, d_blocks, end_at = dy, {}, len(inputs_kbSD)
    of_stacks: list[Any] = []
    for name, kind, *_ in reversed(work.stacks):
        weights, at = work.blocks[name], end_at - count_slots(work.blocks[name])
        parts, end_at = (work.layers[name], weights, inputs_kbSD[at:end_at]), at
        dx, (d_blocks[name], *of_slots) = jax.lax.scan(functools.partial(through, kind), dx, parts, reverse=True)
        of_stacks.insert(0, of_slots)
    blocks = d_blocks, *_join(of_stacks)
    return dx, blocks, jax.lax.cond(work.first, begin, lambda _, grads: grads, dx, rest_grads), sums
