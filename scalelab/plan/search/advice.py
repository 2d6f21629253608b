"""Cheapest changes that make a plan fit, or faster, by predicted time: micro-batch, remat policy, ZeRO stage and mesh.

Model, global batch and devices stay. Every advised layout is one that the trainer accepts.
"""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from scalelab.config import Static
from scalelab.hardware.chips import compute_capability
from scalelab.hardware.device_memory import usable_bytes
from scalelab.model.attention.kernels import unfused_reason
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.held import held_bytes
from scalelab.plan.memory.memory import Memory, step_memory
from scalelab.plan.search import levers
from scalelab.plan.search.by_time import Holdings, estimate_memory, rank_by_time
from scalelab.plan.search.candidates import SHORT, list_options, trainer_verdict
from scalelab.plan.step.efficiency import Efficiency, default_efficiency, machine_platform
from scalelab.plan.step.systems import OUR_TRAITS
from scalelab.plan.step.time import expected_s

WORTH = 0.99  # of the plan's own time: if the plan fits, only faster options are advice
# Memory that an estimate of the activations must leave, as a share of them, by remat policy; below it they are counted
# exactly, for at most COUNTED options, and for the first option if the plan fits.
SPARE, COUNTED = {"none": 0.015, "dots": 0.03, "full": 0.07}, 2


SURELY = 0.4  # of the activations by estimate: what lacks more fits by no exact count either, what spares more does


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
    ways = tuple(iterate_advice(static, machine, efficiency, most))
    if ways or is_usable(static, machine):
        return ways
    return _closest_to_fitting(static, _list_options(static, machine), machine, efficiency, most)


def iterate_advice(static: Static, machine: Machine, efficiency: Efficiency, most: int = 6) -> Iterator[Advice]:
    """The options of `advise_changes` that fit, each accounted for when it is asked for."""
    plan_s, usable = expected_s(static, machine, efficiency), is_usable(static, machine)
    kinds_found, counted = set[frozenset[str]](), 0

    def count_changes(option: Static) -> int:
        return len(levers.changed_keys(static, option))

    for option, seconds in rank_by_time(_list_options(static, machine), static, machine, efficiency, count_changes):
        if len(kinds_found) == most or (usable and seconds > WORTH * plan_s):
            return
        kinds = frozenset(map(levers.kind_of_change, levers.changed_keys(static, option)))
        if not kinds or kinds in kinds_found:
            continue
        needed, exact = estimate_memory(option, machine), option.layout.stage > 1
        spare = 0.0 if exact else SPARE[option.model.remat] * needed.components["activations"]
        near = 0 <= needed.margin_bytes < spare and counted < COUNTED  # a count is a trace of the whole model
        if near or (
            usable and not (kinds_found or exact) and needed.margin_bytes >= spare
        ):  # the first is printed as a command
            needed, exact, spare, counted = step_memory(option, machine), True, 0.0, counted + near
        if needed.margin_bytes >= spare:
            kinds_found.add(kinds)
            warnings = (*trainer_verdict(option)[1], *_attention_notes(option, machine))
            yield _make_advice(static, option, needed, exact, seconds, plan_s, warnings)


def is_usable(static: Static, machine: Machine) -> bool:
    """Whether a step fits the device, counted exactly, and the trainer takes its layout."""
    return trainer_verdict(static)[0] and fits_exactly(static, machine)


def fits_exactly(static: Static, machine: Machine) -> bool:
    """Whether a step fits the device. The whole model is traced only where an estimate leaves it open.

    Estimates are within some 15 % of the activations (tests/plan/memory/test_saved_activations.py).
    """
    if held_bytes(static) > usable_bytes(machine.chip):
        return False
    estimated = estimate_memory(static, machine)
    if abs(estimated.margin_bytes) > SURELY * estimated.components["activations"]:
        return estimated.fits
    return step_memory(static, machine).fits


def list_nearly_fitting(static: Static, machine: Machine, efficiency: Efficiency, most: int = 6) -> tuple[Advice, ...]:
    """Options that seem to fit by so little that no advice is made of them; () where none does."""
    options = filter(Holdings(machine).seems_to_fit, _list_options(static, machine))
    return _closest_to_fitting(static, options, machine, efficiency, most)


def list_fastest(static: Static, machine: Machine, efficiency: Efficiency, asked: dict[str, int]) -> Iterator[Static]:
    """The options on meshes that have the sizes `asked` of some axes, as far as they seem to fit, fastest first.

    Where none does, the one that exceeds memory by the least.
    """
    options = [
        option
        for option in list_options(levers.with_least_rows(static, machine_platform(machine)), machine, SHORT)
        if all(getattr(option.layout, axis) == size for axis, size in asked.items()) and trainer_verdict(option)[0]
    ]
    ranked = (option for option, _ in rank_by_time(options, static, machine, efficiency))
    if not (fastest := list(itertools.islice(ranked, 1))):
        return iter(sorted(options, key=lambda option: -estimate_memory(option, machine).margin_bytes)[:1])
    return itertools.chain(fastest, ranked)


@functools.lru_cache(maxsize=1)
def _list_options(static: Static, machine: Machine) -> tuple[Static, ...]:
    """The options to compare with a plan; with more devices a sequence where neither it nor anything else fits."""
    lean = levers.with_least_rows(static, machine_platform(machine))
    options = tuple(list_options(lean, machine))
    if is_usable(static, machine) or any(map(Holdings(machine).seems_to_fit, reversed(options))):
        return options
    return tuple(dict.fromkeys([*options, *list_options(lean, machine, SHORT)]))


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


def _closest_to_fitting(
    static: Static, options: Iterable[Static], machine: Machine, efficiency: Efficiency, most: int
) -> tuple[Advice, ...]:
    """The options that exceed memory by the least, one of each kind."""
    holdings, by_kind = Holdings(machine), dict[frozenset[str], list[tuple[int, Static]]]()
    for i, option in enumerate(options):
        kinds = frozenset(map(levers.kind_of_change, levers.changed_keys(static, option)))
        if kinds and trainer_verdict(option)[0]:
            by_kind.setdefault(kinds, []).append((i, option))
    plan_s, ways = expected_s(static, machine, efficiency), []
    for option in itertools.islice(_by_least_memory(list(by_kind.values()), holdings), most):
        step_s, needed = expected_s(option, machine, efficiency), estimate_memory(option, machine)
        ways.append(_make_advice(static, option, needed, False, step_s, plan_s, trainer_verdict(option)[1]))
    return tuple(ways)


def _by_least_memory(groups: list[list[tuple[int, Static]]], holdings: Holdings) -> Iterator[Static]:
    """The option of each group that needs the least by estimate, and of equal ones the first; least first.

    An option is counted more closely when none has less by what is known of it: `least_bytes` first.
    """
    closer: tuple[Callable[[Static], float], ...] = (
        holdings.held_bytes,
        holdings.untraced_bytes,
        lambda option: estimate_memory(option, holdings.machine).total,
    )
    ahead = [
        (holdings.least_bytes(option), 0, i, group, option) for group, own in enumerate(groups) for i, option in own
    ]
    heapq.heapify(ahead)
    found = set[int]()
    while ahead and len(found) < len(groups):
        _, counted, i, group, option = heapq.heappop(ahead)
        if group in found:
            continue
        if counted == len(closer):
            found.add(group)
            yield option
        else:
            heapq.heappush(ahead, (closer[counted](option), counted + 1, i, group, option))
