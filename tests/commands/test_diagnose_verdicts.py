"""What `scalelab diagnose` answers of a run at a huge LR: the cause first, what was judged, and what is meant."""

import json
import pathlib
import re
import shutil
import tempfile

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.configs import tiny
from scalelab.diagnose.checks import knobs
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.rank import LINES
from scalelab.record import records

SHORT = (
    "--config.train.steps=60",
    "--config.eval.batches=1",
    "--config.model.d_model=32",
    "--config.log.every_steps=5",
)


def trained(folder, *options):
    code = main(["train", "--config=configs/tiny.py", f"--workdir={folder}", "--json=-", *SHORT, *options])
    assert code in (0, 1)  # at LR 10 it depends on the last digits whether the run ends below a uniform guess
    return folder


@pytest.fixture(scope="module")
def too_high(tmp_path_factory):
    folder = tmp_path_factory.mktemp("high") / "run"
    return trained(folder, "--config.optim.peak_lr=10", "--config.optim.clip_norm=1e9")


@pytest.fixture
def run(tmp_path, too_high):
    return shutil.copytree(too_high, tmp_path / "run")


def diagnosed(capsys, *words):
    """(exit code, what was printed, the JSON) of `diagnose`."""
    capsys.readouterr()
    with tempfile.TemporaryDirectory() as place:
        answer = pathlib.Path(place) / "answer.json"
        code = main(["diagnose", "--fast", *map(str, words), f"--json={answer}"])
        return code, capsys.readouterr().out, json.loads(answer.read_text())


@pytest.mark.full
def test_a_huge_lr_comes_first_with_the_warning_of_the_start(run, capsys):
    """It was "init_wrong: model.init_std=0.02", which is the run's value, from the loss after 9 updates."""
    code, text, found = diagnosed(capsys, run)
    (first, *others) = found["verdicts"]
    assert code == 1 and first["cause"] == "lr_too_high" and text.startswith("1. lr_too_high (")
    assert "train warned at the start: optim.peak_lr=10 is 3.33e+03 times adamw's own 0.003" in first["evidence"]
    assert "init_wrong" not in [verdict["cause"] for verdict in others]
    values = gather_evidence(run).values
    for verdict in found["verdicts"]:
        assert knobs.assignments(verdict["knob"]) == knobs.changes_of(verdict["knob"], values), verdict


@pytest.mark.full
def test_every_answer_says_what_was_judged_by_the_lines_of_the_contract(run, capsys):
    code, text, found = diagnosed(capsys, run, "--accept=lr_too_high,decay_wrong,spike_growing", "--accept=not_finite")
    assert code == 0 and found["verdicts"] == [] and text.startswith("no cause found in what was judged")
    assert "\naccepted: lr_too_high: " in text and found["accepted"][0]["cause"] == "lr_too_high"
    named = re.findall(r"^(\w+): judged: ", text, re.MULTILINE)
    assert tuple(named) == LINES == tuple(found["lines"])
    (code_line,) = [line for line in text.splitlines() if line.startswith("code: ")]
    assert "not judged: mask_leak, label_shift" in code_line and "needs --live)" in code_line
    assert "weight decay" in found["lines"]["state"]["judged"] and "healthy" not in text
    assert "init_wrong (the first logged loss is of step 5: after 4 updates" in text


@pytest.mark.full
def test_a_cause_that_is_not_accepted_is_still_found(run, capsys):
    code, _, found = diagnosed(capsys, run, "--accept=decay_wrong")
    assert code == 1 and "lr_too_high" in [verdict["cause"] for verdict in found["verdicts"]]


@pytest.mark.full
def test_what_is_meant_can_be_in_the_config_and_changes_no_digest(run, capsys):
    config = records.read_config(run)
    config["diagnose"]["accept"] = "lr_too_high,decay_wrong,spike_growing,not_finite"
    (run / "config.json").write_text(json.dumps(config))
    code, _, found = diagnosed(capsys, run)
    assert code == 0 and found["accepted"][0]["cause"] == "lr_too_high"
    plain = config_lib.resolve(tiny.get_config())
    meant = config_lib.resolve(config_lib.override(tiny.get_config(), {"diagnose.accept": "decay_wrong,not_shuffled"}))
    assert config_lib.identity(plain) == config_lib.identity(meant)


def test_unknown_causes_are_refused_with_the_nearest_name(tmp_path, capsys):
    run = tmp_path / "run"  # it is not opened
    for words, error in (
        (
            ["diagnose", run, "--accept=lr_to_high"],
            "--accept: 'lr_to_high' is not a cause that diagnose names; did you mean",
        ),
        (["diagnose", run, "--accept=decay_wrong,lr"], "--accept: 'lr' is not a cause"),
        (
            [
                "train",
                "--config=configs/tiny.py",
                f"--workdir={tmp_path / 'new'}",
                "--config.diagnose.accept=decay_rong",
            ],
            "diagnose.accept='decay_rong' is not a choice; did you mean 'decay_wrong'?",
        ),
    ):
        assert main(list(map(str, words))) == 2
        line = capsys.readouterr().err
        assert error in line and line.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.full
def test_squares_in_even_integers_are_a_state_of_too_few_bits(tmp_path, capsys):
    """Another hand's optimizer, written before the check."""
    (tmp_path / "run.py").write_text("from scalelab.configs.tiny import get_config\n")
    shutil.copyfile("checks/diagnosis/contract/later/ninth/sealed/mine.py", tmp_path / "mine.py")
    words = [f"--config={tmp_path / 'run.py'}", f"--workdir={tmp_path / 'run'}", "--config.optim.name=mine:even_steps"]
    assert main(["train", *words, *SHORT]) in (0, 1)
    _, _, found = diagnosed(capsys, tmp_path / "run", "--trust=mine:even_steps")
    (verdict,) = [verdict for verdict in found["verdicts"] if verdict["cause"] == "low_precision_state"]
    assert verdict["knob"] == "keep moments in float32 in even_steps" and "8-bit numbers" in verdict["evidence"]
    assert "states kept in integers" in found["judged"]
