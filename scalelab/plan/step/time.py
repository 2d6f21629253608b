"""How long a step takes: a roofline of its operations, its collectives, its pipeline.

An operation takes the longer of its FLOPs and its bytes, each at the share of the datasheet that `efficiency.py`
states; a collective what a ring takes. Of the traffic that nothing waits for, a stated share goes on behind computing.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from scalelab.config import Static
from scalelab.hardware.chips import compute_capability
from scalelab.model import count
from scalelab.model.attention.kernels import documents_limit
from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step import expert_rows, links, operations
from scalelab.plan.step.device_share import Operation, fullest_device_share, hiding_share, last_layers, pipeline_bubble
from scalelab.plan.step.efficiency import Efficiency, Range, default_efficiency, machine_platform, peak_of_unit
from scalelab.plan.step.systems import OUR_TRAITS, SystemTraits
from scalelab.plan.step.traffic import recompute_policy, step_transfers
from scalelab.plan.step.update import moments_s, update_operations
from scalelab.precision.policy import POLICIES

RATES = ("matmul", "attention", "hbm", "network")
FIELDS = (*RATES, "overlap", "measured", "experts")  # of an `Efficiency`
LEAST_S = 1.5e-6  # of any operation on an accelerator (Scaling Book, GPUs, quiz 1: a small sum in jax on an H100)
# Of a turn of a loop on a GPU, whose host reads before it whether there is one (jax issue 2491): 81.6 s for ten million
# of a small scan (QuantEcon/lecture-python-programming, issue 440).
TURN_S = 8.2e-6
Bound = tuple[float, float]  # seconds bound by FLOPs, by memory


class Work(NamedTuple):
    """What a step does; `lost`: idle ends of its pipeline over its busy time; `last_layers`: of the last stage."""

    ops: tuple[Operation, ...]
    moves: tuple[links.Transfer, ...]
    lost: float
    last_layers: int


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a step on the busiest device at the expected efficiencies; `low_s` and `high_s` at their ends.

    total_s = compute_s + hbm_s + sum(exposed) + bubble_s. `compute_s`: operations bound by FLOPs, `hbm_s`: by memory.
    `axes`: collectives by mesh axis as if nothing else went on; `exposed`: what of it computing doesn't hide.
    `bubble_s`: idle ends of the pipeline. `mfu`: FLOPs of the model's products (`flops_per_token`, attention in full,
    nothing recomputed) over the peak of the unit that the precision policy multiplies with.
    """

    compute_s: float
    hbm_s: float
    axes: dict[str, float]
    exposed: dict[str, float]
    bubble_s: float
    total_s: float
    low_s: float
    high_s: float
    mfu: float
    mfu_low: float
    mfu_high: float
    tokens_per_s: float
    flops_per_token: float
    peak_flops: float  # FLOP/s of one device
    assumptions: tuple[str, ...]


def step_time(
    static: Static, machine: Machine, efficiency: Efficiency | None = None, traits: SystemTraits = OUR_TRAITS
) -> StepTime:
    """One optimizer step of a config whose layout is resolved. BadInput if the chip lacks a unit for the precision."""
    efficiency = efficiency or default_efficiency(machine)
    ops = by_size(operations.step_operations(static, machine, traits), efficiency)
    work = Work(ops, step_transfers(static, traits), idle_share(static), last_layers(static, traits))
    expected = _step_parts(static, machine, _shares_at(efficiency), work)
    low_s, high_s = (_step_end(static, machine, efficiency, end, work, expected["total_s"]) for end in ("high", "low"))
    tokens = static.global_batch * static.model.seq_len
    flops = count.flops_per_token(static.model)["exact"]
    peak = peak_of_unit(machine, POLICIES[static.precision].unit)[0]

    def mfu(total_s: float) -> float:
        return flops * tokens / (total_s * static.layout.devices * peak)

    return StepTime(
        **expected,
        low_s=low_s,
        high_s=high_s,
        mfu=mfu(expected["total_s"]),
        mfu_low=mfu(high_s),
        mfu_high=mfu(low_s),
        tokens_per_s=tokens / expected["total_s"],
        flops_per_token=flops,
        peak_flops=peak,
        assumptions=describe_assumptions(static, machine, efficiency, traits),
    )


def expected_s(static: Static, machine: Machine, efficiency: Efficiency, traits: SystemTraits = OUR_TRAITS) -> float:
    """The total of `step_time` alone, at a small part of its cost: to compare many layouts."""
    passes = _pass_seconds(operations.pass_key(static), machine, efficiency, traits)
    update = by_size(tuple(update_operations(static)), efficiency)
    work = Work(update, step_transfers(static, traits), idle_share(static), last_layers(static, traits))
    seconds: float = _step_parts(static, machine, _shares_at(efficiency), work, passes)["total_s"]
    return seconds


@functools.cache
def _pass_seconds(static: Static, machine: Machine, efficiency: Efficiency, traits: SystemTraits) -> dict[str, Bound]:
    """Seconds of forward and backward by part, of all layouts with this `operations.pass_key`. Do not modify it."""
    ops = by_size(operations.pass_operations(static, machine, traits), efficiency)
    return _part_seconds(machine, ops, _shares_at(efficiency))


def expected_of(
    static: Static,
    machine: Machine,
    efficiency: Efficiency,
    ops: tuple[Operation, ...],
    moves: tuple[links.Transfer, ...],
    idle: float | None = None,
) -> float:
    """`expected_s` of these operations and transfers. `idle`: the pipeline's, over its busy time, if not the step's."""
    lost = idle_share(static) if idle is None else idle
    work = Work(by_size(ops, efficiency), moves, lost, last_layers(static, OUR_TRAITS))
    seconds: float = _step_parts(static, machine, _shares_at(efficiency), work)["total_s"]
    return seconds


def by_size(ops: tuple[Operation, ...], efficiency: Efficiency) -> tuple[Operation, ...]:
    """Operations with the FLOPs that a large one of its kind does in its time: small products reach a smaller share."""
    return tuple(op._replace(flops=op.flops / efficiency.relative_share(op)) if op.flops else op for op in ops)


def _shares_at(efficiency: Efficiency, **ends: str) -> dict[str, float]:
    """Every efficiency as expected, but at that end where one is named; rates as they were measured."""
    at = {field: getattr(getattr(efficiency, field), ends.get(field, "expected")) for field in FIELDS}
    return at | {name: at[name] * at["measured"] for name in RATES}


def _step_end(
    static: Static, machine: Machine, efficiency: Efficiency, end: str, work: Work, expected_s: float
) -> float:
    """Seconds with efficiencies at one end of their ranges: each alone, added as independent errors."""
    alone = (_step_parts(static, machine, _shares_at(efficiency, **{field: end}), work)["total_s"] for field in FIELDS)
    moved = math.sqrt(sum((seconds - expected_s) ** 2 for seconds in alone))
    return expected_s + (moved if end == "low" else -moved)


def idle_share(static: Static) -> float:
    """Idle ends of the pipeline over its busy time."""
    return pipeline_bubble(static.layout, static.model.n_layers).over_ideal


def _step_parts(
    static: Static, machine: Machine, at: dict[str, float], work: Work, passes: Mapping[str, Bound] | None = None
) -> dict:
    """The fields of `StepTime` that are seconds, at these shares of the datasheet. `passes`: known, not in `work`."""
    layout, seconds = static.layout, _part_seconds(machine, work.ops, at)
    seconds |= {part: passes[part] for part in ("block", "head")} if passes else {}
    (compute, hbm), update = _compute_seconds(static, machine, seconds, work.last_layers)
    durations = [
        (move, transfer_s(static, machine, move, at["network"] * (at["experts"] if move.sends_rows else 1.0)))
        for move in work.moves
    ]
    waited = _exposed_seconds(static, durations, at["overlap"], compute + hbm)
    axes, exposed, ticking = dict.fromkeys(MESH_AXES, 0.0), dict.fromkeys(MESH_AXES, 0.0), compute + hbm
    for (move, took), left in zip(durations, waited, strict=True):
        axes[move.axis] += took
        exposed[move.axis] += left
        ticking += left * move.in_ticks
    bubble_s = work.lost * ticking
    return {
        "compute_s": compute + update[0],
        "hbm_s": hbm + update[1],
        "axes": {axis: axes[axis] for axis in MESH_AXES if getattr(layout, axis) > 1},
        "exposed": {axis: exposed[axis] for axis in MESH_AXES if getattr(layout, axis) > 1},
        "bubble_s": bubble_s,
        "total_s": compute + hbm + sum(update) + sum(exposed.values()) + bubble_s,
    }


def _exposed_seconds(
    static: Static, durations: list[tuple[links.Transfer, float]], overlap: float, busy: float
) -> list[float]:
    """The seconds of each transfer that no computing hides; computing takes `busy` seconds."""
    shares = [hiding_share(static, move.times) if move.hidden else 0.0 for move, _ in durations]
    left, free = {0.0: 1.0}, busy
    for share in sorted(set(shares) - {0.0}):  # who has least to hide behind comes first
        took = sum(seconds for (_, seconds), of in zip(durations, shares, strict=True) if of == share)
        hidden = min(overlap * took, share * busy, free)
        left[share], free = (1 - hidden / took if took else 1.0), free - hidden
    return [left[share] * seconds for (_, seconds), share in zip(durations, shares, strict=True)]


def transfer_s(static: Static, machine: Machine, move: links.Transfer, share: float) -> float:
    """Seconds of a transfer, all its times, at this share of the datasheet's rate."""
    layout = static.layout
    if move.sends_rows:
        return move.times * expert_rows.exchange_s(static, machine, move.whole_bytes, move.once_a_node, share)
    speed = links.bytes_per_s(layout, machine, move.axis, kind=move.kind) * share
    return move.times * links.ring_s(move.kind, move.whole_bytes, getattr(layout, move.axis), speed)


def _part_seconds(machine: Machine, ops: tuple[Operation, ...], at: dict[str, float]) -> dict[str, Bound]:
    """(seconds bound by FLOPs, by memory) of a stage's blocks, of the head, and of the update."""
    seconds = {part: [0.0, 0.0] for part in ("block", "head", "update")}
    peak = {unit: peak_of_unit(machine, unit)[0] for unit in {op.unit for op in ops if op.flops}}
    for op in ops:
        share_of_peak = at["attention" if op.name.startswith("attention") else "matmul"]
        flops_s = op.flops / (peak[op.unit] * share_of_peak) if op.flops else 0.0
        bytes_s = op.bytes / (machine.chip.hbm_bytes_per_s * at["hbm"])
        if flops_s or bytes_s:
            slower = at["experts"] if op.experts else 1.0
            took = max(flops_s / slower, bytes_s / slower, LEAST_S) + op.turns * TURN_S
            seconds[op.part][flops_s < bytes_s] += op.times * took
    return {part: (by_flops, by_bytes) for part, (by_flops, by_bytes) in seconds.items()}


def _compute_seconds(
    static: Static, machine: Machine, seconds: Mapping[str, Bound], at_end: int
) -> tuple[Bound, Bound]:
    """(by FLOPs, by memory) of the stage that takes longest (the last has `at_end` layers), and of the update."""
    share = at_end / fullest_device_share(static).layers
    with_head = tuple(seconds["block"][i] * share + seconds["head"][i] for i in (0, 1))
    slowest = max(seconds["block"], with_head, key=sum)
    return (slowest[0], slowest[1]), (seconds["update"][0], seconds["update"][1] + moments_s(static, machine))


def describe_assumptions(
    static: Static, machine: Machine, efficiency: Efficiency, traits: SystemTraits
) -> tuple[str, ...]:
    """Assumptions behind the figures, a line each."""
    layout, policy = static.layout, POLICIES[static.precision]

    def described(name: str, of: Range) -> str:
        return f"{name} {of.expected:.0%} ({of.low:.0%} to {of.high:.0%})"

    lines = [
        "efficiencies: " + ", ".join(described(name, getattr(efficiency, name)) for name in (*RATES, "overlap")),
        *efficiency.sources,
        f"peak: {peak_of_unit(machine, policy.unit)[1]} ({machine.chip.source})",
        f"attention: {operations.attention_kind(static, machine)}; recomputed in the backward: "
        f"{recompute_policy(static, traits)}",
    ]
    documents = documents_limit(static, machine_platform(machine), compute_capability(machine.chip))
    lines += [f"{documents}; counted as if none ended"] if documents else []
    split = [axis for axis in MESH_AXES if getattr(layout, axis) > 1]
    for axis in split:
        kind = "send" if axis in ("context", "stage") else ""  # what they mostly do
        speed, wide = links.bytes_per_s(layout, machine, axis, kind=kind), links.crosses_nodes(layout, machine, axis)
        place = "crosses nodes" if wide else "stays within a node"
        lines.append(f"{axis}={getattr(layout, axis)} {place}: {speed / 1e9:.3g} GB/s a device")
    if split:
        lines.append(
            "tensor's collectives are waited for, but those that a forward sends in parts; overlap is the share of "
            "these and of all others' that goes on behind computing"
        )
    if static.model.n_experts:
        lines += _describe_experts(static, machine, traits)
    if layout.stage > 1:
        lines += _describe_pipeline(static)
    if static.batch_ramp:
        lines.append("a step with the full batch")
    return tuple(lines)


def _describe_experts(static: Static, machine: Machine, traits: SystemTraits) -> list[str]:
    """What experts multiply beside their rows, and what is sent to them and back."""
    factor = expert_rows.row_factor(static, machine_platform(machine), traits)
    loads = f", the fullest device {traits.imbalance:g} times the mean, assumed" if static.layout.expert > 1 else ""
    lines = [f"experts: products multiply {factor:.3g} times the useful rows (blocks and buffers filled up{loads})"]
    turns = sum(op.times * op.turns for op in operations.step_operations(static, machine, traits))
    lines += [f"experts: {turns:,.3g} turns of loops a step, {TURN_S * 1e6:g} us each, assumed"] if turns else []
    moves = [move for move in step_transfers(static, traits) if move.sends_rows]
    parts = [expert_rows.split_by_domain(static, machine, move.whole_bytes, move.once_a_node) for move in moves]
    near, far = (sum(move.times * part[i] for move, part in zip(moves, parts, strict=True)) / 1e9 for i in (0, 1))
    if moves:
        lines.append(
            f"experts: all-to-all of {near + far:,.4g} GB a device and step, of them {far:,.4g} GB over the network "
            "between nodes"
        )
    return lines


def _describe_pipeline(static: Static) -> list[str]:
    layout, share = static.layout, fullest_device_share(static)
    return [
        f"pipeline: {layout.schedule}, {share.layers} of {static.model.n_layers} layers on the fullest of "
        f"{layout.stage} stages; idle {idle_share(static):.1%} of the busy time"
    ]
