"""A batch through a pipeline of stages: loss, and gradients by a backward that follows the table of `stages/ticks.py`.

Embedding, final norm and head are on every stage, used by the first and the last. The other mesh axes split the model
as without a pipeline: they are Auto where a stage's arrays come in and out, and Explicit within it. A shard_map over
some of a mesh's Explicit axes would gather its arguments along all others (jax 0.10.2), so every device would hold its
stage's whole parameters and gradients in fp32. Axes of the batch that split no gradient are mapped as the stages are,
so that replicas add up their gradients once a step (`replica_axes`). What a stage does is in `stage.py`.

Shapes: m micro-batches, S sequence.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec, auto_axes, explicit_axes, reshard

from scalelab.config import Layout, Static
from scalelab.model.attention.documents import Batch
from scalelab.model.declare import Declaration
from scalelab.model.stacks import stacks
from scalelab.model.sums.loss_sums import LossSums, add_block_sums
from scalelab.model.sums.measures import HeadMeasures, Measures
from scalelab.model.transformer import parameter_declarations
from scalelab.parallel import rules
from scalelab.parallel.mesh import MESH_AXES
from scalelab.parallel.stage import StageInputs, run_stage
from scalelab.parallel.stages.assignment import EMPTY, assign_layers, slots_of_layers
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.parallel.stages.slots import layer_tables
from scalelab.parallel.stages.ticks import make_tick_table
from scalelab.precision.policy import POLICIES
from scalelab.sharding import BATCH_AXES, STAGE_AXIS, has_explicit_mesh, spec_of, without_axes


def replica_axes(static: Static) -> frozenset[str]:
    """The mesh axes along which gradients are added up after the last micro-batch: none where fp8's amax is of all."""
    layout, axes = static.layout, {"data"} if static.layout.zero >= 2 else {"data", "fsdp"}
    return frozenset(axis for axis in axes if getattr(layout, axis) > 1 and not POLICIES[static.precision].scaling)


def reorder_layers(tree: Any, specs: Any, layout: Layout, back: bool = False) -> Any:
    """Reorder the layers of `tree` (split by `specs`) as the stages hold them, or `back` to the model's order.

    With several rounds a stage's chunks are p chunks apart in the model, but adjacent in its memory.
    """
    if layout.rounds == 1:
        return tree  # uneven stages leave the model's order, too: no spec splits their layers

    def reorder(x: Any, spec: PartitionSpec) -> Any:
        if STAGE_AXIS not in spec[:1]:
            return x
        order = _stage_order(x.shape[0], layout)
        order = np.argsort(order) if back else order
        return reshard(reshard(x, PartitionSpec(None, *spec[1:]))[order], spec) if has_explicit_mesh() else x[order]

    return jax.tree.map(reorder, tree, specs)


def in_model_order(static: Static, values_L: jax.Array) -> jax.Array:
    """One value per layer, from the order at rest to the model's; whole on every device."""
    layout = static.layout
    if layout.rounds == 1 or not has_even_stages(static.model, layout):
        return values_L
    return values_L[np.argsort(_stage_order(values_L.shape[0], layout))]


def _stage_order(n_layers: int, layout: Layout) -> np.ndarray:
    """The model's layers, one stage's after the other's."""
    return assign_layers((n_layers,), layout.stage, layout.rounds).held()


def into_slots(static: Static, params: Any) -> Any:
    """`params` with the layers as the stages hold them: an all-to-all once a step, where stages are uneven.

    An empty slot holds a copy of the first layer, which is not read.
    """
    shape, layout = static.model, static.layout
    if has_even_stages(shape, layout):
        return params
    held, specs = {}, rules.stage_specs(shape, layout)
    for stack, table in zip(stacks(shape), layer_tables(shape, layout), strict=True):
        layers, name = np.maximum(table.ravel(), 0), stack.name
        held[name] = jax.tree.map(lambda w, spec, at=layers: reshard(w[at], spec), params[name], specs[name])
    return params | held


def variables_in_slots(static: Static, variables: Any) -> Any:
    """The model's variables, which lie in its order, with the layers as the stages hold them."""
    shape, layout, held = static.model, static.layout, {}
    for stack, table in zip(stacks(shape), layer_tables(shape, layout), strict=True):
        layers = np.maximum(table.ravel(), 0)

        def lay_out(v: jax.Array, at: np.ndarray = layers) -> jax.Array:
            return reshard(reshard(v, PartitionSpec())[at], PartitionSpec(STAGE_AXIS))

        held[stack.name] = jax.tree.map(lay_out, variables.get(stack.name, {}))
    return held


def out_of_slots(static: Static, grads: Any) -> Any:
    """The gradients of what `into_slots` returned, of the model's layers; split as near to the moments as one hop is.

    An all-to-all takes `stage` from the slots to the end of another axis; XLA knows no other way but to gather all.
    """
    shape, layout = static.model, static.layout
    if has_even_stages(shape, layout):
        return grads

    def by_layer(slots: np.ndarray, declaration: Declaration, g: jax.Array) -> jax.Array:
        return reshard(g, rules.within_layers(declaration, spec_of(g)))[slots]

    by_stack, declared = {}, parameter_declarations(shape)
    for stack, table in zip(stacks(shape), layer_tables(shape, layout), strict=True):
        slots, name = np.argsort(np.where(table == EMPTY, stack.depth, table).ravel(), kind="stable"), stack.name
        of_layers = functools.partial(by_layer, slots[: stack.depth])
        by_stack[name] = jax.tree.map(of_layers, declared[name], grads[name])
    return grads | by_stack


def pipeline_loss_sums(static: Static, params: Any, batch: Batch, z_weight: jax.Array | float) -> LossSums:
    """Summed next-token loss of a batch [B, S+1]; no gradients.

    The layers of `params` are as the stages hold them (`into_slots`).
    """
    return _run(static, params, batch, z_weight, None)[0]


def pipeline_gradients(
    static: Static,
    params: Any,
    batch: Batch,
    z_weight: jax.Array | float,
    counted: jax.Array,
    due: jax.Array | None = None,
) -> tuple[LossSums, Any]:
    """Like `pipeline_loss_sums`; also returns the gradient of objective / counted. With `due`: also `measures`."""
    return _run(static, params, batch, z_weight, counted, due)


def _run(
    static: Static, params: Any, batch: Batch, z_weight: Any, counted: jax.Array | None, due: jax.Array | None = None
) -> tuple:
    layout = static.layout
    ticks = make_tick_table(layout.schedule, layout.stage, layout.microbatches, layout.rounds, counted is not None)
    # every m-th row: see `train/step/gradients.py`
    rows = batch.tokens.reshape(-1, layout.microbatches, batch.tokens.shape[-1])
    names = [stack.name for stack in stacks(static.model)]
    blocks, rest = ({n: part for n, part in params.items() if (n in names) == of_stack} for of_stack in (True, False))
    numbers = reshard(jnp.arange(layout.stage, dtype=jnp.int32), PartitionSpec(STAGE_AXIS))
    by_stage: Any = PartitionSpec(STAGE_AXIS)
    whole: Any = PartitionSpec()
    z_weight = jnp.asarray(z_weight, jnp.float32)
    inputs = StageInputs(numbers, blocks, rest, rows.swapaxes(0, 1), z_weight, counted, batch.ends, due)
    specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, inputs)
    mapped = {STAGE_AXIS} | replica_axes(static)
    by_row = PartitionSpec(tuple(axis for axis in BATCH_AXES if axis in mapped) or None)
    of_rows: Any = PartitionSpec(None, *by_row)
    by_compiler = tuple(axis for axis in MESH_AXES if axis != STAGE_AXIS)
    within = jax.tree.map(lambda spec: without_axes(spec, mapped), specs)
    of_sums = LossSums(whole, whole, whole, HeadMeasures(whole, whole, whole, by_row) if due is not None else ())
    run = jax.shard_map(
        explicit_axes(
            functools.partial(run_stage, static, ticks),
            axes=tuple(axis for axis in by_compiler if axis not in mapped),
            in_sharding=(within,),
        ),
        in_specs=(StageInputs(by_stage, by_stage, whole, of_rows, whole, whole, whole, whole),),
        out_specs=(of_sums, *((by_stage, whole) if counted is not None else (None, None)), by_stage),
        axis_names=mapped,
    )
    out = (whole, *((specs.blocks, specs.rest) if counted is not None else (None, None)), by_stage)
    sums, blocks, others, by_layer = auto_axes(run, axes=by_compiler, out_sharding=out)(inputs)
    given, measured = _of_layers(static, by_layer)
    sums = add_block_sums(sums, given)
    if due is not None:
        of_all = Measures(positions=jnp.float32(rows[..., 1:].size), head=sums.measures, **measured)
        sums = sums._replace(measures=of_all)
    return sums, None if counted is None else {**others, **blocks}


def _of_layers(static: Static, by_slot: Any) -> Any:
    """What all stages' slots give, as arrays of the model's layers in its order, on every device."""
    layout, whole = static.layout, jax.tree.map(lambda x: reshard(x, PartitionSpec()), by_slot)
    if layout.rounds > 1 or not has_even_stages(static.model, layout):
        slots = slots_of_layers(tuple(s.depth for s in stacks(static.model)), layout.stage, layout.rounds)
        whole = jax.tree.map(lambda x: x[slots], whole)
    return whole
