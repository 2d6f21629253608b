"""Pipeline schedules as tables: what each stage does at each tick, and where what it needs lies meanwhile.

With p stages, m micro-batches and v rounds (chunks of layers a stage; 1 but for `circular`) chunk c of stage s is virtual
stage c p + s. A tick is the forward or the backward of one chunk for one micro-batch; what a stage sends arrives
with the next tick. Schedules: `gpipe` (Huang et al. 2019), `1f1b` (Narayanan et al. 2021, fig. 4 top: a stage holds at most
p micro-batches), `circular` (ibid., section 2.2: interleaved stages, all forwards first).
"""

import functools
from typing import NamedTuple

import numpy as np

IDLE, FORWARD, BACKWARD = range(3)
StageOp = tuple[int, int, int]  # (FORWARD or BACKWARD, chunk, micro-batch)


class TickTable(NamedTuple):
    """Arrays [ticks, stages] of numbers: what to do (`op`), on which chunk and micro-batch.

    The arriving activation is put into slot `store`, then `op` takes its input from `slot`; the last of `slots` + 1 is for what
    nobody needs. An arriving gradient is always used at once.
    """

    op: np.ndarray
    chunk: np.ndarray
    microbatch: np.ndarray
    slot: np.ndarray
    store: np.ndarray
    slots: int

    @property
    def bubble(self) -> float:
        """Share of all ticks of all stages in which nothing is done."""
        return float(np.mean(self.op == IDLE))


def predicted_bubble(stages: int, microbatches: int, rounds: int) -> float:
    """(p - 1) / (v m + p - 1) of the total (Narayanan et al. 2021, section 2.2, there over the ideal time)."""
    return (stages - 1) / (rounds * microbatches + stages - 1)


def stage_operations(schedule: str, stage: int, stages: int, microbatches: int, rounds: int) -> list[StageOp]:
    """What a stage does, one after the other."""
    if schedule == "1f1b":
        ahead = min(microbatches, stages - stage)
        done = [(BACKWARD, 0, i) for i in range(microbatches)]
        ops: list[StageOp] = [(FORWARD, 0, i) for i in range(ahead)]
        for i in range(microbatches - ahead):
            ops += [done[i], (FORWARD, 0, ahead + i)]
        return ops + done[microbatches - ahead :]
    groups = [range(i, min(i + stages, microbatches)) for i in range(0, microbatches, stages)]
    forward: list[StageOp] = [(FORWARD, c, i) for group in groups for c in range(rounds) for i in group]
    return forward + [(BACKWARD, c, i) for _, c, i in reversed(forward)]


@functools.cache
def make_tick_table(schedule: str, stages: int, microbatches: int, rounds: int = 1, backward: bool = True) -> TickTable:
    """The schedule with every operation as early as its stage and what it waits for allow."""
    lists = [stage_operations(schedule, s, stages, microbatches, rounds) for s in range(stages)]
    if not backward:
        lists = [[op for op in ops if op[0] == FORWARD] for ops in lists]
    at = _when(lists, stages * rounds)
    shape = (max(at.values()) + 1, stages)
    op, chunk, microbatch = (np.zeros(shape, np.int32) for _ in range(3))
    spans: list[list[tuple[int, int]]] = [[] for _ in range(stages)]  # an input is held from arrival to last use

    def arrival(u: int, i: int) -> int:
        return at[FORWARD, u - 1, i] + 1 if u else at[FORWARD, u, i]

    for (kind, u, i), tick in at.items():
        s = u % stages
        op[tick, s], chunk[tick, s], microbatch[tick, s] = kind, u // stages, i
        if kind == FORWARD:
            spans[s].append((arrival(u, i), at[BACKWARD, u, i] if backward else tick))
        assert kind == FORWARD or u == stages * rounds - 1 or at[BACKWARD, u + 1, i] + 1 == tick
    held = [_slots(stage) for stage in spans]
    slots = 1 + max(slot for stage in held for slot in stage.values())
    slot, store = (np.full(shape, slots, np.int32) for _ in range(2))
    for (_, u, i), tick in at.items():
        slot[tick, u % stages] = held[u % stages][arrival(u, i)]
        if u:
            store[arrival(u, i), u % stages] = held[u % stages][arrival(u, i)]
    return TickTable(op, chunk, microbatch, slot, store, slots)


def _when(lists: list[list[StageOp]], virtual: int) -> dict[StageOp, int]:
    """{(kind, virtual stage, micro-batch): tick}."""
    stages, at = len(lists), dict[StageOp, int]()
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
            if needs[1] < 0 or at.get(needs, tick) < tick:
                at[kind, u, i] = tick
                ops.pop()
        tick += 1
    return at


def _slots(spans: list[tuple[int, int]]) -> dict[int, int]:
    """{first tick: slot} of spans (first, last), each in the lowest slot that is free for all of it."""
    busy_until: list[int] = []
    found: dict[int, int] = {}
    for first, last in sorted(spans):
        slot = next((k for k, end in enumerate(busy_until) if end < first), len(busy_until))
        busy_until[slot : slot + 1] = [last]
        found[first] = slot
    return found
