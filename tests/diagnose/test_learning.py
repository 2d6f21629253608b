"""The course of losses alone, of runs that others trained: what is named, and when it is silent."""

import dataclasses
import json
import math
import pathlib
import types

import numpy as np
import pytest

from scalelab.diagnose import rank
from scalelab.diagnose.checks.course import learning
from scalelab.diagnose.checks.foreign import metrics_evidence
from scalelab.diagnose.verdict import Verdict

STEPS, VOCAB = np.arange(0, 2000, 5), 32_000
GUESS = math.log(VOCAB)


def healthy(rng, steps=STEPS):
    """Loss of an ordinary run: an exponential start, then a power law, with noise of a batch."""
    return (
        2.8 + (GUESS - 2.8) * np.exp(-steps / 120) + 0.6 * (1 + steps / 200) ** -0.5 + rng.normal(0, 0.03, len(steps))
    )


def cosine(steps=STEPS, peak=3e-4):
    return peak * np.minimum(1, (steps + 1) / 100) * (0.1 + 0.45 * (1 + np.cos(np.pi * steps / 2000)))


def causes(loss, held_out=None, lr=None, norms=None, vocab=VOCAB):
    """Names of what is found in a run of these values, the likeliest first."""
    lr = cosine() if lr is None else lr
    norms = np.full(len(STEPS), 0.5) if norms is None else norms
    lines = [
        {"step": int(step), "train_loss": float(value), "lr": float(rate), "grad_norm": float(norm)}
        for step, value, rate, norm in zip(STEPS, loss, lr, norms, strict=True)
    ]
    if held_out is not None:
        lines += [
            {"step": int(step), "val_loss": float(held_out[i])} for i, step in enumerate(STEPS) if step % 100 == 0
        ]
    evidence = metrics_evidence(lines, pathlib.Path("theirs"), {"model.vocab_size": vocab})
    return [verdict.cause for verdict in rank.diagnose(evidence).verdicts]


@pytest.fixture
def rng():
    return np.random.default_rng(4)


@pytest.mark.full
def test_an_ordinary_run_has_no_cause_on_fifty_draws():
    found = [
        causes(loss := healthy(r := np.random.default_rng(seed)), loss + r.normal(0.05, 0.01, 400))
        for seed in range(50)
    ]
    assert [each for each in found if each] == []


@pytest.mark.parametrize("level", [GUESS, 7.3, 4.0])
def test_a_loss_that_stands_still_is_named_where_a_model_would_be_lower(rng, level):
    loss = level + (GUESS - level) * np.exp(-STEPS / 30) + rng.normal(0, 0.02, len(STEPS))
    assert causes(loss) == (["not_learning"] if level > 0.62 * GUESS else [])


def test_one_value_at_every_line_is_named_at_any_level():
    assert causes(np.full(len(STEPS), 2.0)) == ["not_learning"]


def test_a_rate_of_0_is_the_cause_or_the_log_is_wrong(rng):
    none = np.zeros(len(STEPS))
    assert causes(GUESS + rng.normal(0, 0.01, len(STEPS)), lr=none) == ["lr_too_low"]
    assert causes(healthy(rng), lr=none) == ["log_wrong"]


def test_a_validation_loss_that_rises_or_stays_while_the_other_falls_is_too_many_epochs(rng):
    loss = healthy(rng)
    assert causes(loss - STEPS / 900, loss + np.maximum(0, (STEPS - 600) / 700)) == ["repeated_data"]
    assert causes(loss - 0.25 * (STEPS // 500), loss + 0.05) == ["repeated_data"]
    assert causes(loss, loss + 0.5) == []  # a gap that does not grow: another text


def test_a_loss_of_nearly_0_on_held_out_text_is_a_leak_but_not_with_few_tokens(rng):
    loss = np.maximum(0.02, healthy(rng) - STEPS / 400)
    assert causes(loss, loss) == ["mask_leak"]
    assert causes(np.maximum(0.02, 4 - STEPS / 400), np.maximum(0.02, 4 - STEPS / 400), vocab=64) == []


def test_a_pattern_that_returns_is_the_order_of_the_data_unless_the_rate_returns_too(rng):
    wave = 0.35 * np.sin(2 * np.pi * STEPS / 250)
    assert causes(healthy(rng) + wave) == ["not_shuffled"]
    restarts = 3e-4 * (0.1 + 0.45 * (1 + np.cos(np.pi * (STEPS % 250) / 250)))
    assert causes(healthy(rng) + wave, lr=restarts) == []


@pytest.mark.parametrize(
    ("level", "falls", "found"),
    [(5.2, 0.0, ["not_learning"]), (5.2, 0.1, ["not_learning"]), (3.2, 0.0, []), (2.5, 0.0, []), (5.2, 1.4, [])],
)
def test_a_loss_above_the_entropy_of_its_tokens_is_no_learning_unless_it_still_falls(rng, level, falls, found):
    shares = np.r_[[0.2, 0.1, 0.1], np.full(30, 0.02)]  # of 33 kinds of tokens: 3.13 nats
    entropy = -(shares * np.log(shares)).sum()
    windows = rng.choice(33, (64, 257), p=shares / shares.sum())
    assert 3.1 < entropy < 3.2
    lines = [
        {"step": step, "train_loss": level + 3 * math.exp(-step / 50) - falls * step / 400, "tokens": 2048 * step}
        for step in range(10, 401, 10)
    ]
    evidence = metrics_evidence(lines, pathlib.Path("ours"), {"model.vocab_size": 256})
    evidence = dataclasses.replace(evidence, data=types.SimpleNamespace(windows=windows))
    verdicts = [each.cause for each in learning.check_frequencies(evidence) if isinstance(each, Verdict)]
    assert verdicts == found


@pytest.mark.parametrize(("gap", "found"), [(3.0, ["val_of_another_kind"]), (0.5, [])])
def test_a_validation_loss_far_above_the_other_from_the_start_is_of_another_kind(rng, gap, found):
    loss = healthy(rng)
    assert causes(loss, loss + gap) == found


def test_runs_that_a_real_trainer_wrote_are_silent():
    files = pathlib.Path(__file__).parents[1] / "foreign" / "files"
    for state in sorted(files.glob("trainer_ladder/*/*/trainer_state.json")):
        history = json.loads(state.read_text())["log_history"]
        lines = [
            {"step": row["step"]}
            | {
                ours: row[theirs]
                for theirs, ours in (("loss", "train_loss"), ("eval_loss", "val_loss"))
                if theirs in row
            }
            for row in history
        ]
        evidence = metrics_evidence(lines, pathlib.Path("theirs"), {"model.vocab_size": 256})
        found = {verdict.cause for verdict in rank.diagnose(evidence).verdicts}
        assert not found & {"not_learning", "repeated_data", "mask_leak", "not_shuffled"}, (state.parent.name, found)
