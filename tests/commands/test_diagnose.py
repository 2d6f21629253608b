"""`scalelab diagnose`: exit codes, the table and its JSON, on a real run and on the same run doctored."""

import json
import shutil

import pytest

from scalelab import records
from scalelab.__main__ import main
from scalelab.train.run.single import train_single
from tests.train.resume.test_compatibility import config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four steps with every layer measured."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train_single(config(log__layers_every=1), folder)
    return folder


@pytest.fixture
def run(tmp_path, trained):
    return shutil.copytree(trained, tmp_path / "run")


def test_a_healthy_run_is_0_and_a_cause_is_1(run, capsys):
    assert main(["diagnose", str(run)]) == 0
    assert capsys.readouterr().out.startswith("healthy")
    lines = [line | {"lr": -line["lr"]} if line.get("step") == 3 and "lr" in line else line
             for line in records.read_metrics(run)]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["diagnose", str(run)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("1. schedule_invalid (test, steps 3 to 3)\n   the LR is -") and "\n   turn: " in text
    assert main(["diagnose", str(run), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["verdicts"][0]["cause"] == "schedule_invalid" and result["verdicts"][0]["steps"] == [3, 3]


def test_a_missing_signal_names_the_key_that_writes_it(run, capsys):
    (run / "layers.jsonl").unlink()
    assert main(["diagnose", str(run)]) == 0
    assert "not judged: attention_logits" in (text := capsys.readouterr().out) and "set log.layers_every=10" in text


def test_nothing_of_the_run_is_changed(run, trained, capsys):
    before = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    main(["diagnose", str(run)])
    assert before == {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_what_is_not_a_run_is_one_line_and_2(tmp_path, capsys):
    assert main(["diagnose", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "is not a run folder" in error and error.count("\n") == 1
