"""Layouts of a config to compare: meshes, ZeRO stages, remat policies and micro-batches that divide model and batch."""

import math
from collections.abc import Iterator
from typing import Any

from scalelab.config import Layout, ModelShape, Static, with_fields
from scalelab.errors import BadInput
from scalelab.parallel import rules
from scalelab.plan.machine.layout import mesh_fields
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.memory import Memory

LONG, SHORT = 16_384, 2048  # tokens from which sequences may be split further; SHORT only where nothing else fits
MOST_TENSOR, MOST_STAGES, MOST_EXPERT = 16, 64, 64
MOST_CONTEXT = 128  # times the devices that share a sequence: more than 8 where each keeps LONG tokens
WAVES = 4  # micro-batches a stage at most: (p - 1) / (4 p + p - 1) of a pipeline idle
REMAT = ("none", "dots", "full")
ZERO_STAGES = (1, 2, 3)  # 0 takes as long as 1 and holds more


def list_options(static: Static, machine: Machine, long: int = LONG) -> Iterator[Static]:
    """Layouts, ZeRO stages and remat policies to try, each as it is and with one sequence a device at a time."""
    seen = set()
    shapes: dict[tuple[Any, ...], ModelShape] = {}  # one of each kind: options are many
    layout_now = static.layout
    stages = [(with_fields(layout_now, zero=zero)) for zero in range(layout_now.zero + 1, 4) if layout_now.fsdp > 1]
    for layout in [layout_now, *stages, *_candidate_layouts(static, machine, long)]:
        for remat in REMAT if layout.stage == 1 else [static.model.remat]:
            fields = mesh_fields(layout) | {"remat": remat}
            shape = shapes.setdefault(tuple(fields.values()), with_fields(static.model, **fields))
            changed = with_fields(static, model=shape, layout=layout)
            for option in (changed, split_batch(changed, 1)):
                # A plan may have less than one sequence a device, the trainer may not.
                if option is not None and option not in seen and rows_at_once(option):
                    seen.add(option)
                    yield option


def _candidate_layouts(static: Static, machine: Machine, long: int) -> Iterator[Layout]:
    """Meshes of the plan's number of devices that divide the model and the batch."""
    shape, layout_now, n = static.model, static.layout, static.layout.devices
    divided = math.gcd(shape.n_heads, shape.n_kv_heads, shape.d_ff, shape.vocab_size, shape.d_expert)
    for tensor in _divisors(n, min(machine.devices_per_node, MOST_TENSOR)):
        if divided % tensor:
            continue
        for stage in _divisors(n // tensor, MOST_STAGES):
            for context in _context_sizes(static, n // (tensor * stage), long) if stage == 1 else [1]:
                replicas = n // (tensor * stage * context)
                if shape.n_layers < stage or static.global_batch % replicas:
                    continue
                split = tensor > 1 and shape.seq_len % (context * tensor) == 0
                for data, fsdp, expert in _batch_sizes(
                    static, replicas, machine.devices_per_node // (tensor * context)
                ):
                    buffer = layout_now.expert_buffer if expert > 1 else 0.0
                    for zero in ZERO_STAGES if fsdp > 1 else ZERO_STAGES[-1:]:
                        yield Layout(
                            data, fsdp, tensor, context, stage, split, zero=zero, expert=expert, expert_buffer=buffer
                        )


def _batch_sizes(static: Static, replicas: int, near: int) -> Iterator[tuple[int, int, int]]:
    """(data, fsdp, expert) of so many replicas, of which `near` fill a node.

    Of fsdp all that is left, as much of it as divides the widths, what is left of a node, or as in the plan.
    """
    shape = static.model
    widths = math.gcd(shape.d_model, shape.d_kv_latent, shape.d_q_latent)
    for expert in _divisors(math.gcd(shape.n_experts, replicas), MOST_EXPERT) if shape.n_experts else [1]:
        rest = replicas // expert
        node, divided = math.gcd(rest, max(1, near // expert)), math.gcd(rest, widths)
        sizes = {rest, node, divided, math.gcd(rest, static.layout.fsdp)}
        for fsdp in sorted(size for size in sizes if widths % size == 0):
            yield rest // fsdp, fsdp, expert


def _context_sizes(static: Static, devices: int, long: int) -> list[int]:
    """Numbers of devices that may share a sequence."""
    context, length = static.layout.context, static.model.seq_len
    near = {context * 2, context * 4, context * 8} if length // context >= long else set()
    far = {context * 2**k for k in range(4, MOST_CONTEXT.bit_length()) if length // (context * 2**k) >= long}
    return [size for size in sorted({1, context} | near | far) if devices % size == 0]


def _divisors(n: int, most: int) -> list[int]:
    return [k for k in range(1, min(n, most) + 1) if n % k == 0]


def split_batch(static: Static, rows: int) -> Static | None:
    """`static` with so many sequences a device at a time; None if that doesn't divide the batch."""
    layout = static.layout
    rows_per_replica, rest = divmod(static.global_batch, layout.batch_parts * rows)
    if rest:
        return None
    # A batch warm-up begins with whole micro-batches.
    first = (static.accumulate - len(static.batch_ramp)) * static.global_batch // static.accumulate
    for microbatches in _divisors(rows_per_replica, WAVES * layout.stage)[::-1] if layout.stage > 1 else [1]:
        accumulate = rows_per_replica // microbatches
        if first % (static.global_batch // accumulate) == 0:
            layout = with_fields(layout, microbatches=microbatches)
            return with_fields(static, layout=layout, accumulate=accumulate)
    return None


def rows_at_once(static: Static) -> int:
    """Whole sequences of a micro-batch on a device."""
    layout = static.layout
    pipelined = layout.microbatches if layout.stage > 1 else 1
    return static.global_batch // (static.accumulate * layout.batch_parts * pipelined)


def micro_batch_sizes(option: Static, needed: Memory) -> list[Static]:
    """The fitting `option` as it is or with as many sequences a device at a time as its memory seems to hold.

    A pipeline gives every size up to that, since larger ones leave fewer micro-batches and more idle time.
    """
    growing = needed.components["activations"] + needed.components["temporary"]
    limit = rows_at_once(option) * (1 + needed.margin_bytes / max(growing, 1))
    sizes = [2**k * rows_at_once(option) for k in range(1, 20)]
    larger = [split for size in sizes if size <= limit and (split := split_batch(option, size))]
    return [option, *larger] if option.layout.stage > 1 else [option, *larger][-1:]


def trainer_verdict(option: Static) -> tuple[bool, tuple[str, ...]]:
    """(whether the trainer accepts this layout, its warnings)."""
    try:
        return True, tuple(rules.check_layout(option, option.layout))
    except BadInput:
        return False, ()
