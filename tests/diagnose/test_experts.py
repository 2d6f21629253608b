"""Dead experts and collapsed routers, on doctored records."""

import dataclasses

from scalelab.diagnose.rank import diagnose
from scalelab.diagnose.verdict import Gap
from tests.diagnose.evidences import STEPS, healthy
from tests.diagnose.test_alarms import alarm

EXPERTS = {"model__block": "experts", "model__n_experts": 4}


def run(*events, **changes):
    """A healthy run with four experts and these events."""
    return dataclasses.replace(healthy(**EXPERTS | changes), events=list(events))


def dead(step, *names):
    return alarm(step, "dead_expert", "block 1, expert 3: no token", of="idle", names=list(names), window=100)


def few(step, *names):
    return alarm(step, "router_collapsed", "block 1: the load is as if of 2.1", of="few", names=list(names), window=100)


def back(step, of, *names):
    return alarm(step, "experts_back", of=of, names=list(names))


def verdicts(evidence):
    return diagnose(evidence).verdicts


def with_shares(evidence, share):
    """`evidence` of a run that no guard watched, whose last block has these loads over the mean."""
    layers = [line | {"expert_share/1": share(line["step"])} for line in evidence.layers]
    return dataclasses.replace(evidence, layers=layers, values=evidence.values | {"guard.policy": "off"})


def test_a_dead_expert_is_named_with_its_block_unless_it_takes_tokens_again():
    (verdict,) = verdicts(run(dead(180, "1.3")))
    assert (verdict.cause, verdict.kind, verdict.steps) == ("dead_expert", "test", (80, STEPS))
    assert "block 1, expert 3: no token; none since, to step 400" in verdict.evidence
    assert "left out of the choice" in verdict.knob
    assert verdicts(run(dead(180, "1.3"), back(260, "idle", "1.3"))) == []
    (verdict,) = verdicts(run(dead(180, "1.3"), back(260, "idle", "1.3"), dead(390, "1.3"), model__balance_rate=0.0))
    assert verdict.steps == (290, STEPS) and verdict.knob == "model.balance_rate=1e-3"


def test_a_collapsed_router_is_named_alone_in_its_block():
    (verdict,) = verdicts(run(few(180, "1"), dead(180, "1.3", "1.2")))
    assert verdict.cause == "router_collapsed" and "as if of 2.1" in verdict.evidence
    assert [v.cause for v in verdicts(run(few(180, "1"), dead(180, "0.3")))] == ["router_collapsed", "dead_expert"]
    assert verdicts(run(few(180, "1"), back(260, "few", "1"))) == []
    (verdict,) = verdicts(run(alarm(120, "router_collapsed", "logits", of="loud", names=["0"], window=100)))
    assert verdict.knob.startswith("model.router_z_weight=1e-3")


def test_without_the_guard_layers_are_looked_at_and_without_both_it_is_a_gap():
    even, one = [1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 1.0, 0.0]
    assert verdicts(with_shares(run(), lambda step: even)) == []
    (verdict,) = verdicts(with_shares(run(), lambda step: one))
    assert (verdict.cause, verdict.kind) == ("dead_expert", "signature") and "experts 3: no token" in verdict.evidence
    assert verdicts(with_shares(run(), lambda step: one if step != 390 else even)) == []
    (verdict,) = verdicts(with_shares(run(), lambda step: [2.0, 2.0, 0.0, 0.0]))
    assert verdict.cause == "router_collapsed" and "as if of 2 of 4 experts" in verdict.evidence
    blind = diagnose(run(guard__policy="off"))
    assert {gap.cause for gap in blind.gaps if isinstance(gap, Gap)} >= {"dead_expert", "router_collapsed"}


def test_a_run_without_experts_is_not_asked():
    answer = diagnose(healthy())
    assert not [what for what in answer.judged if "expert" in what] and not [g for g in answer.gaps if "expert" in g[0]]
    assert {"each expert takes tokens", "routers spread tokens over the experts"} <= set(diagnose(run()).judged)
