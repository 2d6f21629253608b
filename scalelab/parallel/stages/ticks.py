"""Pipeline schedules as tables: what each stage does at each tick, and the slots where block inputs wait.

With p stages, m micro-batches and v rounds (chunks of layers per stage), chunk c of stage s is virtual stage c p + s.
At a tick a stage runs the forward of one chunk, or the backward of one, or a forward and then a backward; what it
sends arrives at the next tick and is used there. So stages that wait for each other after every tick lose nothing:
p v - 1 ticks are forwards only, as many are backwards only, and in all others some stage does both.

Schedules: `gpipe` (Huang et al. 2019): all forwards, then all backwards; `circular`: the same with interleaved stages
(Narayanan et al. 2021, section 2.2). `1f1b` (ibid., fig. 4): a micro-batch's backward follows its last forward at once.
A stage then holds at most 2 p - 1 micro-batches, where stages that don't wait for each other hold p.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

Order = list[tuple[int, int]]  # (chunk, micro-batch)


class PipelineSchedule(NamedTuple):
    """Whether backwards begin before all forwards are over, and whether a stage may have several rounds."""

    alternates: bool
    has_rounds: bool


PIPELINE_SCHEDULES = {
    "gpipe": PipelineSchedule(alternates=False, has_rounds=False),
    "1f1b": PipelineSchedule(alternates=True, has_rounds=True),
    "circular": PipelineSchedule(alternates=False, has_rounds=True),
}


class Operations(NamedTuple):
    """Arrays [ticks, stages]: whether a stage has this operation, its chunk, its micro-batch, and its inputs' slot."""

    runs: Any  # of NumPy in a table, of jax in a stage
    chunk: Any
    microbatch: Any
    slot: Any


class TickTable(NamedTuple):
    """A stage's forwards and, after them in a tick, its backwards. The last of `slots` + 1 takes what nobody needs."""

    forward: Operations
    backward: Operations
    slots: int

    @property
    def bubble(self) -> float:
        """Idle share of the stages' time, whatever a forward and a backward take: each kind idles the same share."""
        each = [runs[runs.any(axis=1)] for runs in (self.forward.runs, self.backward.runs)]
        return 1 - float(np.mean(np.concatenate(each)))


def predicted_bubble(stages: int, microbatches: int, rounds: int) -> float:
    """Idle share of the total time: (p - 1) / (v m + p - 1) (Narayanan et al. 2021, 2.2, there over the ideal time)."""
    return (stages - 1) / (rounds * microbatches + stages - 1)


def count_ticks(schedule: str, stages: int, microbatches: int, rounds: int) -> int:
    """Ticks of a table with backwards: p v - 1 more than a forward alone takes in `1f1b`, twice as many elsewhere."""
    return _first_backward(schedule, stages, microbatches, rounds) + rounds * microbatches + stages - 1


def _first_backward(schedule: str, stages: int, microbatches: int, rounds: int) -> int:
    """Its tick: of the first micro-batch's last forward, or after all forwards."""
    return stages * rounds - 1 if PIPELINE_SCHEDULES[schedule].alternates else rounds * microbatches + stages - 1


def stage_orders(schedule: str, stages: int, microbatches: int, rounds: int) -> tuple[Order, Order]:
    """Forwards and backwards in the order of every stage; a stage begins them one tick after its neighbour."""
    groups = [range(i, min(i + stages, microbatches)) for i in range(0, microbatches, stages)]
    forward = [(c, i) for group in groups for c in range(rounds) for i in group]
    if PIPELINE_SCHEDULES[schedule].alternates:
        return forward, [(c, i) for group in groups for c in reversed(range(rounds)) for i in group]
    return forward, forward[::-1]


@functools.cache
def make_tick_table(schedule: str, stages: int, microbatches: int, rounds: int = 1, backward: bool = True) -> TickTable:
    """The table of a schedule; without `backward` nothing runs backward, and nothing waits in a slot."""
    forwards, backwards = stage_orders(schedule, stages, microbatches, rounds)
    first = _first_backward(schedule, stages, microbatches, rounds)
    ticks = count_ticks(schedule, stages, microbatches, rounds) - (0 if backward else first)
    starts = np.arange(stages), first + np.arange(stages)[::-1]
    spans = [_spans(forwards, int(starts[0][s]), backwards, int(starts[1][s])) for s in range(stages)]
    slot_of = [_slots(stage) if backward else {} for stage in spans]
    slots = 1 + max((slot for stage in slot_of for slot in stage.values()), default=-1)
    return TickTable(
        _operations(forwards, starts[0], ticks, slot_of, slots),
        _operations(backwards if backward else [], starts[1], ticks, slot_of, slots),
        slots,
    )


def _operations(order: Order, starts: np.ndarray, ticks: int, slot_of: list, slots: int) -> Operations:
    """The order of all stages, each from its own tick on."""
    shape = ticks, len(starts)
    chunk, microbatch = np.zeros((2, *shape), np.int32)
    table = Operations(np.zeros(shape, bool), chunk, microbatch, np.full(shape, slots, np.int32))
    for stage, start in enumerate(starts):
        for tick, work in enumerate(order, start):
            table.runs[tick, stage], table.slot[tick, stage] = True, slot_of[stage].get(work, slots)
            table.chunk[tick, stage], table.microbatch[tick, stage] = work
    return table


def _spans(forwards: Order, start: int, backwards: Order, back: int) -> dict[tuple[int, int], tuple[int, int]]:
    """{(chunk, micro-batch): (tick of its forward, tick of its backward)} of one stage."""
    last = {work: back + k for k, work in enumerate(backwards)}
    return {work: (start + k, last[work]) for k, work in enumerate(forwards)}


def _slots(spans: dict[tuple[int, int], tuple[int, int]]) -> dict[tuple[int, int], int]:
    """{(chunk, micro-batch): slot}; each takes the lowest slot that is free throughout its span."""
    busy_until: list[int] = []
    slot_of: dict[tuple[int, int], int] = {}
    for work, (first, last) in spans.items():  # by first tick
        slot = next((k for k, end in enumerate(busy_until) if end < first), len(busy_until))
        busy_until[slot : slot + 1] = [last]
        slot_of[work] = slot
    return slot_of
