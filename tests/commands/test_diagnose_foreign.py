"""`scalelab diagnose` of runs that others trained: metrics alone, a table, and what is known of a config."""

import json
import math

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.diagnose.checks.foreign import metrics_evidence
from scalelab.diagnose.rank import FAMILIES, LINES, diagnose
from tests.diagnose.evidences import healthy


def losses(spike=4.0):
    """(step, loss) of 400 steps that fall to 3 nats, with a spike of three steps."""
    noise = np.random.default_rng(0).normal(0, 0.02, 400)
    return [
        (step, 3 + 2 * math.exp(-step / 60) + noise[step - 1] + spike * (250 <= step < 253)) for step in range(1, 401)
    ]


def answer(capsys, *words):
    capsys.readouterr()
    code = main(["diagnose", *map(str, words), "--json=-"])
    return code, json.loads(capsys.readouterr().out)


def test_a_table_of_losses_is_judged_by_what_it_has(tmp_path, capsys):
    rows = [f"{step},{loss},{1e-3 * min(step / 20, 1)},1.0,x" for step, loss in losses()]
    (tmp_path / "theirs.csv").write_text("\n".join(["step,loss,lr,grad_norm,note", *rows]))
    code, found = answer(capsys, tmp_path / "theirs.csv")
    assert code == 1 and [verdict["cause"] for verdict in found["verdicts"]] == ["spike_benign"]
    assert "the loss is 7.03 in steps 250 to 252, after 3.04" in found["verdicts"][0]["evidence"]
    course, settings = (found["lines"][name] for name in ("course", "settings"))
    assert "spikes of the loss" in course["judged"] and "a loss that rises for good" in course["judged"]
    assert settings["judged"] == ["LR, by what the loss does"]
    assert sorted(gap["missing"] for gap in settings["not_judged"]) == [
        "no line with update_norm and param_norm", "the run does not tell model.logit_softcap",
        "the run does not tell optim.groups", "the run does not tell optim.name", "the run does not tell optim.name",
    ]  # fmt: skip


def test_a_loss_that_stands_still_is_named_and_its_knob_is_told(tmp_path, capsys):
    noise = np.random.default_rng(2).normal(0, 0.02, 400)
    lines = [{"step": step, "loss": 7.3 + 3 * math.exp(-step / 20) + noise[step - 1]} for step in range(1, 401)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shape = {"vocab_size": 32_000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4} | shape))
    code, found = answer(capsys, tmp_path)
    assert code == 1 and [verdict["cause"] for verdict in found["verdicts"]] == ["not_learning"]
    assert "7.3" in found["verdicts"][0]["evidence"] and "targets" in found["verdicts"][0]["knob"]


def test_metrics_without_a_config_are_judged(tmp_path, capsys):
    lines = [{"step": step, "train_loss": loss} for step, loss in losses(spike=0.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for place in (tmp_path, tmp_path / "metrics.jsonl"):
        code, found = answer(capsys, place)
        assert code == 0 and found["verdicts"] == [] and tuple(found["lines"]) == LINES
        assert main(["diagnose", str(place)]) == 0
        assert capsys.readouterr().out.startswith("no cause found in what was judged\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("step,loss\n1,2.0\n2,x\n", "has no line with a step and a train_loss"),
        ("step,perplexity\n1,2.0\n", "has no line with a step and a train_loss"),
        ("", "is empty"),
        ("a,b\nx,y\n", "has no column of numbers"),
    ],
)
def test_a_table_that_is_none_is_one_line_and_2(tmp_path, capsys, content, words):
    (tmp_path / "theirs.csv").write_text(content)
    assert main(["diagnose", str(tmp_path / "theirs.csv")]) == 2
    *told, error = capsys.readouterr().err.splitlines()
    assert words in error and all(line.startswith(("theirs: read as CSV: ", "note: theirs: ")) for line in told)
    if content.endswith("x\n"):
        assert any("'loss' holds 'x', which is not a number" in line for line in told)
    (tmp_path / "theirs.csv").write_text("step,loss\n1,2.0\n")
    assert main(["diagnose", str(tmp_path / "theirs.csv"), "--live"]) == 2
    assert "--live needs the run's data: the run has no config" in capsys.readouterr().err


@pytest.mark.full
def test_no_check_fails_for_what_a_run_does_not_have(tmp_path):
    """Each check is a gap, never an error, on any part of what a run has."""
    run = healthy()
    parts = [row | {"val_loss": 3.0} for row in run.rows]
    names = ("train_loss", "lr", "grad_norm", "update_norm", "param_norm", "tokens")
    for count in range(1, len(names) + 1):
        lines = [{name: row[name] for name in ("step", *names[:count])} for row in parts]
        for known in ({}, {"model.vocab_size": 256}, {"optim.name": "adamw", "optim.peak_lr": 1e-2}, dict(run.values)):
            for layers in ((), run.layers):
                evidence = metrics_evidence(lines, tmp_path, known, layers)
                assert diagnose(evidence).verdicts == [], (names[:count], len(known))
    assert all(isinstance(check(run), list) for family in FAMILIES for check in family.CHECKS)


def test_what_is_known_of_a_config_is_judged(tmp_path):
    run = healthy()
    lines = [
        row | {"train_loss": 9.0 if row["step"] > 200 else row["train_loss"], "update_norm": 9.0} for row in run.rows
    ]
    known = {**run.values, "optim.peak_lr": 0.3}
    verdicts = {each.cause: each for each in diagnose(metrics_evidence(lines, tmp_path, known)).verdicts}
    assert verdicts["lr_too_high"].knob.startswith("optim.peak_lr=")
