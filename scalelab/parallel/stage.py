"""One stage of a pipeline: the ticks of `stages/ticks.py`, and the forward and backward of a chunk that each asks for.

A stage holds its blocks and only the block inputs of the micro-batches in flight: the backward of a chunk runs its
forward once more.

Shapes: p stages, m micro-batches, v rounds, k blocks in a chunk, b sequences in a micro-batch, S sequence, D d_model.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import DocumentEnds
from scalelab.model.pieces import Observe, end_in_loss
from scalelab.model.stacks import stacks
from scalelab.model.sums import measures
from scalelab.model.sums.block_sums import SUMS, Sums, add_sums_at, no_sums
from scalelab.model.sums.loss_sums import LossSums
from scalelab.parallel.stages.by_layer import measures_by_layer, sums_by_layer
from scalelab.parallel.stages.chunk import ChunkWork, apply_chunk, count_slots, differentiate_chunk
from scalelab.parallel.stages.slots import Slot, chunk_slots, in_slot, vary
from scalelab.parallel.stages.ticks import Operations, TickTable
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.sharding import STAGE_AXIS, mapped_axes, reshard_to, residual_axes


class StageInputs(NamedTuple):
    """What a stage reads; `counted` is None where no gradients are wanted."""

    number: Any  # of the stage, traced
    blocks: Any  # parameters of its blocks by stack [v k, …]; in a tick by chunk [v, k, …]
    rest: Any  # parameters outside the blocks, as on every stage
    rows_mbS: jax.Array  # tokens [m, b, S+1], as on every stage
    z_weight: jax.Array
    counted: Any  # targets of the batch, by which the loss is divided
    ends: DocumentEnds | None
    due: Any  # whether layers are measured (traced); None: the program cannot

    @property
    def depth(self) -> int:
        """Slots of a chunk, of all stacks."""
        return sum(count_slots(part, 1) for part in self.blocks.values())


class Carry(NamedTuple):
    """What a stage holds between ticks."""

    y_bSD: jax.Array  # arrived from the stage before
    dx_bSD: Any  # goes to the stage before at the next tick; () without gradients
    slots: Any  # block inputs of the micro-batches in flight [slots + 1, k, b, S, D]; () without gradients
    sums: LossSums
    grads: Any  # of the chunks, of the rest, and the measures (() if none); () without gradients
    block: Sums  # that the stage's blocks give, by kind and name [v, k, …]; {} if they give none


def run_stage(static: Static, ticks: TickTable, given: StageInputs) -> tuple:
    """Run a stage through the table; `given`, whose number is [1], holds the stage's v k slots by stack.

    Returns the loss sums, with `counted` the gradients of blocks and rest (else None), and what the blocks give by
    layer [v k, …]: their sums, whose losses are not in the objective yet, and the measures if they are due.
    """
    blocks, counted, due = given.blocks, given.counted, given.due
    chunks = jax.tree.map(lambda w: w.reshape(static.layout.rounds, -1, *w.shape[1:]), blocks)
    alike = given._replace(number=None, blocks=chunks, rows_mbS=given.rows_mbS.astype(jnp.int32), counted=None)
    inputs = vary(alike)._replace(number=given.number[0], counted=counted)
    tick = functools.partial(_tick, static, inputs)
    columns = jax.tree.map(jnp.asarray, (ticks.forward, ticks.backward))
    carry, _ = jax.lax.scan(tick, _first_carry(static, inputs, ticks.slots), columns)
    everyone, replicas = tuple(mapped_axes()), tuple(mapped_axes() - {STAGE_AXIS})
    sums = jax.lax.psum(carry.sums._replace(measures=()), everyone)
    if due is not None:
        head = measures.sum_over_devices(carry.sums.measures._replace(token_nll=()), everyone)
        each = jax.lax.pmax(carry.sums.measures.token_nll, STAGE_AXIS)
        sums = sums._replace(measures=head._replace(token_nll=each))
    by_layer: tuple[Sums, dict] = sums_by_layer(carry.block, replicas), {}
    if counted is None:
        return sums, None, None, by_layer
    of_chunks, of_rest, measured = carry.grads
    by_layer = by_layer if due is None else (by_layer[0], measures_by_layer(measured, replicas))
    # Here a replica's gradients are added to the others', once for all micro-batches.
    of_blocks = jax.tree.map(lambda g, w: g.reshape(w.shape), of_chunks, blocks)
    of_blocks = jax.lax.psum(of_blocks, replicas) if replicas else of_blocks
    return sums, of_blocks, jax.lax.psum(of_rest, everyone), by_layer


def _first_carry(static: Static, inputs: StageInputs, n_slots: int) -> Carry:
    """Empty slots, and zeros for all sums."""
    shape, policy = static.model, POLICIES[static.precision]
    m, b, length = inputs.rows_mbS.shape
    zeros_bSD = jnp.zeros((b, length - 1, shape.d_model), array_dtype(policy.residual))
    empty = vary(reshard_to(zeros_bSD, *residual_axes(shape.sequence_parallel)))
    zero = jnp.zeros(())
    head = () if inputs.due is None else measures.nothing_of_head(m * b, length - 1)
    sums = vary(LossSums(zero, zero, zero, head))
    block = vary(no_sums(transformer.block_sums(shape), static.layout.rounds, inputs.depth))
    if inputs.counted is None:
        return Carry(empty, (), (), sums, (), block)
    slots = jnp.stack([jnp.stack([empty] * inputs.depth)] * (n_slots + 1))
    grads = jax.tree.map(jnp.zeros_like, (inputs.blocks, inputs.rest))
    none_measured = () if inputs.due is None else vary(measures.nothing(shape, (), static.layout.rounds, inputs.depth))
    return Carry(empty, empty, slots, sums, (*grads, none_measured), block)


def _tick(static: Static, inputs: StageInputs, carry: Carry, now: tuple[Operations, Operations]) -> tuple[Carry, None]:
    """Run the stage's forward and then its backward of a tick, if it has them.

    Either's result is sent while the other is computed: a gradient leaves at the start of the next tick, whose forward
    doesn't need it.
    """
    forward, backward = jax.tree.map(lambda column: column[inputs.number], now)
    stages = static.layout.stage
    work = _chunk_work(static, inputs, forward)
    if inputs.counted is None:
        y_bSD, sums, block = jax.lax.cond(
            forward.runs, functools.partial(_evaluate, work), lambda *kept: kept, carry.y_bSD, carry.sums, carry.block
        )
        return carry._replace(y_bSD=_send(y_bSD, 1, stages), sums=sums, block=block), None
    dy_bSD = _send(carry.dx_bSD, -1, stages)
    # Branches return the slot's content, and it is written after them: inside, all slots would be copied.
    y_bSD, content, measured = jax.lax.cond(
        forward.runs,
        functools.partial(_forward, work),
        lambda y, kept, measured: (y, kept, measured),
        carry.y_bSD,
        carry.slots[forward.slot],
        carry.grads[2],
    )
    slots = carry.slots.at[forward.slot].set(content)
    work = _chunk_work(static, inputs, backward)
    dx_bSD, sums, grads, block = jax.lax.cond(
        backward.runs,
        functools.partial(_backward, work),
        lambda _, *kept: kept,
        slots[backward.slot],
        dy_bSD,
        carry.sums,
        (*carry.grads[:2], measured),
        carry.block,
    )
    return Carry(_send(y_bSD, 1, stages), dx_bSD, slots, sums, grads, block), None


def _chunk_work(static: Static, inputs: StageInputs, now: Operations) -> ChunkWork:
    """The functions, parameters and flags of a chunk, for one micro-batch."""
    chunk, row_bS, n_micro_batches = now.chunk, inputs.rows_mbS[now.microbatch], inputs.rows_mbS.shape[0]
    shape, policy, layout, due = static.model, POLICIES[static.precision], static.layout, inputs.due
    tokens = documents.split_inputs_targets(row_bS, inputs.ends)
    end = end_in_loss(shape, tokens, inputs.z_weight, Observe(due))
    pieces = transformer.make_pieces(shape, policy, tokens, end, due)

    def block(variables: Any, x: jax.Array, slot: Slot, kind: str) -> tuple[jax.Array, Any]:
        return in_slot(slot, lambda x, variables: pieces.block(variables, x, slot.flags, kind), x, variables)

    def leave(rest: Any, y_bSD: jax.Array) -> LossSums:
        sums: LossSums = pieces.leave(rest, y_bSD)
        if due is None:
            return sums
        return sums._replace(measures=measures.place_rows(sums.measures, now.microbatch, n_micro_batches))

    form = measures.underflow_format(policy)
    return ChunkWork(
        pieces=pieces._replace(block=block, leave=leave),
        measured=due is not None,
        zeros=functools.partial(measures.zeros_after_cast, due, form=form) if due is not None and form else None,
        stacks=stacks(shape),
        blocks=jax.tree.map(lambda w: w[chunk], inputs.blocks),
        layers=chunk_slots(static, inputs.number, chunk),
        rest=inputs.rest,
        chunk=chunk,
        first=(inputs.number == 0) & (chunk == 0),
        last=(inputs.number == layout.stage - 1) & (chunk == layout.rounds - 1),
        counted=inputs.counted,
    )


def _evaluate(work: ChunkWork, x_bSD: jax.Array, sums: LossSums, block: Sums) -> tuple[jax.Array, LossSums, Sums]:
    """Forward without gradients: nothing waits for a backward."""
    y_bSD, (_, written) = apply_chunk(work, x_bSD)
    more = jax.lax.cond(work.last, work.pieces.leave, lambda *_: jax.tree.map(jnp.zeros_like, sums), work.rest, y_bSD)
    return y_bSD, jax.tree.map(jnp.add, sums, more), add_sums_at(block, work.chunk, written.get(SUMS, {}))


def _forward(work: ChunkWork, x_bSD: jax.Array, _: jax.Array, measured: Any) -> tuple[jax.Array, jax.Array, Any]:
    """Forward of training: output, block inputs for the slot, and measures; losses are left to the backward."""
    y_bSD, (inputs_kbSD, written) = apply_chunk(work, x_bSD)
    if work.measured:
        measured = measures.add_at(measured, work.chunk, measures.of_blocks(written[measures.COLLECTION], 0))
    return y_bSD, inputs_kbSD, measured


def _backward(
    work: ChunkWork, inputs_kbSD: jax.Array, dy_bSD: jax.Array, sums: LossSums, grads: Any, block: Sums
) -> tuple[jax.Array, LossSums, Any, Sums]:
    """Add the gradients and sums of one micro-batch to those so far; also returns the gradient of the chunk's input."""
    of_chunks, of_rest, measured = grads
    dx_bSD, (d_blocks, zeros_k, block_k), of_rest, sums = differentiate_chunk(work, inputs_kbSD, dy_bSD, of_rest, sums)
    if work.zeros is not None:
        measured = measured._replace(gradient_zeros=measured.gradient_zeros.at[work.chunk].add(zeros_k))
    of_chunks = jax.tree.map(lambda g, d: g.at[work.chunk].add(d), of_chunks, d_blocks)
    return dx_bSD, sums, (of_chunks, of_rest, measured), add_sums_at(block, work.chunk, block_k)


def _send(x: jax.Array, by: int, stages: int) -> jax.Array:
    return jax.lax.ppermute(x, STAGE_AXIS, [(i, (i + by) % stages) for i in range(stages)])
