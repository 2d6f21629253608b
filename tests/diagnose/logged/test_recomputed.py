"""Logged losses against those of the saved weights, and an LR against higher ones, by `diagnose --live`."""

import dataclasses
import json
import shutil

import pytest

from scalelab.diagnose import rank
from scalelab.diagnose.checks.logged.recomputed import check_lines
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.probes.again import probe_replay
from scalelab.diagnose.probes.recomputed import probe_lines, probe_validation
from scalelab.diagnose.verdict import Verdict
from scalelab.train.single import train_single
from tests.diagnose.logged.runs import diagnosed, lines_of, small_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run at a thirtieth of AdamW's own LR."""
    folder = tmp_path_factory.mktemp("recomputed") / "run"
    train_single(small_config(train__ema=0.9, optim__peak_lr=1e-4), folder)
    return folder


def edit(folder, target, change):
    """Edit the line of a (kind, step)."""
    kind, step = target
    lines = [line | change(line) if kind in line and line["step"] == step else line for line in lines_of(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.full
def test_losses_are_those_of_the_saved_weights(trained):
    evidence = gather_evidence(trained)
    logged = {row["step"]: row["val_loss"] for row in evidence.evaluations}
    again = probe_validation(evidence)
    assert again["val/20"] == pytest.approx(logged[20], rel=1e-6)
    assert again["val/60"] == pytest.approx(logged[60], rel=1e-6)
    assert again["val_ema/60"] != pytest.approx(logged[60], rel=1e-6)
    rows, lines = {row["step"]: row for row in evidence.rows}, probe_lines(evidence)
    assert lines["line/21"]["train_loss"] == rows[21]["train_loss"]
    assert lines["train_again/41"] == pytest.approx(rows[41]["train_loss"], rel=1e-6)


@pytest.mark.full
def test_an_update_unlike_that_of_the_saved_state(trained):
    """The line after a saved step, whose loss and gradient agree: an update three times as large, and its weights."""
    evidence = gather_evidence(trained)
    taken = probe_lines(evidence)

    def judged(**factors):
        rows = [
            row | ({name: factor * row[name] for name, factor in factors.items()} if row["step"] == 21 else {})
            for row in evidence.rows
        ]
        changed = dataclasses.replace(evidence, rows=rows, probes=taken)
        return [finding.cause for finding in check_lines(changed) if isinstance(finding, Verdict)]

    assert judged() == []
    assert judged(update_norm=3.0) == ["log_wrong"]
    assert judged(update_norm=3.0, param_norm=1.00002) == ["update_wrong"]
    assert judged(lr=0.5) == ["schedule_wrong"]
    without, _ = taken["line_decay/21"]  # norms of the update and of the weights in the step without its decay
    declared = [taken["line/21"][name] for name in ("update_norm", "param_norm")]
    factors = {name: a / b for name, a, b in zip(("update_norm", "param_norm"), without, declared, strict=True)}
    assert judged(**factors) == ["decay_wrong"] and judged(**factors | {"param_norm": 1.00002}) == ["update_wrong"]


@pytest.mark.full
def test_false_lines_are_named_and_a_tenfold_lr_learns_faster(trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    verdicts, _, judged, _ = diagnosed(run, capsys, "--live")
    assert list(verdicts) == ["lr_too_low"] and verdicts["lr_too_low"]["kind"] == "test"
    assert verdicts["lr_too_low"]["knob"] == "optim.peak_lr=0.003"
    assert "a validation loss is the checkpoint's (its weights, not their EMA)" in judged
    rows = {line["step"]: line for line in lines_of(run) if "train_loss" in line}
    edit(run, ("train_loss", 21), lambda line: {"train_loss": rows[20]["train_loss"]})
    again = probe_validation(gather_evidence(run))
    edit(run, ("val_loss", 60), lambda line: {"val_loss": again["val_ema/60"]})
    evidence = gather_evidence(run)
    evidence = dataclasses.replace(evidence, probes={"step": 60} | again | probe_lines(evidence))  # as --live asks
    verdicts = {verdict.cause: verdict.evidence for verdict in rank.diagnose(evidence).verdicts}
    assert "it is that of their EMA" in verdicts["val_loss_wrong"]
    assert "it is the loss of the step before" in verdicts["log_wrong"]


@pytest.mark.full
def test_steps_before_a_rate_that_was_halved_at_a_resume_are_not_taken_again(tmp_path):
    """A constant rate, halved for the second part: what was taken at the old rate is none of the config's now."""
    folder, stopped = tmp_path / "run", iter([False, False, False, True])
    changes = {"schedule__name": "constant", "eval__every_steps": 60}
    train_single(small_config(**changes), folder, stop=lambda: next(stopped))
    train_single(small_config(**changes, optim__peak_lr=5e-3), folder)
    evidence = gather_evidence(folder)
    (changed,) = evidence.kinds("config_change")
    assert "optim.peak_lr: 0.01 -> 0.005" in changed["text"]
    assert evidence.replayable == [step for step in sorted(evidence.manifests) if step >= changed["step"]]
    assert len(evidence.replayable) < len(evidence.manifests)
    probes = (
        {"step": 60} | probe_validation(evidence) | probe_lines(evidence) | probe_replay(evidence)
    )  # of saved steps
    evidence = dataclasses.replace(evidence, probes=probes)
    assert any(key.startswith("replay/") for key in evidence.probes)
    assert [each.cause for each in rank.diagnose(evidence).verdicts if each.kind == "test"] == []
    other = [{**changed, "text": "eval.batches: 2 -> 4, log.every_steps: 1 -> 10"}]
    assert dataclasses.replace(evidence, events=other).replayable == sorted(evidence.manifests)
