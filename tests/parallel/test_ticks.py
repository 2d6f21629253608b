"""Schedules by their table: order, bubble (a formula), what is held (a bound), and that every input is where it is
looked for."""

import numpy as np
import pytest

from scalelab.parallel.ticks import BACKWARD, FORWARD, make_tick_table, predicted_bubble

CASES = [("gpipe", p, m, 1) for p, m in [(2, 1), (2, 5), (4, 8), (8, 3)]]
CASES += [("1f1b", p, m, 1) for p, m in [(2, 1), (2, 5), (4, 3), (4, 8), (8, 32)]]
CASES += [("circular", p, m, v) for p, m, v in [(2, 4, 2), (4, 8, 3), (3, 6, 2)]]


def replay(schedule, stages, microbatches, rounds):
    """Run the table on a machine of slots: what each stage does when, with which input, and the most it holds at
    once."""
    t = make_tick_table(schedule, stages, microbatches, rounds)
    slots = [dict() for _ in range(stages)]  # slot -> (virtual stage, micro-batch) whose input lies there
    sent, returned, seen, most = {}, {}, [], 0
    for now in range(len(t.op)):
        arriving, back = sent, returned
        sent, returned = {}, {}
        for s in range(stages):
            if s in arriving and t.store[now, s] < t.slots:
                slots[s][t.store[now, s]] = arriving[s]
            u, i = t.chunk[now, s] * stages + s, t.microbatch[now, s]
            if t.op[now, s] == FORWARD:
                if u == 0:
                    slots[s][t.slot[now, s]] = (0, i)
                assert slots[s][t.slot[now, s]] == (u, i)
                sent[(s + 1) % stages] = (u + 1, i)
            if t.op[now, s] == BACKWARD:
                assert slots[s].pop(t.slot[now, s]) == (u, i)
                assert u == stages * rounds - 1 or back[s] == (u, i)
                returned[(s - 1) % stages] = (u - 1, i)
            seen += [(t.op[now, s], u, i)] if t.op[now, s] else []
            most = max(most, len(slots[s]))
    return seen, most


@pytest.mark.parametrize("case", CASES)
def test_every_chunk_runs_once_forward_and_once_backward_with_its_own_input(case):
    _, stages, microbatches, rounds = case
    seen, most = replay(*case)
    each = {(kind, u, i) for kind in (FORWARD, BACKWARD) for u in range(stages * rounds) for i in range(microbatches)}
    assert len(seen) == len(each) and set(seen) == each
    assert most <= make_tick_table(*case).slots


@pytest.mark.parametrize("case", CASES)
def test_idle_ticks_are_the_formulas(case):
    schedule, stages, microbatches, rounds = case
    assert make_tick_table(*case).bubble == pytest.approx(predicted_bubble(stages, microbatches, rounds))
    forward = make_tick_table(schedule, stages, microbatches, rounds, backward=False)
    assert len(forward.op) == rounds * microbatches + stages - 1


def test_published_bubbles():
    """Narayanan et al. 2021, section 2.2: (p-1)/m of the ideal time, and that over v when interleaved."""
    for v, ideal in ((1, 0.875), (4, 0.21875)):
        share = predicted_bubble(8, 8, v)
        assert share / (1 - share) == pytest.approx(ideal)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 32), (4, 3), (4, 64), (8, 16)])
def test_1f1b_holds_at_most_as_many_microbatches_as_there_are_stages(stages, microbatches):
    assert make_tick_table("1f1b", stages, microbatches).slots == min(stages, microbatches)
    assert make_tick_table("gpipe", stages, microbatches).slots == microbatches
    order = make_tick_table("1f1b", stages, microbatches).op
    assert np.all(np.sum(order == FORWARD, axis=0) == microbatches)
