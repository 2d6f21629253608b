"""`scalelab diagnose`: exit codes, table, JSON, batches, two runs and the model itself, on real runs of four steps."""

import contextlib
import io
import json
import math
import os
import pathlib
import re
import shutil

import numpy as np
import pytest

from checks.diagnosis.diagnose import forks
from scalelab.__main__ import main
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.probes import probes
from scalelab.diagnose.probes.model import probe_mask, probe_targets
from scalelab.diagnose.probes.subject import load_subject
from scalelab.record import records
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config
from tests.train.runs import command, ended, finish, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four steps on twelve text files, every layer measured, with checkpoints of steps 2 and 4."""
    folder, rng = tmp_path_factory.mktemp("trained"), np.random.default_rng(0)
    for i in range(12):
        words = rng.integers(97, 123, size=(300 + i, 6), dtype=np.uint8)
        words[:, -1] = 32
        (folder / f"{i:02d}.txt").write_bytes(words.tobytes())
    changed = {"log__layers_every": 1, "data__source": "text", "data__path": f"{folder}/*.txt"}
    train_single(config(**changed), folder / "run")
    train_single(config(**changed, optim__peak_lr=0.05), folder / "other")
    return folder


@pytest.fixture
def run(tmp_path, trained):
    return shutil.copytree(trained / "run", tmp_path / "run")


def edit(run, step, **changed):
    lines = [
        line | changed if line.get("step") == step and "lr" in line else line for line in records.read_metrics(run)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_healthy_run_is_0_and_a_cause_is_1(run, capsys):
    assert main(["diagnose", str(run), "--fast"]) == 0
    assert capsys.readouterr().out.startswith("no cause found in what was judged")
    edit(run, 3, lr=-1.0)
    assert main(["diagnose", str(run), "--fast"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("1. schedule_invalid (test, steps 3 to 3)\n   the LR is -") and "\n   turn: " in text
    assert main(["diagnose", str(run), "--fast", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["verdicts"][0]["cause"] == "schedule_invalid" and result["verdicts"][0]["steps"] == [3, 3]


def test_a_missing_signal_names_the_key_that_writes_it(run, capsys):
    (run / "layers.jsonl").unlink()
    assert main(["diagnose", str(run), "--fast"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("leaves: ")]
    assert re.search(
        r"; not judged: .*\battention_logits\b.* \(no measures of layers; needs log.layers_every=10\)", line
    )
    assert main(["diagnose", str(run), "--fast", "--json=-"]) == 0
    gaps = {gap["cause"]: gap for gap in json.loads(capsys.readouterr().out)["gaps"]}
    assert "a benign loss curve does not exclude it" in gaps["attention_logits"]["anyway"]


def test_nothing_of_the_run_is_changed(run, capsys):
    before = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    main(["diagnose", str(run), "--fast"])
    assert before == {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_batch_is_the_steps_with_its_files_and_its_loss(trained, capsys):
    assert main(["diagnose", str(trained / "run"), "--batch=3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    rows, logged = result["sequences"], records.read_metrics(trained / "run")
    assert result["weights_step"] == 2 and len(rows) == config().train.global_batch
    (loss,) = [line["train_loss"] for line in logged if line["step"] == 3 and "train_loss" in line]
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(loss, rel=1e-6)
    assert rows == sorted(rows, key=lambda row: -row["grad_norm"])
    for row in rows:
        content = pathlib.Path(row["file"]).read_bytes()
        here = row["excerpt"].encode()[: len(content) - row["offset"]]
        assert here and content[row["offset"] :].startswith(here)


def test_two_runs_part_where_their_config_says(trained, run, capsys):
    assert main(["diagnose", str(trained / "run"), "--fast", f"--against={trained / 'other'}", "--json"]) == 1
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["cause"] == "other_config" and verdict["steps"] == [1, 1] and "optim.peak_lr" in verdict["evidence"]
    assert main(["diagnose", str(run), "--fast", f"--against={trained / 'run'}"]) == 0
    edit(run, 3, grad_norm=0.5)
    capsys.readouterr()
    assert main(["diagnose", str(run), "--fast", f"--against={trained / 'run'}"]) == 1
    text = capsys.readouterr().out
    assert "other_state (symptom, steps 3 to 3)\n   the runs part at step 3: grad_norm 0.5 here" in text
    assert text.startswith("1. measures_disagree (test, steps 3 to 3)\n") and "grad_norm is 0.5, and that of" in text


@pytest.mark.slow
def test_beside_a_run_in_one_batch_a_missing_division_by_k_shows(trained, tmp_path, capsys):
    """SGD without clipping: the first gradient is K times as large, on the same weights and batch."""
    sgd = {"data__source": "text", "data__path": f"{trained}/*.txt", "optim__name": "sgd", "optim__peak_lr": 0.1}
    sgd |= {"train__steps": 2, "optim__clip_norm": 1e9}
    train_single(config(**sgd, train__accumulate=1), tmp_path / "one")
    with forks.no_division_by_k():
        train_single(config(**sgd, train__accumulate=2), tmp_path / "planted")
    assert main(["diagnose", str(tmp_path / "planted"), "--fast", f"--against={tmp_path / 'one'}", "--json"]) == 1
    verdicts = {verdict["cause"]: verdict for verdict in json.loads(capsys.readouterr().out)["verdicts"]}
    assert verdicts["missing_1_over_K"]["steps"] == [1, 1]
    assert "is 2 times the other run's, with train.accumulate=2" in verdicts["missing_1_over_K"]["evidence"]


@pytest.fixture(scope="module")
def asked(trained):
    """(what a program answers, exit code, JSON) of a diagnosis that asks it, as it is small."""
    measured, right = {}, probes.run_probes

    def run_probes(*arguments):
        evidence = right(*arguments)
        measured.update(evidence.probes)
        return evidence

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(probes, "run_probes", run_probes)
        code = main(["diagnose", str(trained / "run"), "--json"])
    return measured, code, json.loads(out.getvalue())


@pytest.mark.full
def test_live_asks_the_model(asked):
    measured, _, _ = asked
    assert not [name for name in measured if name.startswith("unasked/")]
    assert measured["future_leak"] == 0 and measured["target_shift"] == 1 and measured["branch_scaling"] < 2
    assert measured["replay/4"] == 0 and 0.3 < measured["gradient_over_v"] < 3
    assert measured["update_rms/1"] == pytest.approx(measured["update_rms/5000"], rel=1e-3)
    assert measured["sharpness_limit"] == pytest.approx(38, rel=1e-6) and measured["sharpness_lr"] > 0


@pytest.mark.full
def test_a_small_program_is_asked_without_an_option(asked):
    _, code, result = asked
    assert code in (0, 1)
    assert result["program"] == "asked, from the checkpoint of step 4, as it is small (--fast leaves it out)"
    assert "mask_leak" not in {gap["cause"] for gap in result["gaps"]}


def test_a_large_program_is_not_asked_whatever_its_record_says(run, capsys, monkeypatch):
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps(record | {"params": record["params"] | {"total": 1}}))
    monkeypatch.setattr("scalelab.diagnose.probes.probes.QUICK", 1e5)
    assert main(["diagnose", str(run)]) == 1  # the record was edited
    text = capsys.readouterr().out
    assert re.search(
        r"^program: not asked: a step of it takes \S+ FLOPs, which is not small; --live asks it$", text, re.M
    )


@pytest.mark.slow
def test_live_sees_forks_of_the_model(trained):
    subject = load_subject(gather_evidence(trained / "run"))
    with forks.shifted_targets(0):
        assert probe_targets(subject) == {"target_shift": 0.0}
    with forks.sees_the_next_token():
        assert probe_mask(subject)["future_leak"] > 0.01


@pytest.mark.slow
def test_live_measures_the_exchange_of_a_mesh_where_its_devices_are(tmp_path):
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"}
    overrides = ["--config.parallel.fsdp=2", "--config.train.steps=4", "--config.data.source=synthetic"]
    finish(command(*train(tmp_path / "run", *overrides), env=flags))
    for env, words in ((flags, r"\d+% of a step is exchange between 2 devices"), ({}, "1 device here, 2 in the run")):
        out, _ = ended(command(str(tmp_path / "run"), "--live", "--json=-", name="diagnose", env=env))
        (gap,) = [gap for gap in json.loads(out)["gaps"] if gap["cause"] == "communication"]
        assert re.search(words, gap["missing"]), gap


def test_mistakes_are_one_line_and_2(run, tmp_path, capsys):
    shutil.rmtree(run / "checkpoints")
    for arguments, words in (
        ([tmp_path], "is not a run folder"),
        ([run, "--batch=9"], "the run has steps 1 to 4"),
        ([run, "--batch=1"], "no intact checkpoint"),
        ([run, "--live"], "no checkpoint"),
        ([run, "--live", "--fast"], "--live asks the program, and --fast does not: leave one out"),
        ([run, f"--against={tmp_path}"], "is not a run folder"),
    ):
        assert main(["diagnose", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


def test_a_log_that_was_cut_or_deleted_comes_before_all_else(run, capsys):
    """Four steps are too few for any cause: it was healthy with half of its lines, and with none."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    for left, what in ((lines[:2], "metrics.jsonl was cut to"), (None, "metrics.jsonl is missing")):
        (run / "metrics.jsonl").unlink()
        if left:
            (run / "metrics.jsonl").write_text("".join(left))
        assert main(["diagnose", str(run), "--fast"]) == 1
        text = capsys.readouterr().out
        assert text.startswith("1. lost_log (test)\n") and what in text and "healthy" not in text
        assert f"scalelab checkpoint verify --all {run}" in text
    shutil.rmtree(run / "checkpoints")  # purged: the record alone knows of the lines
    assert main(["diagnose", str(run), "--fast"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("1. lost_log (test)\n") and "metrics.jsonl has no evaluated line" in text


def test_an_edited_value_is_never_healthy(run, capsys):
    edit(run, 3, tokens_per_s=1.5)
    assert main(["diagnose", str(run), "--fast", "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdicts[-1]["cause"] == "edited_log" and "metrics.jsonl was" in verdicts[-1]["evidence"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("log.every_steps", None, "log.every_steps is None; taken as 10"),
        ("log.every_steps", "x", "log.every_steps is 'x'; taken as 10"),
        ("log.layers_every", None, "log.layers_every is null in the stored config (default: 0)"),
        ("eval.metrics", None, "eval.metrics is None; taken as ''"),
        ("eval.metrics", math.inf, "eval.metrics=inf is not text"),
    ],
)
def test_a_config_edited_to_another_type_is_named(run, capsys, key, value, words):
    group, name = key.split(".")
    config = json.loads((run / "config.json").read_text())
    config[group][name] = value
    (run / "config.json").write_text(json.dumps(config))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    assert main(["diagnose", str(run), "--fast"]) == 1 and words in capsys.readouterr().out
