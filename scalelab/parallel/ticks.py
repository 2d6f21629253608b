"""Pipeline schedules as tables: the operation of each stage at each tick, and the slots where its inputs wait.

With p stages, m micro-batches and v rounds (chunks of layers per stage; 1 except for `circular`), chunk c of stage s is
virtual stage c p + s. A tick is the forward or backward of one chunk for one micro-batch; a stage's output arrives
at the next tick. Schedules: `gpipe` (Huang et al. 2019), `1f1b` (Narayanan et al. 2021, fig. 4 top: a stage holds at
most p micro-batches), `circular` (ibid., section 2.2: interleaved stages, all forwards first).
"""

import functools
from typing import NamedTuple

import numpy as np

IDLE, FORWARD, BACKWARD = range(3)
StageOp = tuple[int, int, int]  # (FORWARD or BACKWARD, chunk, micro-batch)


class TickTable(NamedTuple):
    """Arrays [ticks, stages] of integers: the operation (`op`), its chunk and micro-batch.

    The arriving activation goes into slot `store`, then `op` takes its input from `slot`; the last of the `slots` + 1
    takes what nobody needs. An arriving gradient is always used at once.
    """

    op: np.ndarray
    chunk: np.ndarray
    microbatch: np.ndarray
    slot: np.ndarray
    store: np.ndarray
    slots: int

    @property
    def bubble(self) -> float:
        """Idle share of the ticks of all stages."""
        return float(np.mean(self.op == IDLE))


def predicted_bubble(stages: int, microbatches: int, rounds: int) -> float:
    """Idle share of the total time: (p - 1) / (v m + p - 1) (Narayanan et al. 2021, 2.2, there over the ideal time)."""
    return (stages - 1) / (rounds * microbatches + stages - 1)


def stage_operations(schedule: str, stage: int, stages: int, microbatches: int, rounds: int) -> list[StageOp]:
    """A stage's operations in order."""
    if schedule == "1f1b":
        ahead = min(microbatches, stages - stage)
        backwards = [(BACKWARD, 0, i) for i in range(microbatches)]
        ops: list[StageOp] = [(FORWARD, 0, i) for i in range(ahead)]
        for i in range(microbatches - ahead):
            ops += [backwards[i], (FORWARD, 0, ahead + i)]
        return ops + backwards[microbatches - ahead :]
    groups = [range(i, min(i + stages, microbatches)) for i in range(0, microbatches, stages)]
    forward: list[StageOp] = [(FORWARD, c, i) for group in groups for c in range(rounds) for i in group]
    return forward + [(BACKWARD, c, i) for _, c, i in reversed(forward)]


@functools.cache
def make_tick_table(schedule: str, stages: int, microbatches: int, rounds: int = 1, backward: bool = True) -> TickTable:
    """The schedule with every operation as early as its stage and its inputs allow."""
    lists = [stage_operations(schedule, s, stages, microbatches, rounds) for s in range(stages)]
    if not backward:
        lists = [[op for op in ops if op[0] == FORWARD] for ops in lists]
    tick_of = _when(lists, stages * rounds)
    shape = (max(tick_of.values()) + 1, stages)
    op, chunk, microbatch = (np.zeros(shape, np.int32) for _ in range(3))
    spans: list[list[tuple[int, int]]] = [[] for _ in range(stages)]  # an input's slot is busy from arrival to last use

    def arrival(u: int, i: int) -> int:
        return tick_of[FORWARD, u - 1, i] + 1 if u else tick_of[FORWARD, u, i]

    for (kind, u, i), tick in tick_of.items():
        s = u % stages
        op[tick, s], chunk[tick, s], microbatch[tick, s] = kind, u // stages, i
        if kind == FORWARD:
            spans[s].append((arrival(u, i), tick_of[BACKWARD, u, i] if backward else tick))
        assert kind == FORWARD or u == stages * rounds - 1 or tick_of[BACKWARD, u + 1, i] + 1 == tick
    slot_of = [_slots(stage) for stage in spans]
    slots = 1 + max(slot for stage in slot_of for slot in stage.values())
    slot, store = (np.full(shape, slots, np.int32) for _ in range(2))
    for (_, u, i), tick in tick_of.items():
        slot[tick, u % stages] = slot_of[u % stages][arrival(u, i)]
        if u:
            store[arrival(u, i), u % stages] = slot_of[u % stages][arrival(u, i)]
    return TickTable(op, chunk, microbatch, slot, store, slots)


def _when(lists: list[list[StageOp]], virtual: int) -> dict[StageOp, int]:
    """{(kind, virtual stage, micro-batch): tick}."""
    stages, tick_of = len(lists), dict[StageOp, int]()
    left, tick = [ops[::-1] for ops in lists], 0
    while any(left):
        for s, ops in enumerate(left):
            if not ops:
                continue
            kind, c, i = ops[-1]
            u = c * stages + s
            needs = (
                (kind, u - 1, i) if kind == FORWARD else (BACKWARD, u + 1, i) if u < virtual - 1 else (FORWARD, u, i)
            )
            if needs[1] < 0 or tick_of.get(needs, tick) < tick:
                tick_of[kind, u, i] = tick
                ops.pop()
        tick += 1
    return tick_of


def _slots(spans: list[tuple[int, int]]) -> dict[int, int]:
    """{first tick: slot} of spans (first, last); each takes the lowest slot that is free throughout."""
    busy_until: list[int] = []
    slot_by_start: dict[int, int] = {}
    for first, last in sorted(spans):
        slot = next((k for k, end in enumerate(busy_until) if end < first), len(busy_until))
        busy_until[slot : slot + 1] = [last]
        slot_by_start[first] = slot
    return slot_by_start
