"""Spikes that a batch makes or that the guard alone has seen, on doctored records."""

import dataclasses
import math
import types

import numpy as np

from scalelab.diagnose.checks.course.spikes import check_spikes
from scalelab.diagnose.rank import diagnose
from tests.diagnose import test_data_checks
from tests.diagnose.evidences import ask, causes, doctor, healthy


def alarm(step, signal, text="loss 6.2 nats above 4.1, 22 standard deviations above the window", **fields):
    return {"kind": "guard", "step": step, "signal": signal, "action": "none", "text": f"{text}; nothing done",
            "time": 0.0} | fields  # fmt: skip


def coarse(*events):
    """A healthy run with a line every ten steps, and these events."""
    run = healthy(log__every_steps=10)
    rows = [row for row in run.rows if row["step"] % 10 == 0]
    return dataclasses.replace(run, rows=rows, events=list(events))


def test_a_spike_between_two_lines_is_named_from_the_guard_alone():
    flags = [alarm(204, "loss", sigmas=22.0, to=206, value=6.2, threshold=4.1)]
    assert causes(coarse()) == []
    (verdict,) = diagnose(coarse(*flags, alarm(214, "benign", "the incident is benign"))).verdicts
    assert (verdict.cause, verdict.steps) == ("spike_benign", (204, 214)) and "loss 6.2 nats above" in verdict.evidence
    for shape in ("persistent", "growing"):
        (verdict,) = diagnose(coarse(*flags, alarm(390, shape, f"the incident is {shape}"))).verdicts
        assert (verdict.cause, verdict.steps) == ("spike_growing", (204, 390))
    assert causes(coarse(alarm(204, "grad_norm", sigmas=9.0, to=204))) == []  # a large gradient alone harms nothing


def test_alarms_of_the_start_and_lasting_ones_are_verdicts_with_their_steps():
    for event, cause, more in (
        (alarm(12, "large_updates", value=0.3, threshold=0.1), "lr_too_high", {}),
        (alarm(12, "large_updates", value=0.3, threshold=0.1), "warmup_too_short", {"schedule.warmup_steps": 0}),
        (alarm(12, "early", value=7.0, threshold=6.5), "lr_too_high", {}),
        (alarm(300, "risen", value=4.0, threshold=3.6), "spike_growing", {}),
        (alarm(300, "climbing", value=2.5, threshold=2.0), "climbing", {}),
        (alarm(300, "diverged"), "lr_too_high", {}),
    ):
        run = coarse(event)
        (verdict,) = diagnose(dataclasses.replace(run, values=run.values | more)).verdicts
        assert verdict.cause == cause and verdict.steps[0] == event["step"]
        assert f"the guard at step {event['step']}" in verdict.evidence


def test_odd_batches_of_the_steps_of_a_spike_make_it_a_matter_of_data():
    """The corpus is a bigram language; the batches of steps 204 to 206 are noise, and their losses fall slowly."""
    clean = test_data_checks.windows(1)
    noise = np.random.default_rng(3).integers(0, test_data_checks.V, (3, 16, test_data_checks.S))
    batches = types.SimpleNamespace(batch=lambda n: noise[n - 203] if 203 <= n <= 205 else clean[n % 300 :][:16])
    run = coarse(alarm(204, "loss", sigmas=22.0, to=206, value=6.2, threshold=4.1))
    data = dataclasses.replace(test_data_checks.sample(vocab_size=256), batches=batches)
    run = dataclasses.replace(run, data=data)
    (verdict,) = ask(check_spikes, run)
    assert (verdict.cause, verdict.kind) == ("data_outlier", "test")
    assert "the batches of 3 steps from 204 to 206 are usual tokens in random order" in verdict.evidence
    moved = coarse(alarm(304, "loss", sigmas=22.0, to=306, value=6.2, threshold=4.1))
    assert [v.cause for v in ask(check_spikes, dataclasses.replace(moved, data=run.data))] == ["spike_benign"]


def test_a_jump_after_an_ordinary_update_is_the_batch_s_however_slowly_the_weights_come_back():
    def jump(step, loss):
        return loss + math.exp((200 - step) / 12) if step >= 200 else loss

    (verdict,) = diagnose(doctor(healthy(), "train_loss", jump)).verdicts
    assert verdict.cause == "data_outlier" and "come back slowly" in verdict.evidence
