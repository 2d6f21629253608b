"""A run that went back by hand is judged by its present past: what was changed on purpose is no finding."""

import json

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.lineage import changes
from tests.train.resume.test_compatibility import SMALL

WORDS = {"train.steps": 80, "train.steps_per_dispatch": 10, "checkpoint.every_steps": 20, "checkpoint.keep_last": 9,
         "eval.every_steps": 40, "data.source": "stdlib", "train.global_batch": 8, "model.seq_len": 32,
         "model.d_model": 16, "schedule.warmup_steps": 10}  # fmt: skip


def causes(folder, capsys):
    capsys.readouterr()
    main(["diagnose", str(folder), "--fast", "--json"])
    return {verdict["cause"] for verdict in json.loads(capsys.readouterr().out)["verdicts"]}


@pytest.mark.full
def test_a_cured_run_is_not_blamed_for_its_cure_or_for_what_it_undid(tmp_path, capsys):
    folder = tmp_path / "run"
    overrides = [f"--config.{key}={value}" for key, value in (SMALL | WORDS).items()]
    assert main(["train", "--config=tiny", f"--workdir={folder}", *overrides]) == 0
    records.write_event(folder, "diverged", 75, "the loss is above that of a uniform guess")  # of the past to be undone
    before = causes(folder, capsys)
    assert main(["train", f"--workdir={folder}", "--back-to=40", "--lr-factor=.3", "--reset=moments"]) == 0
    found = causes(folder, capsys)
    assert not {"schedule_wrong", "bad_resume", "diverged"} & found and found <= before, found
    rows = [row for row in records.read_metrics(folder) if row["step"] > 40 and "lr" in row]
    steps = [row["step"] for row in rows]
    factors = changes.lr_factors(records.read_record(folder), steps)
    np.testing.assert_allclose(factors, 0.3 * (np.array(steps) - 40) / 150)
    # And an LR that nothing declares is still one.
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    doubled = [line | {"lr": 2 * line["lr"]} if line["step"] > 60 and "lr" in line else line for line in lines]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in doubled))
    assert "schedule_wrong" in causes(folder, capsys)
    # Unless the guard says that it lowered the rate in the step itself.
    records.write_event(folder, "guard", 5, "loss 9 nats; each time LR and clip x 0.7 from there on", signal="early")
    assert "schedule_wrong" not in causes(folder, capsys)


def test_factors_follow_the_present_past_alone():
    """Two rewinds of the guard; then by hand to a step that knew the first only; then a reset where it went on."""
    rewind = {"lr_factor": 0.7, "reset": False, "missing": []}
    past = {"1": rewind | {"to": 100}, "2": rewind | {"to": 200, "reset": True},
            "3": rewind | {"to": 150, "lr_factor": 0.5, "by_hand": "back_to=150", "followed": 1}}  # fmt: skip
    record = {"rewinds": past, "changes_by_hand": {"1": {"step": 300, "change": "lr_factor=2, skip_batches=3..5"}}}
    assert list(changes.followed_decisions(past)) == ["1", "3"]
    expected = [1, 0.7, 0.7, 0.35, 0.35, 0.7]
    np.testing.assert_allclose(changes.lr_factors(record, [100, 101, 150, 151, 300, 301]), expected)
    lost = {"1": past["1"], "2": rewind | {"to": 50, "missing": ["1"]}}  # back before the first: both hold from there
    np.testing.assert_allclose(changes.lr_factors({"rewinds": lost}, [50, 51]), [1, 0.49])
    older = {"1": past["1"], "2": {"lr_factor": 0.7, "reset": False, "to": 50, "lost": 1}}  # as 0.3.0 wrote it
    np.testing.assert_allclose(changes.lr_factors({"rewinds": older}, [50, 51]), [1, 0.49])


@pytest.mark.parametrize("record", [{"rewinds": {"1": {}}}, {"rewinds": {"x": {"by_hand": "", "followed": None}}},
                                    {"changes_by_hand": {"1": {"step": "later"}}}])  # fmt: skip
def test_an_edited_record_declares_nothing(record):
    assert changes.list_changes(record) == [] and list(changes.lr_factors(record, [1, 2])) == [1, 1]
