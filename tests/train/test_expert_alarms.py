"""The guard's alarms on experts, on loads written by hand."""

import numpy as np
import pytest

from scalelab.numbers import routing
from scalelab.train.expert_alarms import MOST_EVENTS, ExpertAlarms
from scalelab.train.step.metrics import EXPERTS

STEPS, TOKENS = 400, 128  # tokens of an expert at a step, where the load is even


def loads(steps=STEPS):
    """An even load of a dense layer and two with four experts, two a token, and low logits."""
    load_nLE = np.full((steps, 3, 4), float(TOKENS))
    load_nLE[:, 0] = 0
    return load_nLE, np.full((steps, 3), 3.0)


def read(load_nLE, logit_nL, at_once=37, named=None):
    """(events, what is named at the end) of a run that reads so many steps at once."""
    alarms, events, names = ExpertAlarms(2, named), [], {}
    for step in range(0, len(load_nLE), at_once):
        part = {"load": load_nLE[step : step + at_once], "router_logit": logit_nL[step : step + at_once]}
        note = lambda at, signal, text, **fields: events.append((at, signal, text, fields))  # noqa: E731
        names = alarms.read(step, len(part["load"]), {EXPERTS: part}, note)
    return events, names


def test_an_even_load_and_a_model_without_experts_raise_nothing():
    assert read(*loads()) == ([], {"idle": [], "few": [], "loud": []})
    assert ExpertAlarms(2).read(0, 5, {}, pytest.fail) == {"idle": [], "few": [], "loud": []}


def test_an_expert_without_tokens_is_named_after_a_window_and_once_back_no_more():
    load, logit = loads()
    load[50:300, 2, 3] = 0
    events, named = read(load, logit)
    assert [(at, signal) for at, signal, *_ in events] == [(150, "dead_expert"), (301, "experts_back")]
    assert events[0][2] == "block 2, expert 3: no token, where an even load has 96 a step, for 100 steps"
    assert events[0][3] == {"of": "idle", "names": ["2.3"], "window": 100} and named["idle"] == []
    load[100, 2, 3] = 1  # a single token begins the window anew
    assert [at for at, *_ in read(load, logit)[0]] == [201, 301]


def test_small_batches_have_longer_windows():
    load, logit = loads()
    load /= 32  # 4 tokens of an expert
    load[:, 1, 0] = 0
    assert read(load, logit)[0][0][0] == -(-1000 // 4)


def test_a_load_with_few_and_logits_that_are_high_are_collapses():
    load, logit = loads()
    load[200:, 1] = [0, 250, 240, 22]
    logit[:, 2] = 31
    events, named = read(load, logit)
    assert [(at, signal, fields["of"]) for at, signal, _, fields in events] == [
        (100, "router_collapsed", "loud"), (300, "dead_expert", "idle"), (300, "router_collapsed", "few"),
    ]  # fmt: skip
    assert "block 2: router logits above 30 (now 31)" in events[0][2] and "2.32 of 4 experts" in events[2][2]
    assert named == {"idle": ["1.0"], "few": ["1"], "loud": ["2"]}


def test_a_resumed_run_does_not_name_again_and_many_events_end():
    load, logit = loads()
    load[:, 1, 0] = 0
    assert read(load, logit, named={"idle": ["1.0"]})[0] == []
    load, logit = np.ones((1000, 2, 200)) * TOKENS, np.zeros((1000, 2))
    for expert in range(200):
        load[expert : expert + 150, 0, expert] = 0  # each for itself is idle, and comes back
    events = read(load, logit)[0]
    assert len(events) == MOST_EVENTS and events[-1][2].endswith("further ones are not noted")


def test_effective_experts_are_those_of_the_entropy():
    load = np.array([[10, 10, 10, 10], [20, 20, 0, 0], [0, 0, 0, 0]], float)
    np.testing.assert_allclose(routing.effective_experts(load), [4, 2, np.nan])
    np.testing.assert_allclose(routing.spread(load, 2), [1, 0, np.nan], atol=1e-12)
    assert np.isnan(routing.spread(load, 4)).all()
