"""Schedules by their table: order, bubble (a formula), what is held (a bound), and that every input is where it is
looked for."""

import numpy as np
import pytest

from scalelab.parallel.stages.ticks import make_tick_table, predicted_bubble

CASES = [("gpipe", p, m, 1) for p, m in [(2, 1), (2, 5), (4, 8), (8, 3)]]
CASES += [("1f1b", p, m, 1) for p, m in [(2, 1), (2, 5), (4, 3), (4, 8), (8, 32)]]
CASES += [(name, p, m, v) for name in ("circular", "1f1b") for p, m, v in [(2, 4, 2), (4, 8, 3), (3, 6, 2)]]


def replay(schedule, stages, microbatches, rounds):
    """Run the table on a machine of slots: what each stage does when, with which input, and the most it holds at
    once."""
    t = make_tick_table(schedule, stages, microbatches, rounds)
    slots = [dict() for _ in range(stages)]  # slot -> (virtual stage, micro-batch) whose inputs lie there
    sent, returned, seen, most = {}, {}, [], 0
    for now in range(len(t.forward.runs)):
        arriving, back = sent, returned
        sent, returned = {}, {}
        for s in range(stages):
            u, i = t.forward.chunk[now, s] * stages + s, t.forward.microbatch[now, s]
            if t.forward.runs[now, s]:
                assert u == 0 or arriving[s] == (u, i)
                assert t.forward.slot[now, s] not in slots[s] and t.forward.slot[now, s] < t.slots
                slots[s][t.forward.slot[now, s]] = (u, i)
                sent[(s + 1) % stages] = (u + 1, i)
                seen.append(("forward", u, i))
            most = max(most, len(slots[s]))
            u, i = t.backward.chunk[now, s] * stages + s, t.backward.microbatch[now, s]
            if t.backward.runs[now, s]:
                assert slots[s].pop(t.backward.slot[now, s]) == (u, i)
                assert u == stages * rounds - 1 or back[s] == (u, i)
                returned[(s - 1) % stages] = (u - 1, i)
                seen.append(("backward", u, i))
    return seen, most


@pytest.mark.parametrize("case", CASES)
def test_every_chunk_runs_once_forward_and_once_backward_with_its_own_input(case):
    _, stages, microbatches, rounds = case
    seen, most = replay(*case)
    kinds = ("forward", "backward")
    each = {(kind, u, i) for kind in kinds for u in range(stages * rounds) for i in range(microbatches)}
    assert len(seen) == len(each) and set(seen) == each
    assert most == make_tick_table(*case).slots


@pytest.mark.parametrize("ratio", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("case", CASES)
def test_ticks_as_long_as_their_longest_stage_lose_the_formulas_share(case, ratio):
    """Stages wait for each other after every tick; a backward takes `ratio` forwards."""
    schedule, stages, microbatches, rounds = case
    table = make_tick_table(*case)
    took = np.max(table.forward.runs + ratio * table.backward.runs, axis=1).sum()
    idle = predicted_bubble(stages, microbatches, rounds)
    assert 1 - rounds * microbatches * (1 + ratio) / took == pytest.approx(idle)
    assert table.bubble == pytest.approx(idle)
    forward = make_tick_table(schedule, stages, microbatches, rounds, backward=False)
    assert len(forward.forward.runs) == rounds * microbatches + stages - 1 and not forward.backward.runs.any()


def test_published_bubbles():
    """Narayanan et al. 2021, section 2.2: (p-1)/m of the ideal time, and that over v when interleaved."""
    for v, ideal in ((1, 0.875), (4, 0.21875)):
        share = predicted_bubble(8, 8, v)
        assert share / (1 - share) == pytest.approx(ideal)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 32), (4, 3), (4, 64), (8, 16)])
def test_1f1b_holds_no_more_however_many_microbatches_there_are(stages, microbatches):
    """A tick in which both run costs 1F1B p - 1 micro-batches more than stages that don't wait for each other hold."""
    assert make_tick_table("1f1b", stages, microbatches).slots == min(2 * stages - 1, microbatches)
    assert make_tick_table("gpipe", stages, microbatches).slots == microbatches


@pytest.mark.parametrize(("stages", "rounds"), [(2, 2), (4, 2), (4, 4), (8, 3)])
def test_interleaved_1f1b_holds_no_more_however_many_microbatches_there_are(stages, rounds):
    few, many = (make_tick_table("1f1b", stages, stages * k, rounds).slots for k in (4, 16))
    assert few == many < 2 * stages * rounds
    assert make_tick_table("circular", stages, 4 * stages, rounds).slots == 4 * stages * rounds
