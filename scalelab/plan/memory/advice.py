"""Cheapest changes that make a plan fit, or faster, by predicted time: micro-batch, remat policy, ZeRO stage and mesh.

Model, global batch and devices stay. Every advised layout is one that the trainer accepts.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from scalelab.config import Layout, Static, with_fields
from scalelab.errors import BadInput
from scalelab.hardware.chips import compute_capability
from scalelab.hardware.device_memory import usable_bytes
from scalelab.model.attention.kernels import unfused_reason
from scalelab.parallel import rules
from scalelab.plan.machine.layout import with_layout
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory import estimated_activations, levers
from scalelab.plan.memory.memory import Memory, memory_on_backend, step_memory
from scalelab.plan.step.efficiency import Efficiency, default_efficiency, machine_platform
from scalelab.plan.step.systems import OUR_TRAITS
from scalelab.plan.step.time import expected_s
from scalelab.sharding import Capability

LONG, SHORT = 16_384, 2048  # tokens from which sequences may be split further; SHORT only where nothing else fits
MOST_TENSOR, MOST_STAGES, MOST_EXPERT = 16, 64, 64
MOST_CONTEXT = 128  # times the devices that share a sequence: more than 8 where each keeps LONG tokens
WAVES = 4  # micro-batches a stage at most: (p - 1) / (4 p + p - 1) of a pipeline idle
WORTH = 0.99  # of the plan's own time: if the plan fits, only faster options are advice
# Memory that an estimate of the activations must leave, as a share of them, by remat policy; below it they are counted
# exactly, for at most COUNTED options, and for the first option if the plan fits.
SPARE, COUNTED = {"none": 0.015, "dots": 0.03, "full": 0.07}, 2
REMAT = ("none", "dots", "full")
TWICE = 50  # of the fastest options: those that are timed with either way to multiply experts
ZERO_STAGES = (1, 2, 3)  # 0 takes as long as 1 and holds more


@dataclasses.dataclass(frozen=True)
class Advice:
    """One option. `changes`: config key -> value, as on the command line."""

    changes: dict[str, Any]
    fits: bool
    margin_bytes: int  # of the fullest device: free memory, negative if it is exceeded
    total_bytes: int
    exact: bool  # whether saved activations were counted, or else estimated (`estimate_saved_activations`)
    step_s: float
    of_plan: float  # its step time over the plan's
    notes: tuple[str, ...]  # the trainer's warnings on its layout, and the cost of attention in no fused kernel
    option: Static = dataclasses.field(repr=False, compare=False)  # the config of `changes`

    def to_json(self) -> dict[str, Any]:
        """All but the whole config."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "option"}


def advise_changes(
    static: Static, machine: Machine, efficiency: Efficiency | None = None, most: int = 6
) -> tuple[Advice, ...]:
    """At most `most` options, fastest first, with the best one of each set of changed kinds.

    If the plan fits: faster options, or (). If nothing fits: the options that exceed memory by the least. The search
    over layouts is bounded: tensor parallelism within a node; fsdp over all replicas, those of a node, or as in the
    plan; all stages that divide the layers; at most MOST_EXPERT devices along expert; more devices per sequence only
    from 16,384 tokens, or where nothing else fits.
    """
    efficiency = efficiency or default_efficiency(machine)
    plan_memory, plan_s = step_memory(static, machine), expected_s(static, machine, efficiency)
    lean = levers.with_least_rows(static, machine_platform(machine))
    memory_of = {option: _estimate_memory(option, machine) for option in _candidate_configs(lean, machine)}
    usable = plan_memory.fits and _trainer_verdict(static)[0]
    if not usable and not any(m.fits for option, m in memory_of.items() if _trainer_verdict(option)[0]):
        shorter = _candidate_configs(lean, machine, SHORT)
        memory_of |= {option: _estimate_memory(option, machine) for option in shorter}
    fitting = {option: needed for option, needed in memory_of.items() if needed.fits}
    seconds = _time_options(fitting, static, machine, efficiency)
    best: dict[frozenset[str], Advice] = {}
    counted = 0
    for option in sorted(seconds, key=lambda option: (seconds[option], len(levers.changed_keys(static, option)))):
        if len(best) == most or (usable and seconds[option] > WORTH * plan_s):
            break
        kinds = frozenset(map(levers.kind_of_change, levers.changed_keys(static, option)))
        accepted, warnings = _trainer_verdict(option)
        if not kinds or kinds in best or not accepted:
            continue
        needed, exact = memory_of.get(option) or _estimate_memory(option, machine), option.layout.stage > 1
        spare = 0.0 if exact else SPARE[option.model.remat] * needed.components["activations"]
        near = 0 <= needed.margin_bytes < spare and counted < COUNTED  # a count is a trace of the whole model
        if near or (
            usable and not (best or exact) and needed.margin_bytes >= spare
        ):  # the first is printed as a command
            needed, exact, spare, counted = step_memory(option, machine), True, 0.0, counted + near
        if needed.margin_bytes >= spare:
            warnings = (*warnings, *_attention_notes(option, machine))
            best[kinds] = _make_advice(static, option, needed, exact, seconds[option], plan_s, warnings)
    if best or usable:
        return tuple(best.values())
    return _closest_to_fitting(static, memory_of, machine, efficiency, plan_s, most)


def list_fastest(static: Static, machine: Machine, efficiency: Efficiency, asked: dict[str, int]) -> list[Static]:
    """The options on meshes that have the sizes `asked` of some axes, as far as they seem to fit, fastest first.

    Where none does, the one that exceeds memory by the least.
    """
    memory_of = {
        option: _estimate_memory(option, machine)
        for option in _candidate_configs(levers.with_least_rows(static, machine_platform(machine)), machine, SHORT)
        if all(getattr(option.layout, axis) == size for axis, size in asked.items()) and _trainer_verdict(option)[0]
    }
    fitting = {option: needed for option, needed in memory_of.items() if needed.fits}
    if not fitting:
        return sorted(memory_of, key=lambda option: -memory_of[option].margin_bytes)[:1]
    seconds = _time_options(fitting, static, machine, efficiency)
    return sorted(seconds, key=seconds.__getitem__)


def _time_options(
    fitting: dict[Static, Memory], asked: Static, machine: Machine, efficiency: Efficiency
) -> dict[Static, float]:
    """Seconds of a step of options that fit, with the micro-batches that they seem to hold.

    The fastest also with experts multiplied as `asked`, though what that needs is not counted yet.
    """

    def count(options: Iterable[Static]) -> dict[Static, float]:
        return {o: _full_step_s(with_fields(o, batch_ramp=()), machine, efficiency) for o in options}

    seconds = count(dict.fromkeys(size for o, needed in fitting.items() for size in _micro_batch_sizes(o, needed)))
    fastest = sorted(seconds, key=seconds.__getitem__)[:TWICE]
    return seconds | count(levers.with_products(option, asked.model.expert_products) for option in fastest)


@functools.cache
def _full_step_s(option: Static, machine: Machine, efficiency: Efficiency) -> float:
    """Seconds of a step after the batch's warm-up, cached: a plan's searches ask for the same options."""
    return expected_s(option, machine, efficiency)


def _estimate_memory(option: Static, machine: Machine) -> Memory:
    """A step's memory with estimated activations: no trace of the whole model. A batch's warm-up changes none of it."""
    option, chip = with_fields(option, batch_ramp=()), machine.chip
    return _estimate_on(option, machine_platform(machine), usable_bytes(chip), compute_capability(chip))


@functools.cache
def _estimate_on(option: Static, backend: str, capacity: int, capability: Capability | None) -> Memory:
    """`_estimate_memory`, cached: a plan's searches ask for the same options. Callers must not modify it."""
    count = estimated_activations.estimate_saved_activations
    return memory_on_backend(option, backend, capacity, 1, count, capability)


def _attention_notes(option: Static, machine: Machine) -> tuple[str, ...]:
    """Why an option's attention is none of the fused kernels, and what that costs its step."""
    reason = unfused_reason(option, machine_platform(machine), compute_capability(machine.chip))
    if not reason:
        return ()
    efficiency, fused = default_efficiency(machine), dataclasses.replace(OUR_TRAITS, fused_attention="all")
    saved = 1 - expected_s(option, machine, efficiency, fused) / expected_s(option, machine, efficiency)
    return (f"{saved:.0%} of the step is that attention is in no fused kernel: {reason}",)


def _make_advice(
    static: Static, option: Static, needed: Memory, exact: bool, step_s: float, plan_s: float, warnings: tuple[str, ...]
) -> Advice:
    keys, margin = levers.changed_keys(static, option), needed.margin_bytes
    return Advice(keys, needed.fits, margin, needed.total, exact, step_s, step_s / plan_s, warnings, option)


def _candidate_configs(static: Static, machine: Machine, long: int = LONG) -> Iterator[Static]:
    """Layouts, ZeRO stages and remat policies to try, each as it is and with one sequence a device at a time."""
    seen = set()
    layout_now = static.layout
    stages = [(with_fields(layout_now, zero=zero)) for zero in range(layout_now.zero + 1, 4) if layout_now.fsdp > 1]
    for layout in [layout_now, *stages, *_candidate_layouts(static, machine, long)]:
        for remat in REMAT if layout.stage == 1 else [static.model.remat]:
            changed = with_layout(static, layout)
            changed = with_fields(changed, model=with_fields(changed.model, remat=remat))
            for option in (changed, _split_batch(changed, 1)):
                # A plan may have less than one sequence a device, the trainer may not.
                if option is not None and option not in seen and _rows_at_once(option):
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


def _split_batch(static: Static, rows: int) -> Static | None:
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


def _rows_at_once(static: Static) -> int:
    layout = static.layout
    pipelined = layout.microbatches if layout.stage > 1 else 1
    return static.global_batch // (static.accumulate * layout.batch_parts * pipelined)


def _micro_batch_sizes(option: Static, needed: Memory) -> list[Static]:
    """The fitting `option` as it is or with as many sequences a device at a time as its memory seems to hold.

    A pipeline gives every size up to that, since larger ones leave fewer micro-batches and more idle time.
    """
    growing = needed.components["activations"] + needed.components["temporary"]
    limit = _rows_at_once(option) * (1 + needed.margin_bytes / max(growing, 1))
    sizes = [2**k * _rows_at_once(option) for k in range(1, 20)]
    larger = [split for size in sizes if size <= limit and (split := _split_batch(option, size))]
    return [option, *larger] if option.layout.stage > 1 else [option, *larger][-1:]


def _trainer_verdict(option: Static) -> tuple[bool, tuple[str, ...]]:
    """(whether the trainer accepts this layout, its warnings)."""
    try:
        return True, tuple(rules.check_layout(option, option.layout))
    except BadInput:
        return False, ()


def _closest_to_fitting(
    static: Static, memory_of: dict[Static, Memory], machine: Machine, efficiency: Efficiency, plan_s: float, most: int
) -> tuple[Advice, ...]:
    """The options that exceed memory by the least, one of each kind."""
    best: dict[frozenset[str], Advice] = {}
    for option in sorted(memory_of, key=lambda option: -memory_of[option].margin_bytes):
        kinds = frozenset(map(levers.kind_of_change, levers.changed_keys(static, option)))
        accepted, warnings = _trainer_verdict(option)
        if kinds and accepted and kinds not in best and len(best) < most:
            step_s = expected_s(option, machine, efficiency)
            best[kinds] = _make_advice(static, option, memory_of[option], False, step_s, plan_s, warnings)
    return tuple(best.values())
