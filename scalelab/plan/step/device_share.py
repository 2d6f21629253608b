"""One device's share of a step, of the device that has most to do; and the type of one operation on it."""

import dataclasses
import functools
import math

import jax

from scalelab.config import Layout, ModelShape, Static
from scalelab.model import transformer
from scalelab.model.stacks import kinds, stacks
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.parallel.stages.slots import layer_tables
from scalelab.plan.step.bubble import stage_layers
from scalelab.sharding import SPLIT_BY_TENSOR


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """Work of the device that has most: its layers, its micro-batches a step, the tokens of one micro-batch.

    `parameters`: those it multiplies once they are gathered over fsdp. `last_layers`: of the stage with the head.
    `ends`: 1 where the stage with most layers holds embedding and head too, without a pipeline, else 0.
    """

    layers: int
    last_layers: int
    microbatches: int
    tokens: float
    heads: float
    key_heads: float
    parameters: float
    ends: int


@dataclasses.dataclass(frozen=True)
class Operation:
    """One kind of work on one device, `times` a step: `flops` on `unit` and `bytes` of memory.

    `unit`: a number format of `hardware/chips.py`, "" for none. `part`: block | head | update. `least_side`: the
    smallest of a product's three sizes; of attention its length. `kernel`: of fused attention.
    """

    name: str
    part: str
    unit: str
    flops: float
    bytes: float
    times: float
    least_side: float = math.inf
    kernel: str = ""


@functools.cache
def fullest_device_share(static: Static) -> DeviceShare:
    """Rows that don't divide count as fractions; where layers don't, a stage's empty slots count as layers."""
    shape, layout = static.model, static.layout
    fullest, last = stage_layers(shape.n_layers, layout.stage, layout.rounds)
    pipelined = layout.stage > 1
    microbatches = static.accumulate * (layout.microbatches if pipelined else 1)
    rows = static.global_batch / (layout.batch_parts * microbatches)
    blocks, rest = _parameter_counts(shape.plain, layout.tensor)
    return DeviceShare(
        layers=fullest,
        last_layers=last,
        microbatches=microbatches,
        tokens=rows * shape.seq_len / layout.context,
        heads=shape.n_heads / layout.tensor,
        key_heads=max(1.0, shape.n_kv_heads / layout.tensor),
        parameters=blocks * fullest / shape.n_layers + rest,
        ends=0 if pipelined else 1,
    )


def layers_by_kind(static: Static) -> list[tuple[Static, float]]:
    """(`static` with one kind of block, layers of that kind on the fullest stage, in their share of the model's)."""
    layers, whole = fullest_device_share(static).layers, static.model.n_layers
    shares = [(kind, layers * depth) for kind, depth in kinds(static.model).items()]
    return [
        (dataclasses.replace(static, model=kind), share / whole if share % whole else share // whole)
        for kind, share in shares
    ]


def params_at_rest(static: Static, zero: int) -> float:
    """Parameters (or the state of each) on a device; ZeRO stages from `zero` on split them by fsdp."""
    layout: Layout = static.layout
    blocks, rest = _parameter_counts(static.model.plain, layout.tensor)
    even = has_even_stages(static.model, layout)  # else all stages have an equal part of each layer
    parameters = fullest_device_share(static).parameters if even else blocks / layout.stage + rest
    return parameters / (layout.fsdp if layout.zero >= zero else 1)


def params_in_slots(static: Static) -> float:
    """Parameters of a stage's layers and empty slots on a device, as a step lays them out."""
    shape, layout = static.model, static.layout
    declared, tables = transformer.parameter_declarations(shape.plain), layer_tables(shape, layout)
    of_stacks = (
        _held(declared[stack.name], layout.tensor) / stack.depth * layout.rounds * table.shape[2]
        for stack, table in zip(stacks(shape), tables, strict=True)
    )
    return sum(of_stacks) / (layout.fsdp if layout.zero >= 3 else 1)


@functools.cache
def _parameter_counts(shape: ModelShape, tensor: int) -> tuple[float, float]:
    """(parameters of all blocks, of the rest), on one device of `tensor`."""
    declared = transformer.parameter_declarations(shape)
    blocks = _held([declared[stack.name] for stack in stacks(shape)], tensor)
    return blocks, _held(declared, tensor) - blocks


def _held(tree: object, tensor: int) -> float:
    """Parameters of declarations on one device of `tensor`."""
    return sum(d.size / (tensor if set(d.axes) & set(SPLIT_BY_TENSOR) else 1) for d in jax.tree.leaves(tree))
