"""Options that the trainer takes and that seem to fit, fastest first, each accounted for when its turn comes.

A bound that is cheap keeps most from their turn: a step takes no less than its products and passes with all sequences
of a device at once and weights sent once, and what lies on a device between steps has to fit. The order is that of all
options accounted for (tests/plan/search/test_by_time.py).
"""

import functools
import heapq
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator

from scalelab.config import Layout, Static, with_fields
from scalelab.hardware.chips import compute_capability
from scalelab.hardware.device_memory import usable_bytes
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory import estimated_activations
from scalelab.plan.memory.held import held_bytes, total_bytes
from scalelab.plan.memory.memory import Memory, memory_on_backend, untraced_bytes
from scalelab.plan.search import levers
from scalelab.plan.search.candidates import WAVES, micro_batch_sizes, trainer_verdict
from scalelab.plan.step.device_share import pipeline_bubble
from scalelab.plan.step.efficiency import Efficiency, machine_platform
from scalelab.plan.step.operations import step_operations
from scalelab.plan.step.time import expected_of, expected_s, transfer_s
from scalelab.plan.step.traffic import step_transfers
from scalelab.sharding import Capability

TWICE = 50  # of the fastest options: those that are timed with either way to multiply experts
# Of what is taken for a bound. Experts' rows are rounded to blocks, so a larger micro-batch may lose a little.
SURE, SURE_WITH_EXPERTS = 1 - 1e-9, 0.95
TIGHT = 0.5  # of a device's memory: options that hold more are counted closely before they are timed
Ranked = tuple[float, tuple[float, ...], Static]  # seconds, place among all options, option


def rank_by_time(
    options: Iterable[Static],
    asked: Static,
    machine: Machine,
    efficiency: Efficiency,
    count_changes: Callable[[Static], int] = lambda option: 0,
) -> Iterator[tuple[Static, float]]:
    """(option, seconds of a full step) of options that the trainer takes, with micro-batches that they seem to hold.

    The TWICE fastest also with experts multiplied as `asked`, though what that needs is not counted yet. Of equally
    fast ones that with the fewest changes comes first, then the first of the `options`.
    """
    options, way = list(options), asked.model.expert_products
    ranked: Iterator[Ranked] = _rank_sizes(options, machine, efficiency)
    if any(option.model.expert_products != way for option in options):
        ranked = _merge_twice(ranked, way, machine, efficiency)
    for seconds, equal in itertools.groupby(ranked, key=lambda entry: entry[0]):
        for _, _, option in sorted(equal, key=lambda entry: (count_changes(entry[2]), entry[1])):
            yield option, seconds


def _merge_twice(ranked: Iterator[Ranked], way: str, machine: Machine, efficiency: Efficiency) -> Iterator[Ranked]:
    """`ranked`, with the times of its first TWICE with experts multiplied the other `way`."""
    first, others = list(itertools.islice(ranked, TWICE)), list[Ranked]()
    for i, (_, _, option) in enumerate(first):
        other = levers.with_products(option, way)
        others.append((full_step_s(other, machine, efficiency), (math.inf, i), other))
    by_seconds = operator.itemgetter(0)
    yield from heapq.merge(sorted(others, key=by_seconds), itertools.chain(first, ranked), key=by_seconds)


def _rank_sizes(options: list[Static], machine: Machine, efficiency: Efficiency) -> Iterator[Ranked]:
    """Those of `rank_by_time` as their memory seems to hold them, by time and place."""
    holdings, bounds = Holdings(machine), _Bounds(machine, efficiency)
    groups: dict[tuple[str, Layout], list[tuple[int, Static]]] = {}
    for i, option in enumerate(options):
        if holdings.least_bytes(option) <= holdings.capacity:
            groups.setdefault(_busy_key(option), []).append((i, option))
    alike = [group for group in groups.values() if holdings.any_may_fit([option for _, option in group])]
    ahead = [(bounds.busy_s(option), i, False, option) for group in alike for i, option in group]
    heapq.heapify(ahead)
    timed: list[tuple[float, int, Static]] = []
    place: dict[Static, tuple[int, int]] = {}
    while ahead or timed:
        if timed and not (ahead and ahead[0][0] <= timed[0][0]):  # nothing is as fast that is still to come
            seconds, equal = timed[0][0], []
            while timed and timed[0][0] == seconds:
                equal.append(heapq.heappop(timed)[2])
            yield from ((seconds, place[option], option) for option in sorted(equal, key=place.__getitem__))
            continue
        _, i, sends, option = heapq.heappop(ahead)
        if not sends:
            if holdings.may_fit(option):
                heapq.heappush(ahead, (bounds.least_s(option), i, True, option))
            continue
        if not holdings.seems_to_fit(option):
            continue
        for j, size in enumerate(micro_batch_sizes(option, estimate_memory(option, machine))):
            if size not in place:
                heapq.heappush(timed, (full_step_s(size, machine, efficiency), len(place), size))
            place[size] = min(place.get(size, (i, j)), (i, j))


class _Bounds:
    """Seconds that no micro-batch gets an option below: what many options share."""

    def __init__(self, machine: Machine, efficiency: Efficiency) -> None:
        self.machine, self.efficiency = machine, efficiency
        self.busy: dict[tuple[str, Layout], float] = {}
        self.weights: dict[Layout, tuple[float, float]] = {}

    def busy_s(self, option: Static) -> float:
        """Of products and passes, and of what is sent between the devices that split a block's work."""
        layout, key = option.layout, _busy_key(option)
        rows, alike = option.global_batch // layout.batch_parts, key[1]
        if key not in self.busy:
            whole = with_fields(option, layout=alike, accumulate=1, batch_ramp=())
            ops = step_operations(whole, self.machine)
            ops = tuple(op for op in ops if op.part != "update" and not op.name.endswith("rounding"))
            moves = tuple(move for move in step_transfers(whole) if move.splits_work)
            seconds = expected_of(whole, self.machine, self.efficiency, ops, moves, _least_idle(option))
            self.busy[key] = seconds
        one_size = rows == 1 or (option.accumulate == 1 and layout.stage == 1)  # all sequences at once, as bounded
        return self.busy[key] * (SURE_WITH_EXPERTS if option.model.n_experts and not one_size else SURE)

    def least_s(self, option: Static) -> float:
        """`busy_s` and what of weights and gradients, each sent once, no computing hides."""
        layout = with_fields(option.layout, microbatches=1)
        if layout not in self.weights:
            whole, at = with_fields(option, layout=layout, accumulate=1, batch_ramp=()), self.efficiency
            share = at.network.expected * at.measured.expected
            seconds = {True: 0.0, False: 0.0}
            for move in step_transfers(whole):
                if not move.splits_work:
                    seconds[move.hidden] += SURE * transfer_s(whole, self.machine, move, share)
            self.weights[layout] = seconds[False], seconds[True]
        busy, (waited, hideable) = self.busy_s(option), self.weights[layout]
        return busy + waited + hideable - min(self.efficiency.overlap.expected * hideable, busy)


def _least_idle(option: Static) -> float:
    """Idle ends of an option's pipeline over its busy time, with the most micro-batches it may have; 0 without one.

    A micro-batch has a sequence at least: a replica of few of them fills few, and its pipeline idles longer.
    """
    layout = option.layout
    if layout.stage == 1:
        return 0.0
    most = max(layout.microbatches, min(WAVES * layout.stage, option.global_batch // layout.batch_parts))
    return pipeline_bubble(with_fields(layout, microbatches=most), option.model.n_layers).over_ideal


def _busy_key(option: Static) -> tuple[str, Layout]:
    """What `_Bounds.busy_s` depends on among the options of one search."""
    layout = option.layout
    return option.model.remat, with_fields(layout, data=layout.data * layout.fsdp, fsdp=1, zero=3, microbatches=1)


@functools.cache
def _full_step_s(option: Static, machine: Machine, efficiency: Efficiency) -> float:
    return expected_s(option, machine, efficiency)


def full_step_s(option: Static, machine: Machine, efficiency: Efficiency) -> float:
    """Seconds of a step after the batch's warm-up, cached: a plan's searches ask for the same options."""
    return _full_step_s(with_fields(option, batch_ramp=()), machine, efficiency)


class Holdings:
    """What the options of one search hold: many share it, and most that don't fit hold too much without a trace."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.capacity = machine, usable_bytes(machine.chip)
        self.known: dict[tuple[Layout, bool], int] = {}
        self.answers: dict[Static, bool] = {}
        self.totals: tuple[int, int, int] | None = None

    def least_bytes(self, option: Static) -> float:
        """Bytes of state and gradients over all devices that may split them: no layout has less on a device.

        In a pipeline ZeRO 1 and 2 leave parameters whole along fsdp; micro-batches are summed beside each other.
        """
        layout = option.layout
        if self.totals is None:
            self.totals = total_bytes(option)
        of_parameters, of_gradients, rest = self.totals
        everywhere = layout.tensor * layout.expert * layout.stage
        parameters = layout.fsdp if layout.zero >= (1 if layout.stage == 1 else 3) else 1
        by_fsdp = of_parameters / parameters + (rest + of_gradients * (1 + (option.accumulate > 1))) / layout.fsdp
        return by_fsdp / everywhere

    def held_bytes(self, option: Static) -> int:
        """`memory.held_bytes` of an option, without its batch."""
        layout = with_fields(option.layout, sequence=False, microbatches=1, expert_buffer=0.0)
        key = layout, option.accumulate > 1
        if key not in self.known:
            self.known[key] = held_bytes(option)
        return self.known[key]

    def untraced_bytes(self, option: Static) -> int:
        """What of an option's estimate needs no trace."""
        platform, capability = machine_platform(self.machine), compute_capability(self.machine.chip)
        return self.held_bytes(option) + untraced_bytes(option, platform, capability)

    def may_fit(self, option: Static) -> bool:
        """Whether the trainer takes an option, and the device holds what of its step needs no trace.

        Where little is held an estimate is asked at once.
        """
        if option not in self.answers:
            held = self.held_bytes(option) if self.least_bytes(option) <= self.capacity else math.inf
            small = held < TIGHT * self.capacity or (held <= self.capacity >= self.untraced_bytes(option))
            self.answers[option] = small and trainer_verdict(option)[0]
        return self.answers[option]

    def any_may_fit(self, options: list[Static]) -> bool:
        """Whether one of the options may fit; where the least one holds little it is taken to."""
        by_size = sorted(options, key=self.least_bytes)
        return self.least_bytes(by_size[0]) < TIGHT * self.capacity or any(map(self.may_fit, by_size))

    def seems_to_fit(self, option: Static) -> bool:
        """Whether an option may fit, and does with estimated activations."""
        return self.may_fit(option) and estimate_memory(option, self.machine).fits


def estimate_memory(option: Static, machine: Machine) -> Memory:
    """A step's memory with estimated activations: no trace of the whole model. A batch's warm-up changes none of it."""
    option, chip = with_fields(option, batch_ramp=()), machine.chip
    return _estimate_on(option, machine_platform(machine), usable_bytes(chip), compute_capability(chip))


@functools.cache
def _estimate_on(option: Static, backend: str, capacity: int, capability: Capability | None) -> Memory:
    """`estimate_memory`, cached: a plan's searches ask for the same options. Callers must not modify it."""
    count = estimated_activations.estimate_saved_activations
    return memory_on_backend(option, backend, capacity, 1, count, capability)


def count_accounted() -> int:
    """Options whose memory or time the searches of this process have accounted for: what a line of progress counts."""
    return _estimate_on.cache_info().misses + _full_step_s.cache_info().misses
