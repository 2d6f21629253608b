"""Bytes that lie on a device between steps, and its gradients: exact, from the state's own shapes and shardings."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scalelab.config import Layout, ModelShape, Static, with_fields
from scalelab.model import transformer
from scalelab.model.declare import Declaration
from scalelab.model.stacks import stacks
from scalelab.parallel import gathered, rules
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.parallel.stages.slots import layer_tables
from scalelab.precision.policy import POLICIES
from scalelab.sharding import STAGE_AXIS
from scalelab.train.step import state as state_lib


def held_bytes(static: Static) -> int:
    """Bytes of state and gradients on a device: of a step's memory what needs no trace, its batch aside."""
    return sum(state_bytes(static).values()) + gradient_bytes(static)


def state_bytes_on_devices(static: Static) -> int:
    """Bytes of the state that lies on devices, on all of them together: no layout holds it in fewer."""
    leaves = jax.tree.leaves(state_lib.state_shapes(static))
    return sum(x.size * x.dtype.itemsize for x in leaves) - state_lib.host_bytes(static)


def total_bytes(static: Static) -> tuple[int, int, int]:
    """Bytes on all devices together: of parameters, of one micro-batch's gradients, and of the rest of the state.

    Gradients of updates layer by layer are left out.
    """
    stored = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state_lib.state_shapes(static).params))
    declared = jax.tree.leaves(transformer.parameter_declarations(static.model.plain))
    gradients = 0 if static.updates_layers else 4 * sum(d.size for d in declared)
    return stored, gradients, state_bytes_on_devices(static) - stored


def state_bytes(static: Static) -> dict[str, int]:
    """Bytes of a state's parts on a device, laid out as by `state.state_specs`. Cached: do not modify it."""
    return _cached_state_bytes(_state_key(static))


def _state_key(static: Static) -> Static:
    """`static` with what the state does not depend on at its default: many ways to compute a step share one."""
    return with_fields(
        static, model=static.model.plain, layout=_layout_key(static.layout), global_batch=1, accumulate=1, batch_ramp=()
    )


def _layout_key(layout: Layout) -> Layout:
    """`layout` without what splits or sends activations alone: parameters and state lie as before."""
    return with_fields(layout, sequence=False, microbatches=1, expert_buffer=0.0)


@functools.cache
def _cached_state_bytes(static: Static) -> dict[str, int]:
    like, specs = state_lib.state_shapes(static), state_lib.state_specs(static)
    sizes = [_tree_bytes(part, spec, static.layout) for part, spec in zip(like, specs, strict=True)]
    by_part = dict(zip(like._fields, sizes, strict=True))
    small = sum(n for name, n in by_part.items() if name not in ("params", "opt_state", "ema", "variables"))
    moments = by_part["opt_state"] - state_lib.host_bytes(static)
    parts = {"parameters": by_part["params"], "optimizer": moments + small}
    if POLICIES[static.precision].parameters != "float32" and not static.updates_layers:  # widened before they are used
        parts["master"] = parameter_bytes(static, rules.parameter_specs)
    copies, kept = gathered_bytes(static) + slot_bytes(static), sum(by_part.values()) * static.guard.rerun
    more = {"copies": copies, "average": by_part["ema"], "variables": by_part["variables"], "kept state": kept}
    return parts | {name: size for name, size in more.items() if size}


def gathered_bytes(static: Static) -> int:
    """Bytes of the weights that ZeRO 1 and 2 gather once a step."""
    return _cached_gathered_bytes(_state_key(static)) if gathered.gathers_once(static) else 0


@functools.cache
def _cached_gathered_bytes(static: Static) -> int:
    declared = jax.tree.leaves(transformer.parameter_declarations(static.model.plain))
    formats = [(d, gathered.gathered_format(static, d)) for d in declared]
    whole = [(d, form, rules.parameter_spec(d, False, False)) for d, form in formats if form is not None]
    return sum(device_bytes(d.shape, form, spec, static.layout) for d, form, spec in whole)


def slot_bytes(static: Static) -> int:
    """Bytes of the weights that a step lays out in slots, the empty ones too; none where stages are even."""
    even = has_even_stages(static.model, static.layout)
    return 0 if even else parameter_bytes(static, rules.stage_specs, blocks=True)


def _tree_bytes(tree: Any, specs: Any, layout: Layout) -> int:
    split = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    pairs = zip(jax.tree.leaves(tree), split, strict=True)
    return sum(device_bytes(x.shape, x.dtype, spec, layout) for x, spec in pairs)


def device_bytes(shape: tuple[int, ...], kind: Any, spec: PartitionSpec, layout: Layout) -> int:
    """Bytes of an array split by `spec` on the fullest device. Stages have as many slots for layers in each round."""
    number = 1
    for axis, (size, entry) in enumerate(zip(shape, [*spec, *[None] * (len(shape) - len(spec))], strict=True)):
        axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        parts = math.prod(getattr(layout, name) for name in axes)
        rounds = layout.rounds if axis == 0 and STAGE_AXIS in axes else 1
        number *= rounds * math.ceil(size / (parts * rounds))
    return number * jnp.dtype(kind).itemsize


def parameter_bytes(static: Static, rule: Any, blocks: bool = False) -> int:
    """Four bytes of every parameter, or of those of the `blocks`, split as `rule` says."""
    return _split_bytes(static.model.plain, _layout_key(static.layout), rule, blocks)


@functools.cache
def _split_bytes(shape: ModelShape, layout: Layout, rule: Any, blocks: bool) -> int:
    declared, specs = transformer.parameter_declarations(shape), rule(shape, layout)
    if blocks:
        declared, specs = ({stack.name: tree[stack.name] for stack in stacks(shape)} for tree in (declared, specs))
    sizes = jax.tree.map(lambda d: d.shape, declared, is_leaf=lambda d: isinstance(d, Declaration))
    if rule is rules.stage_specs and layout.stage > 1:  # a stack has as many slots in every chunk
        for stack, table in zip(stacks(shape), layer_tables(shape, layout), strict=True):
            sizes[stack.name] = jax.tree.map(lambda d, n=table.size: (n, *d.shape[1:]), declared[stack.name])
    like = jax.tree.map(lambda size: jax.ShapeDtypeStruct(size, jnp.float32), sizes, is_leaf=_is_size)
    return _tree_bytes(like, specs, layout)


def _is_size(x: Any) -> bool:
    return isinstance(x, tuple)


def gradient_bytes(static: Static) -> int:
    """Bytes of fp32 gradients: split as the parameters, or by ZeRO's stage where micro-batches are summed, twice then.

    Layer by layer those of a block exist, or of what stands before or behind the blocks.
    """
    if static.updates_layers:
        return _largest_part_bytes(static.model.plain)
    if static.accumulate > 1:
        return 2 * parameter_bytes(static, rules.gradient_specs)
    return parameter_bytes(static, rules.stage_specs if static.layout.stage > 1 else rules.parameter_specs)


@functools.cache
def _largest_part_bytes(shape: ModelShape) -> int:
    """Four bytes of every parameter of a block, of the embedding, or of the head, whichever is most."""
    declared = transformer.parameter_declarations(shape)
    sizes = {name: sum(d.size for d in jax.tree.leaves(part)) for name, part in declared.items()}
    depths = {stack.name: stack.depth for stack in stacks(shape)}
    return 4 * max(size // depths.get(name, 1) for name, size in sizes.items())
