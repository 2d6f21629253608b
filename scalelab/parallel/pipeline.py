"""A batch through a pipeline of stages: loss, and gradients by a backward that follows the table of `ticks.py`.

Each stage holds its blocks and only the block inputs of the micro-batches in flight: the backward of a chunk runs its
forward once more. Embedding, final norm and head are on every stage, used by the first and the last. The other mesh
axes split the model as without a pipeline: they are Auto where a stage's arrays come in and out, and Explicit within
it. A shard_map over some of a mesh's Explicit axes would gather its arguments along all others (jax 0.10.2), so every
device would hold its stage's whole parameters and gradients in fp32.

Shapes: p stages, m micro-batches, v rounds, b sequences in a micro-batch, S sequence, D d_model.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec, auto_axes, explicit_axes, reshard

from scalelab.config import Layout, Static
from scalelab.model import layer_flags, transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import DocumentEnds
from scalelab.model.loss import LossSums
from scalelab.model.observe import measures
from scalelab.model.observe.measures import Measures
from scalelab.parallel.mesh import MESH_AXES
from scalelab.parallel.ticks import TickTable, make_tick_table
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.sharding import STAGE_AXIS, has_explicit_mesh, reshard_to, residual_axes

COMPILER_AXES = tuple(axis for axis in MESH_AXES if axis != STAGE_AXIS)


def reorder_layers(tree: Any, specs: Any, layout: Layout, back: bool = False) -> Any:
    """Reorder the layers of `tree` (split by `specs`) as the stages hold them, or `back` to the model's order.

    With `circular` a stage's chunks are p chunks apart in the model, but adjacent in its memory.
    """
    if layout.rounds == 1:
        return tree

    def reorder(x: Any, spec: PartitionSpec) -> Any:
        if STAGE_AXIS not in spec[:1]:
            return x
        order = np.arange(x.shape[0]).reshape(layout.rounds, layout.stage, -1).swapaxes(0, 1).ravel()
        order = np.argsort(order) if back else order
        return reshard(reshard(x, PartitionSpec(None, *spec[1:]))[order], spec) if has_explicit_mesh() else x[order]

    return jax.tree.map(reorder, tree, specs)


def in_model_order(values_L: jax.Array, layout: Layout) -> jax.Array:
    """One value per layer, from the stages' order to the model's; whole on every device."""
    if layout.rounds == 1:
        return values_L
    order = np.arange(values_L.shape[0]).reshape(layout.rounds, layout.stage, -1).swapaxes(0, 1).ravel()
    return values_L[np.argsort(order)]


def pipeline_loss_sums(
    static: Static, params: Any, tokens: jax.Array, z_weight: jax.Array | float, ends: DocumentEnds | None = None
) -> LossSums:
    """Summed next-token loss of `tokens` [B, S+1], in documents cut by `ends`; no gradients."""
    return _run(static, params, tokens, z_weight, None, ends)[0]


def pipeline_gradients(
    static: Static,
    params: Any,
    tokens: jax.Array,
    z_weight: jax.Array | float,
    counted: jax.Array,
    ends: DocumentEnds | None = None,
    due: jax.Array | None = None,
) -> tuple[LossSums, Any]:
    """Like `pipeline_loss_sums`; also returns the gradient of objective / counted. With `due`: also `measures`."""
    return _run(static, params, tokens, z_weight, counted, ends, due)


def _run(
    static: Static, params: Any, tokens: jax.Array, z_weight: Any, counted: jax.Array | None, ends: DocumentEnds | None,
    due: jax.Array | None = None,
) -> tuple:  # fmt: skip
    layout = static.layout
    ticks = make_tick_table(layout.schedule, layout.stage, layout.microbatches, layout.rounds, counted is not None)
    rows = tokens.reshape(-1, layout.microbatches, tokens.shape[-1])  # every m-th row: see `train/step/gradients.py`
    rest = {name: part for name, part in params.items() if name != "blocks"}
    stages = reshard(jnp.arange(layout.stage, dtype=jnp.int32), PartitionSpec(STAGE_AXIS))
    by_stage, whole = PartitionSpec(STAGE_AXIS), PartitionSpec()
    z_weight = jnp.asarray(z_weight, jnp.float32)
    arguments = stages, params["blocks"], rest, rows.swapaxes(0, 1), z_weight, counted, ends, due
    specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, arguments)
    run = jax.shard_map(
        explicit_axes(
            functools.partial(_stage, static, ticks), axes=COMPILER_AXES, in_sharding=jax.tree.map(_within, specs)
        ),
        in_specs=(by_stage, by_stage, whole, whole, whole, whole, whole, whole),
        out_specs=(whole, by_stage, whole, by_stage) if counted is not None else (whole, None, None, None),
        axis_names={STAGE_AXIS},
    )
    out = (whole, *((*specs[1:3], by_stage) if counted is not None else (None, None, None)))
    sums, blocks, others, measured = auto_axes(run, axes=COMPILER_AXES, out_sharding=out)(*arguments)
    if due is not None:
        sums = sums._replace(measures=_whole_measures(measured, sums, rows[..., 1:].size, layout))
    return sums, None if counted is None else {**others, "blocks": blocks}


def _whole_measures(by_layer: dict[str, jax.Array], sums: LossSums, positions: int, layout: Layout) -> Measures:
    """The measures of all stages' layers, in the model's order, on every device."""
    ordered = {name: in_model_order(reshard(x, PartitionSpec()), layout) for name, x in by_layer.items()}
    logit_squares, log_z = sums.measures
    return Measures(jnp.float32(positions), logit_squares=logit_squares, log_z=log_z, **ordered)


def _within(spec: PartitionSpec) -> PartitionSpec:
    """The split of a stage's part of an array: as before, without the stage axis."""
    return PartitionSpec(*[None if entry == STAGE_AXIS else entry for entry in spec])


class _Work(NamedTuple):
    """A stage's work at a tick; `first` and `last`: whether its chunk is the model's first or last (traced)."""

    block: Callable
    enter: Callable
    leave: Callable
    measured: Callable | None  # like `block`, but returns (output, the block's measures); None: nothing is measured
    blocks: Any  # parameters of the chunk's blocks [k, …]
    layers: Any  # flags of these blocks [k]
    rest: Any  # parameters outside the blocks
    first: jax.Array
    last: jax.Array


def _stage(
    static: Static, ticks: TickTable, stage: Any, blocks: Any, rest: Any, rows: Any, z: Any, counted: Any, ends: Any,
    due: Any,
) -> tuple:  # fmt: skip
    """Run one stage through the table; `blocks` are its v k layers, `rows` [m, b, S+1] belong to all stages."""
    layout, shape = static.layout, static.model
    policy, differ, flags = POLICIES[static.precision], counted is not None, layer_flags.all_layer_flags(shape)
    vary = functools.partial(jax.tree.map, lambda x: jax.lax.pcast(x, (STAGE_AXIS,), to="varying"))
    rest, rows, z, ends, due = vary((rest, rows.astype(jnp.int32), z, ends, due))
    chunks = jax.tree.map(lambda w: w.reshape(layout.rounds, -1, *w.shape[1:]), blocks)
    depth = jax.tree.leaves(chunks)[0].shape[1]  # blocks of a chunk

    def work(chunk: jax.Array, row_bS: jax.Array) -> _Work:
        inputs_bS, targets_bS, packed = documents.split_inputs_targets(row_bS, ends)

        def measured(layer: Any, w: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            return transformer.apply_measured_block(shape, w, x, policy, layer, packed, due)

        return _Work(
            block=lambda layer, w, x: transformer.apply_block(shape, w, x, policy, layer, packed),
            enter=lambda rest: transformer.embed_tokens(shape, rest, inputs_bS, policy, packed),
            leave=lambda rest, y_bSD: transformer.head_loss(shape, rest, y_bSD, targets_bS, z, policy, due),
            measured=None if due is None else measured,
            blocks=jax.tree.map(lambda w: w[chunk], chunks),
            layers=layer_flags.select_layers(flags, (chunk * layout.stage + stage[0]) * depth + jnp.arange(depth)),
            rest=rest,
            first=(stage[0] == 0) & (chunk == 0),
            last=(stage[0] == layout.stage - 1) & (chunk == layout.rounds - 1),
        )

    def tick(carry: tuple, now: tuple) -> tuple[tuple, None]:
        op, chunk, microbatch, slot, store = (column[stage[0]] for column in now)
        y, gradient, slots_held, sums, grads = carry
        slots_held = slots_held.at[store, 0].set(y)
        todo = work(chunk, rows[microbatch])

        # The branches return the slot's new content, written after the switch: inside it, all slots would be copied.
        def idle(sums: LossSums, grads: Any) -> tuple:
            return y, gradient, slots_held[slot], sums, grads

        def forward(sums: LossSums, grads: Any) -> tuple:
            y, (inputs, written) = _forward(todo, slots_held[slot, 0])
            if differ:
                if due is not None:
                    grads = *grads[:2], measures.add_at(grads[2], chunk, measures.of_blocks(written, 0))
                return y, gradient, inputs, sums, grads
            more = jax.lax.cond(todo.last, todo.leave, lambda *_: jax.tree.map(jnp.zeros_like, sums), rest, y)
            return y, gradient, slots_held[slot], jax.tree.map(jnp.add, sums, more), grads

        def back(sums: LossSums, grads: Any) -> tuple:
            dx, d_blocks, others, sums = _backward(todo, slots_held[slot], gradient, counted, grads[1], sums)
            added = jax.tree.map(lambda g, d: g.at[chunk].add(d), grads[0], d_blocks)
            return y, dx, slots_held[slot], sums, (added, others, grads[2])

        y, dx, inputs, sums, grads = jax.lax.switch(op, [idle, forward, back][: 3 if differ else 2], sums, grads)
        slots_held = slots_held.at[slot].set(inputs)
        return (_send(y, 1, layout.stage), _send(dx, -1, layout.stage), slots_held, sums, grads), None

    b, length = rows.shape[1], rows.shape[2] - 1
    empty = vary(
        reshard_to(
            jnp.zeros((b, length, shape.d_model), array_dtype(policy.residual)), *residual_axes(shape.sequence_parallel)
        )
    )
    depth_held = depth if differ else 1
    slots_held = jnp.stack([jnp.stack([empty] * depth_held)] * (ticks.slots + 1))
    grads: Any = jax.tree.map(jnp.zeros_like, (chunks, rest)) if differ else ()
    zero = jnp.zeros(())
    if differ:
        grads = *grads, () if due is None else vary(measures.nothing(shape, layout.rounds, depth))
    initial = (empty, empty, slots_held, vary(LossSums(zero, zero, zero, () if due is None else (zero, zero))), grads)
    (_, _, _, sums, grads), _ = jax.lax.scan(tick, initial, tuple(jnp.asarray(column) for column in ticks[:5]))
    sums = jax.lax.psum(sums, STAGE_AXIS)
    if not differ:
        return sums, None, None, None
    by_layer = {}
    if due is not None:
        fields = {name: getattr(grads[2], name) for name in measures.BLOCK_FIELDS}
        by_layer = {name: x.reshape(-1, *x.shape[2:]) for name, x in fields.items()}
    grads_of_blocks = jax.tree.map(lambda g, w: g.reshape(w.shape), grads[0], blocks)
    return sums, grads_of_blocks, jax.lax.psum(grads[1], STAGE_AXIS), by_layer


def _forward(todo: _Work, x_bSD: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Any]]:
    """A chunk's output, and the input [k, b, S, D] and measures of each block; the first chunk embeds tokens."""

    def apply(x: jax.Array, part: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
        y, written = (todo.block(*part, x), ()) if todo.measured is None else todo.measured(*part, x)
        return y, (x, written)

    x_bSD = jax.lax.cond(todo.first, lambda rest, _: todo.enter(rest), lambda _, x: x, todo.rest, x_bSD)
    return jax.lax.scan(apply, x_bSD, (todo.layers, todo.blocks))


def _backward(
    todo: _Work, inputs_kbSD: jax.Array, dy_bSD: jax.Array, counted: jax.Array, rest_grads: Any, sums: LossSums
) -> tuple[jax.Array, Any, Any, LossSums]:
    """Gradients of a chunk's input and blocks, of the rest so far, and loss sums so far, from its output's gradient."""

    def end(dy: jax.Array, grads: Any, sums: LossSums) -> tuple:
        y = todo.block(*jax.tree.map(lambda w: w[-1], (todo.layers, todo.blocks)), inputs_kbSD[-1])
        more, pull = jax.vjp(todo.leave, todo.rest, y)
        zero, no_measures = jnp.zeros_like(more.nll), jax.tree.map(jnp.zeros_like, more.measures)
        d_rest, dy = pull(LossSums(zero + 1 / counted, zero, zero, no_measures))
        return dy, jax.tree.map(jnp.add, grads, d_rest), jax.tree.map(jnp.add, sums, more)

    def through(dy: jax.Array, part: tuple[Any, Any, jax.Array]) -> tuple[jax.Array, Any]:
        d_block, dx = jax.vjp(functools.partial(todo.block, part[0]), *part[1:])[1](dy)
        return dx, d_block

    def begin(dx: jax.Array, grads: Any) -> Any:
        (d_rest,) = jax.vjp(todo.enter, todo.rest)[1](dx)
        return jax.tree.map(jnp.add, grads, d_rest)

    dy, rest_grads, sums = jax.lax.cond(todo.last, end, lambda *unchanged: unchanged, dy_bSD, rest_grads, sums)
    dx, blocks = jax.lax.scan(through, dy, (todo.layers, todo.blocks, inputs_kbSD), reverse=True)
    return dx, blocks, jax.lax.cond(todo.first, begin, lambda _, grads: grads, dx, rest_grads), sums


def _send(x: jax.Array, by: int, stages: int) -> jax.Array:
    return jax.lax.ppermute(x, STAGE_AXIS, [(i, (i + by) % stages) for i in range(stages)])
