"""One device's share of a step, of the device that has most to do; the type of an operation on it; idle stages."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax

from scalelab.config import Layout, ModelShape, Static, with_fields
from scalelab.model import transformer
from scalelab.model.count import EXPERTS
from scalelab.model.declare import Declaration
from scalelab.model.stacks import kinds, stacks
from scalelab.parallel.stages.assignment import assign_layers
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.parallel.stages.slots import layer_tables
from scalelab.parallel.stages.ticks import predicted_bubble
from scalelab.plan.step.systems import SystemTraits
from scalelab.sharding import SPLIT_BY_TENSOR


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """Work of the device that has most: its layers, its micro-batches a step, the tokens of one micro-batch.

    `parameters`: those it multiplies once they are gathered over fsdp, `expert_parameters` of them of routed experts,
    which `expert` splits. `last_layers`: of the stage with the head.
    `ends`: 1 where the stage with most layers holds embedding and head too, without a pipeline, else 0.
    """

    layers: int
    last_layers: int
    microbatches: int
    tokens: float
    heads: float
    key_heads: float
    parameters: float
    expert_parameters: float
    ends: int


class Operation(NamedTuple):
    """One kind of work on one device, `times` a step: `flops` on `unit` and `bytes` of memory.

    `unit`: a number format of `hardware/chips.py`, "" for none. `part`: block | head | update. `least_side`: the
    smallest of a product's three sizes; of attention its length. `kernel`: of fused attention. `experts`: whether it is
    work of routed experts, on their rows. `turns`: of a loop on a GPU, each of which waits for its launch.
    """

    name: str
    part: str
    unit: str
    flops: float
    bytes: float
    times: float
    least_side: float = math.inf
    kernel: str = ""
    experts: bool = False
    turns: float = 0.0


@functools.cache
def fullest_device_share(static: Static) -> DeviceShare:
    """Rows that don't divide count as fractions; where layers don't, a stage's empty slots count as layers."""
    shape, layout = static.model, static.layout
    fullest, last = stage_layers(shape.n_layers, layout.stage, layout.rounds)
    pipelined = layout.stage > 1
    microbatches = static.accumulate * (layout.microbatches if pipelined else 1)
    rows = static.global_batch / (layout.batch_parts * microbatches)
    blocks, rest, experts = _parameter_counts(shape.plain, layout.tensor, layout.expert)
    return DeviceShare(
        layers=fullest,
        last_layers=last,
        microbatches=microbatches,
        tokens=rows * shape.seq_len / layout.context,
        heads=shape.n_heads / layout.tensor,
        key_heads=max(1.0, shape.n_kv_heads / layout.tensor),
        parameters=blocks * fullest / shape.n_layers + rest,
        expert_parameters=experts * fullest / shape.n_layers,
        ends=0 if pipelined else 1,
    )


def hiding_share(static: Static, times: float) -> float:
    """Share of a step's computing behind which a transfer that comes `times` a step can go on.

    One that waits for all micro-batches, as a sum of gradients does, goes on behind the last alone. With rounds that is
    so of the last chunk of layers; sums of the others go on behind the group of micro-batches that comes after them.
    """
    layout, microbatches = static.layout, fullest_device_share(static).microbatches
    stages, rounds = (layout.stage, layout.rounds) if layout.stage > 1 else (1, 1)
    last_group = (microbatches - 1) % stages + 1
    behind = (1 + last_group * (rounds - 1)) / rounds
    return min(1.0, times * behind / microbatches)


def last_layers(static: Static, traits: SystemTraits) -> int:
    """Layers of the last stage."""
    return fullest_device_share(static).last_layers - (traits.second_head and static.layout.stage > 1)


def filled_up_shape(shape: ModelShape, layout: Layout) -> ModelShape:
    """The shape with the axes that the mesh can't divide filled up, as the fullest device would hold them."""

    def up(size: int, parts: int) -> int:
        return -(-size // parts) * parts

    keys = up(shape.n_kv_heads, layout.tensor)
    widths: Any = {name: up(getattr(shape, name), layout.tensor) for name in ("d_ff", "d_expert", "vocab_size")}
    return with_fields(
        shape,
        **widths,
        n_kv_heads=keys,
        n_heads=up(shape.n_heads, keys),
        n_experts=up(shape.n_experts, layout.expert),
        seq_len=up(shape.seq_len, layout.context * (layout.tensor if shape.sequence_parallel else 1)),
    )


def sequences_per_device(static: Static) -> float:
    """Sequences of a micro-batch on a device: less than one where a plan splits one between replicas."""
    return fullest_device_share(static).tokens * static.layout.context / static.model.seq_len


def rows_per_device(static: Static) -> int:
    """Sequences of a micro-batch that a device holds, rounded up."""
    layout = static.layout
    each = layout.batch_parts * (layout.microbatches if layout.stage > 1 else 1)
    return -(-static.global_batch // (static.accumulate * each))


@functools.cache
def layers_by_kind(static: Static) -> tuple[tuple[Static, float], ...]:
    """(`static` with one kind of block, layers of that kind on the fullest stage, in their share of the model's)."""
    layers, whole = fullest_device_share(static).layers, static.model.n_layers
    shares = [(kind, layers * depth) for kind, depth in kinds(static.model).items()]
    return tuple(
        (
            static if kind == static.model else with_fields(static, model=kind),
            share / whole if share % whole else share // whole,
        )
        for kind, share in shares
    )


def params_at_rest(static: Static, zero: int) -> float:
    """Parameters (or the state of each) on a device; ZeRO stages from `zero` on split them by fsdp."""
    layout: Layout = static.layout
    blocks, rest, _ = _parameter_counts(static.model.plain, layout.tensor, layout.expert)
    even = has_even_stages(static.model, layout)  # else all stages have an equal part of each layer
    parameters = fullest_device_share(static).parameters if even else blocks / layout.stage + rest
    return parameters / (layout.fsdp if layout.zero >= zero else 1)


def params_in_slots(static: Static) -> float:
    """Parameters of a stage's layers and empty slots on a device, as a step lays them out."""
    shape, layout = static.model, static.layout
    declared, tables = transformer.parameter_declarations(shape.plain), layer_tables(shape, layout)
    of_stacks = (
        _held(declared[stack.name], layout.tensor, layout.expert) / stack.depth * layout.rounds * table.shape[2]
        for stack, table in zip(stacks(shape), tables, strict=True)
    )
    return sum(of_stacks) / (layout.fsdp if layout.zero >= 3 else 1)


@functools.cache
def _parameter_counts(shape: ModelShape, tensor: int, expert: int) -> tuple[float, float, float]:
    """(parameters of all blocks, of the rest, of routed experts), on one device of `tensor` and `expert`."""
    declared = transformer.parameter_declarations(shape)
    in_stacks = [declared[stack.name] for stack in stacks(shape)]
    routed = [d for d in jax.tree.leaves(in_stacks) if EXPERTS in d.stack]
    blocks = _held(in_stacks, tensor, expert)
    return blocks, _held(declared, tensor, expert) - blocks, _held(routed, tensor, expert)


def _held(tree: object, tensor: int, expert: int) -> float:
    """Parameters of declarations on one device of `tensor` and `expert`."""

    def parts(d: Declaration) -> int:
        return (tensor if set(d.axes) & set(SPLIT_BY_TENSOR) else 1) * (expert if EXPERTS in d.stack else 1)

    return sum(d.size / parts(d) for d in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class Bubble:
    """`over_ideal` is idle time over busy time, Narayanan's convention; `of_total` the same over all time, GPipe's."""

    over_ideal: float
    of_total: float
    fullest_layers: int  # layers of the stage that has most
    imbalance: float  # its layers over the mean's, less one: what uneven stages add to the busy time


def pipeline_bubble(layout: Layout, n_layers: int) -> Bubble:
    """The bubble of a pipeline of `layout.stage` stages; with one stage everything is zero.

    (p - 1) / (v m) of the ideal time (Narayanan et al. 2021, section 2.2) for p stages, m micro-batches and v rounds;
    GPipe and 1F1B have the same bubble. The trainer has no ZB-H1, which fills it with gradients of weights.
    """
    stages, rounds = layout.stage, layout.rounds
    of_total = predicted_bubble(stages, layout.microbatches, rounds)
    fullest, _ = stage_layers(n_layers, stages, rounds)
    return Bubble(of_total / (1 - of_total), of_total, fullest, fullest * stages / n_layers - 1)


def stage_layers(n_layers: int, stages: int, rounds: int = 1) -> tuple[int, int]:
    """(slots of a stage, layers of the last one): stages wait for each other, so an empty slot is idle time.

    Both ends get fewer layers if they don't divide, as in Llama 3: 126 over 16 stages are 8 each, and 7 on the first
    and the last, which hold embedding and head (Dubey et al. 2024, section 3.3.2).
    """
    if stages == 1:  # `rounds` means nothing then
        return n_layers, n_layers
    slots = assign_layers((n_layers,), stages, rounds)
    return rounds * slots.depth, int(slots.layers_by_stage[-1])
