"""`scalelab diagnose --try`: a knob is told to be turned if a short training with it cures."""

import math
import pathlib
import re

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.replay.trial import choose_stretches, judge_trial, try_knobs
from scalelab.diagnose.verdict import make_verdict
from tests.commands.test_diagnose_verdicts import diagnosed, trained
from tests.diagnose.evidences import doctor, healthy

SHORT_SEQUENCES = "model.seq_len=32"  # a quarter of tiny's: these tests take 500 steps


@pytest.fixture(scope="module")
def decayed(tmp_path_factory):
    """A run whose decay of 300 replaces the weights ninety times."""
    folder = tmp_path_factory.mktemp("decayed") / "run"
    options = ("optim.weight_decay=300", "optim.peak_lr=0.01", "log.every_steps=1", SHORT_SEQUENCES)
    return trained(folder, *(f"--config.{option}" for option in options))


@pytest.mark.full
def test_a_knob_that_cures_is_shown_to_cure(decayed, capsys):
    before = {path: path.read_bytes() for path in decayed.rglob("*") if path.is_file()}
    assert main(["diagnose", str(decayed), "--fast"]) == 1
    assert re.search(r"   turn: optim\.weight_decay=.* \(not tried: --try\)\n", capsys.readouterr().out)
    code, text, found = diagnosed(capsys, decayed, "--try", "--accept=lr_too_high,spike_growing")
    trial = found["trials"]["decay_wrong"]
    assert code == 1 and trial["cures"] and trial["steps"] == 60 and trial["after"] < trial["before"]
    (value,) = trial["changes"].values()
    assert list(trial["changes"]) == ["optim.weight_decay"]
    tried = f"   tried: the first 60 steps again with optim.weight_decay={value}: "
    assert text.partition(tried)[2].partition("\n")[0].endswith(" as it was; it cures")
    assert before == {path: path.read_bytes() for path in decayed.rglob("*") if path.is_file()}


def verdict(cause, knob="optim.peak_lr=0.003", first=60):
    return make_verdict(cause, "signature", 2.0, "", knob, "", (first, first))


def test_a_trial_cures_if_the_cause_is_gone_or_the_loss_is_lower_beyond_noise():
    high, good = healthy(optim__peak_lr=0.3), healthy()
    changes = {"optim.peak_lr": "0.01"}
    trial = judge_trial(verdict("lr_too_high"), changes, high, good)
    assert trial.cures and trial.text.endswith("it cures")
    trial = judge_trial(verdict("lr_too_high"), changes, high, high)
    assert not trial.cures and "lr_too_high is still found" in trial.text
    lower, higher = (doctor(good, "train_loss", lambda s, x, by=by: x + by, 100) for by in (-0.5, 0.5))
    assert judge_trial(verdict("decay_wrong"), changes, good, lower).cures
    trial = judge_trial(verdict("decay_wrong"), changes, good, good)
    assert not trial.cures and trial.text.endswith("these steps do not show the cause as it was either")
    assert not judge_trial(
        verdict("lr_too_high"), changes, high, doctor(good, "train_loss", lambda s, x: math.nan, 390)
    ).cures
    assert not judge_trial(verdict("decay_wrong"), changes, good, higher).cures


def test_words_are_not_tried_and_a_refusal_is_told():
    run = healthy()
    assert try_knobs(run, [verdict("spike_growing", knob="a lower LR")]) == {}
    assert try_knobs(run, [verdict("lr_too_high", knob=f"optim.peak_lr={run.values['optim.peak_lr']}")]) == {}
    (trial,) = try_knobs(
        run.__class__(**{**vars(run), "folder": pathlib.Path("none")}), [verdict("lr_too_high")]
    ).values()
    assert not trial.cures and trial.steps == 0 and trial.text.startswith("could not be tried: ")


def test_a_trial_begins_at_a_healthy_checkpoint_well_before_what_shows(monkeypatch):
    monkeypatch.setattr("scalelab.diagnose.replay.trial._healthy_steps", lambda folder: [40, 140, 180, 220])
    run, begins = healthy(), {}
    for shows in (0, 30, 60, 110, 230, 290, 399):
        begins[shows] = [stretch.begin for stretch in choose_stretches(run, verdict("lr_too_high", first=shows))]
    assert begins == {0: [0], 30: [0], 60: [0], 110: [40, 0], 230: [40, 0], 290: [180, 0], 399: [220, 0]}
    (stretch, _) = choose_stretches(run, verdict("lr_too_high", first=290))
    assert stretch.steps == 160 and choose_stretches(run, verdict("lr_too_high", first=399))[0].steps == 180


@pytest.mark.full
def test_a_trial_from_a_checkpoint_begins_with_the_runs_own_bits(tmp_path):
    """The arm as it was is, to the bit, the run."""
    options = ("train.steps=120", "checkpoint.every_steps=20", "log.every_steps=1", SHORT_SEQUENCES)
    folder = trained(tmp_path / "run", *(f"--config.{option}" for option in options))
    evidence = gather_evidence(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    asked = [
        verdict("spike_growing", "optim.clip_norm=0.5", 110),
        verdict("attention_logits", "optim.peak_lr=0.1", 110),
    ]
    clip, lr = try_knobs(evidence, asked).values()
    assert (clip.begin, clip.steps, lr.begin) == (100, 20, 100)
    losses = evidence.series("train_loss").after(100).values
    assert clip.before == lr.before == np.mean(losses[-5:])
    assert lr.after != lr.before and "20 steps from the healthy step 100 again with" in clip.text
    assert files == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
