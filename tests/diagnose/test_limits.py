"""Values that bound the loss by themselves, by brute force beside the closed forms; and LRs of parts."""

import dataclasses

import numpy as np
import pytest

from scalelab.diagnose.checks.leaves import moved, rows
from scalelab.diagnose.checks.leaves.moved import check_moved
from scalelab.diagnose.checks.leaves.rows import check_features
from scalelab.diagnose.checks.settings import limits, rest
from scalelab.diagnose.checks.settings.limits import check_limits
from scalelab.diagnose.probes.leaves.saved import SavedStep
from tests.diagnose.evidences import ask, healthy


def found(check, evidence):
    return [(verdict.cause, verdict.knob, verdict.evidence) for verdict in ask(check, evidence)]


@pytest.mark.parametrize("changed", [{}, {"model__logit_softcap": 30.0}, {"model__attention_softcap": 50.0}])
def test_usual_values_have_no_verdict(changed):
    assert found(check_limits, healthy(**changed)) == []


def test_a_cap_of_the_logits_bounds_the_loss_as_the_best_logits_within_it_do():
    best = np.full(256, -2.0)
    best[0] = 2.0
    floor = np.log(np.exp(best).sum()) - 2.0
    ((cause, knob, text),) = found(check_limits, healthy(model__logit_softcap=2.0))
    assert cause == "setting_wrong" and "model.logit_softcap=30" in knob and f"below {floor:.3g} nats" in text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model__attention_softcap": 0.5}, "model.attention_softcap=0.5"),
        ({"model__norm_eps": 10.0}, "model.norm_eps=10"),
        ({"model__rope_theta": 2.0}, "model.rope_theta=2"),
        ({"schedule__warmup_steps": 390}, "schedule.warmup_steps=390"),
    ],
)
def test_other_values_that_bound_are_named_with_what_they_cost(changed, words):
    ((cause, _, text),) = found(check_limits, healthy(**changed))
    assert cause == "setting_wrong" and text.count(words) == 1


def test_eps_is_held_to_each_stream_that_a_norm_reads():
    """Streams of RMS 1 and 1.5: the median is far above an eps of 1.1, the first is below it."""
    ((cause, knob, text),) = found(check_limits, healthy(model__norm_eps=1.1))
    assert (cause, knob) == ("setting_wrong", "model.norm_eps=1e-6") and "the residual stream after block 0, 1:" in text
    for sound in ({"model__norm_eps": 0.9}, {"model__norm_eps": 1.1, "model__norm_place": "after"}):
        assert found(check_limits, healthy(**sound)) == [], "after: norms read what branches give"


def test_eps_is_held_to_the_embedding_that_the_first_norm_reads(monkeypatch):
    saved(monkeypatch, limits, {"params.embed.w": np.full((256, 32), 0.02, np.float32)})
    ((cause, _, text),) = found(check_limits, healthy(model__norm_eps=1e-3))
    assert cause == "setting_wrong" and "the embedding, 0.0004:" in text
    assert found(check_limits, healthy(model__norm_eps=1e-5)) == []


def saved(monkeypatch, module, *steps):
    listed = [
        SavedStep(i + 1, {"step": np.int32(i + 1), "skipped": np.int32(0)} | each) for i, each in enumerate(steps)
    ]
    monkeypatch.setattr(module, "read_saved_steps", lambda evidence: (listed, ""))


def test_a_rest_lr_far_below_its_own_is_named_by_how_far_it_takes_the_embedding(monkeypatch):
    table = {"params.embed.w": np.full((256, 32), 0.02, np.float32), "step": np.int32(400)}
    saved(monkeypatch, rest, table)
    muon = {"optim__name": "muon", "optim__peak_lr": 0.02, "optim__scale": "spectral"}
    ((cause, knob, text),) = found(rest.check_rest_lr, healthy(**muon, optim__rest_lr=1e-6))
    assert cause == "lr_too_low" and knob == "optim.rest_lr=0.003" and "1/3e+03 of its own" in text
    assert found(rest.check_rest_lr, healthy(**muon, optim__rest_lr=3e-3)) == []


def test_a_multiplier_of_a_group_is_named_if_the_group_stays_where_it_was(monkeypatch):
    saved(monkeypatch, rest, {"params.embed.w": np.full((256, 32), 0.02, np.float32)})
    ((cause, knob, _),) = found(rest.check_groups, healthy(optim__groups="embed=0.001"))
    assert cause == "lr_too_low" and knob.startswith("optim.groups")
    for sound in ("embed=0", "embed=0.5", "embed=0.1"):
        assert found(rest.check_groups, healthy(optim__groups=sound)) == []


def test_a_feature_that_a_matrix_never_reads_is_named(monkeypatch):
    rng, name = np.random.default_rng(0), "params.blocks.mlp.up.w"
    old = rng.normal(size=(2, 64, 176)).astype(np.float32)
    new = 0.99 * old + 0.01 * rng.normal(size=old.shape).astype(np.float32)
    evidence = healthy(model__d_model=64)
    saved(monkeypatch, rows, {name: old}, {name: new})
    assert found(check_features, evidence) == []
    new[1, [3, 9]] = np.float32(0.99) * old[1, [3, 9]]  # decay alone
    saved(monkeypatch, rows, {name: old}, {name: new})
    ((cause, _, text),) = found(check_features, dataclasses.replace(evidence))
    assert cause == "rows_stuck" and "layers/1/mlp/up/w" in text and "2 features" in text and "(3, 9, …)" in text


def test_a_learned_position_that_stands_still_is_named_and_one_beyond_most_documents_is_not(monkeypatch):
    rng = np.random.default_rng(0)
    old = rng.normal(size=(64, 16)).astype(np.float32)
    new, name = 0.99 * old + 0.01 * rng.normal(size=old.shape).astype(np.float32), "params.positions.w"
    learned = {"model__position": "learned", "model__seq_len": 64}
    saved(monkeypatch, moved, {name: old}, {name: new})
    assert found(check_moved, healthy(**learned)) == []
    new[40:] = np.float32(0.99) * old[40:]  # decay alone
    ((cause, _, text),) = found(check_moved, healthy(**learned))
    assert cause == "rows_stuck" and "positions/w[position 40]" in text and "24 of the 64 rows" in text
    assert found(check_moved, healthy(**learned, data__documents="mask")) == [], "documents may be shorter"
