"""The cheapest change that makes a plan fit, or makes it faster: micro-batch, remat policy, ZeRO stage and mesh, by predicted time.

What is computed stays: the same model, global batch and devices. Every layout that is looked at is one the trainer takes.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from scalelab.config import Layout, Static
from scalelab.errors import BadInput
from scalelab.parallel import rules
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory import saved_activations
from scalelab.plan.memory.memory import Memory, step_memory
from scalelab.plan.step.efficiency import Efficiency, default_efficiency
from scalelab.plan.step.time import expected_s

LONG, SHORT = 16_384, 2048  # tokens from which on more devices a sequence are worth a look; where nothing else fits
MOST_TENSOR, MOST_STAGES = 16, 64
WAVES = 4  # micro-batches a stage at most: (p - 1) / (4 p + p - 1) of a pipeline idle
WORTH = 0.99  # of the plan's own time: what is faster than that is advice where the plan fits
# What an estimate of the activations has to leave by remat policy, as a share of them; a way with less is counted, at most so many.
SPARE, COUNTED = {"none": 0.015, "dots": 0.03, "full": 0.07}, 2
REMAT = ("none", "dots", "full")


@dataclasses.dataclass(frozen=True)
class Advice:
    """One way. `changes`: config key -> value, as the command line takes them."""

    changes: dict[str, Any]
    fits: bool
    margin_bytes: int  # of the fullest device: what is left, or what is lacking where negative
    total_bytes: int
    exact: bool  # whether its saved activations were counted, or estimated (`saved.estimate`)
    step_s: float
    of_plan: float  # its step time over the plan's own
    notes: tuple[str, ...]  # what the trainer says of its layout


def advise_changes(
    static: Static, machine: Machine, efficiency: Efficiency | None = None, most: int = 6
) -> tuple[Advice, ...]:
    """At most `most` ways, the fastest first; of those that change the same things only the best.

    Where the plan fits: ways that are faster, () if there are none. Where nothing fits: the ways that lack least. Of the
    layouts a bounded part is looked at: tensor parallelism within a node, fsdp over all replicas, over those of a node or
    as it is, all stages that divide the layers, more devices a sequence only from 16,384 tokens on, or where nothing else fits.
    """
    efficiency = efficiency or default_efficiency(machine)
    own, own_s = step_memory(static, machine), expected_s(static, machine, efficiency)
    looked_at = {
        way: step_memory(way, machine, saved_activations.estimate_saved_activations)
        for way in _candidate_configs(static, machine)
    }
    if not own.fits and not any(needed.fits for way, needed in looked_at.items() if _trainer_verdict(way)[0]):
        looked_at |= {
            way: step_memory(way, machine, saved_activations.estimate_saved_activations)
            for way in _candidate_configs(static, machine, SHORT)
        }
    sized = dict.fromkeys(
        size for way, needed in looked_at.items() if needed.fits for size in _micro_batch_sizes(way, needed)
    )
    seconds = {way: expected_s(way, machine, efficiency) for way in sized}
    best: dict[frozenset[str], Advice] = {}
    counted = 0
    for way in sorted(seconds, key=lambda way: (seconds[way], len(_changed_keys(static, way)))):
        if len(best) == most or (own.fits and seconds[way] > WORTH * own_s):
            break
        kinds = frozenset(map(_kind_of_change, _changed_keys(static, way)))
        accepted, words = _trainer_verdict(way)
        if not kinds or kinds in best or not accepted:
            continue
        needed, exact = (
            looked_at.get(way) or step_memory(way, machine, saved_activations.estimate_saved_activations),
            way.layout.stage > 1,
        )
        spare = 0.0 if exact else SPARE[way.model.remat] * needed.components["activations"]
        if 0 <= needed.margin_bytes < spare and counted < COUNTED:  # a count is a trace of the whole model
            needed, exact, spare, counted = step_memory(way, machine), True, 0.0, counted + 1
        if needed.margin_bytes >= spare:
            best[kinds] = _make_advice(static, way, needed, exact, seconds[way], own_s, words)
    return (
        tuple(best.values())
        if best or own.fits
        else _closest_to_fitting(static, looked_at, machine, efficiency, own_s, most)
    )


def _make_advice(
    static: Static, way: Static, needed: Memory, exact: bool, step_s: float, own_s: float, words: tuple[str, ...]
) -> Advice:
    return Advice(
        _changed_keys(static, way), needed.fits, needed.margin_bytes, needed.total, exact, step_s, step_s / own_s, words
    )


def _candidate_configs(static: Static, machine: Machine, long: int = LONG) -> Iterator[Static]:
    """Layouts, ZeRO stages and remat policies to look at, each with one sequence a device at a time, and once as it is."""
    seen = set()
    own = static.layout
    stages = [(dataclasses.replace(own, zero=zero)) for zero in range(own.zero + 1, 4) if own.fsdp > 1]
    for layout in [own, *stages, *_candidate_layouts(static, machine, long)]:
        for remat in REMAT if layout.stage == 1 else [static.model.remat]:
            model = dataclasses.replace(
                static.model, remat=remat, sequence_parallel=layout.sequence and layout.tensor > 1
            )
            changed = dataclasses.replace(static, model=model, layout=layout)
            for way in (changed, _split_batch(changed, 1)):
                # A plan may have parts of a sequence, the trainer none.
                if way is not None and way not in seen and _rows_at_once(way):
                    seen.add(way)
                    yield way


def _candidate_layouts(static: Static, machine: Machine, long: int) -> Iterator[Layout]:
    """Meshes of as many devices that divide what they have to."""
    shape, own, n = static.model, static.layout, static.layout.devices
    divided = math.gcd(shape.n_heads, shape.n_kv_heads, shape.d_ff, shape.vocab_size)
    for tensor in _divisors(n, min(machine.devices_per_node, MOST_TENSOR)):
        if divided % tensor:
            continue
        for stage in _divisors(n // tensor, MOST_STAGES):
            for context in _context_sizes(static, n // (tensor * stage), long) if stage == 1 else [1]:
                replicas = n // (tensor * stage * context)
                if shape.n_layers % stage or static.global_batch % replicas:
                    continue
                near = max(1, machine.devices_per_node // (tensor * context))
                sizes = {replicas, math.gcd(replicas, near), math.gcd(replicas, own.fsdp)}
                for fsdp in sorted(size for size in sizes if shape.d_model % size == 0):
                    split = tensor > 1 and shape.seq_len % (context * tensor) == 0
                    yield Layout(replicas // fsdp, fsdp, tensor, context, stage, split)


def _context_sizes(static: Static, devices: int, long: int) -> list[int]:
    """Devices that may share a sequence."""
    own = static.layout.context
    sizes = {own} | ({own * 2, own * 4, own * 8} if static.model.seq_len // own >= long else set())
    return [size for size in sorted(sizes) if devices % size == 0]


def _divisors(n: int, most: int) -> list[int]:
    return [k for k in range(1, min(n, most) + 1) if n % k == 0]


def _split_batch(static: Static, rows: int) -> Static | None:
    """The same with so many sequences a device at a time; None where that doesn't divide the batch."""
    layout = static.layout
    each, rest = divmod(static.global_batch, layout.data * layout.fsdp * rows)
    if rest:
        return None
    microbatches = max((k for k in _divisors(each, WAVES * layout.stage)), default=1) if layout.stage > 1 else 1
    layout = dataclasses.replace(layout, microbatches=microbatches)
    accumulate = each // microbatches
    # A batch that is warmed up begins with whole micro-batches.
    first = (static.accumulate - len(static.batch_ramp)) * static.global_batch // static.accumulate
    if first % (static.global_batch // accumulate):
        return None
    return dataclasses.replace(static, layout=layout, accumulate=accumulate)


def _rows_at_once(static: Static) -> int:
    layout = static.layout
    pipelined = layout.microbatches if layout.stage > 1 else 1
    return static.global_batch // (static.accumulate * layout.data * layout.fsdp * pipelined)


def _micro_batch_sizes(way: Static, needed: Memory) -> list[Static]:
    """`way`, which fits, with as many sequences a device at a time as its memory seems to hold.

    Of a pipeline every size up to that: larger ones leave fewer micro-batches, and more of the time idle.
    """
    growing = needed.components["activations"] + needed.components["temporary"]
    limit = _rows_at_once(way) * (1 + needed.margin_bytes / max(growing, 1))
    sizes = [2**k * _rows_at_once(way) for k in range(1, 20)]
    larger = [found for size in sizes if size <= limit and (found := _split_batch(way, size))]
    return [way, *larger] if way.layout.stage > 1 else [way, *larger][-1:]


def _trainer_verdict(way: Static) -> tuple[bool, tuple[str, ...]]:
    """(whether the trainer takes this layout, what it says of it)."""
    try:
        return True, tuple(rules.check_layout(way, way.layout))
    except BadInput:
        return False, ()


def _changed_keys(before: Static, after: Static) -> dict[str, Any]:
    """Config keys that differ, with their new values."""
    found: dict[str, tuple[Any, Any]] = {
        "train.accumulate": (before.accumulate, after.accumulate),
        "model.remat": (before.model.remat, after.model.remat),
    }
    pipeline = ("schedule", "microbatches", "rounds")  # of no meaning without one
    for field in dataclasses.fields(Layout):
        if after.layout.stage == 1 and field.name in pipeline:
            continue
        found[f"parallel.{field.name}"] = getattr(before.layout, field.name), getattr(after.layout, field.name)
    return {key: new for key, (old, new) in found.items() if old != new}


def _kind_of_change(key: str) -> str:
    """micro-batch | remat | zero | mesh."""
    alone = {
        "train.accumulate": "micro-batch",
        "parallel.microbatches": "micro-batch",
        "model.remat": "remat",
        "parallel.zero": "zero",
    }
    return alone.get(key, "mesh")


def _closest_to_fitting(
    static: Static, looked_at: dict[Static, Memory], machine: Machine, efficiency: Efficiency, own_s: float, most: int
) -> tuple[Advice, ...]:
    """The ways that lack least, one of each kind."""
    best: dict[frozenset[str], Advice] = {}
    for way in sorted(looked_at, key=lambda way: -looked_at[way].margin_bytes):
        kinds = frozenset(map(_kind_of_change, _changed_keys(static, way)))
        accepted, words = _trainer_verdict(way)
        if kinds and accepted and kinds not in best and len(best) < most:
            step_s = expected_s(way, machine, efficiency)
            best[kinds] = _make_advice(static, way, looked_at[way], False, step_s, own_s, words)
    return tuple(best.values())
