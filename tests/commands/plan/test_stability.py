"""`scalelab plan --stability`: what it would cost, its verdict on planted runs, a real one, and what it refuses."""

import contextlib
import json
import math
import re

import pytest

from scalelab.__main__ import main
from scalelab.api.work import stability as api_stability
from scalelab.sweep.scaling import stability

SMALL = ["--config=tiny", "--config.model.seq_len=16", "--config.model.n_layers=1", "--config.train.global_batch=2",
         "--config.optim.weight_decay=0"]  # fmt: skip
PLAN = ["plan", "--stability", *SMALL]


@pytest.fixture
def planted(monkeypatch):
    """Runs of a law: all above 3 (width / 16)^-0.5 diverge. Gives the trials that would have been trained."""
    trained = []

    def has_diverged(place, vocab_size):
        width, rate = re.match(r"d(\d+)-lr=(.*)-s\d+$", place.name).groups()
        return float(rate) > 3 * (int(width) / 16) ** -0.5

    monkeypatch.setattr(stability, "has_diverged", has_diverged)
    pool = lambda *_: contextlib.nullcontext(lambda more: trained.extend(more))  # noqa: E731
    monkeypatch.setattr(api_stability, "train_in_pool", pool)
    return trained


@pytest.mark.full
def test_without_a_folder_it_says_what_it_would_train_and_the_seconds(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*PLAN, "--json=plan.json"]) == 0
    text = capsys.readouterr().err
    assert "144 or more runs of 100 steps, the config at widths 16, 32, 48, 64 with 3 seeds" in text
    assert re.search(r"about \d+ s on this machine's CPU", text) and "nothing is measured yet" in text
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["measured"] is None and plan["seconds"] > plan["runs"] / 100
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.full
def test_the_verdict_comes_first_and_another_width_needs_no_run(planted, tmp_path, capsys):
    folder = f"--workdir={tmp_path / 'forecast'}"
    assert main([*PLAN, folder]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    pattern = r"diverges from LR (\S+) \(90 %: (\S+) to (\S+)\) at 2 times the width \(d_model 128\); "
    lr, low, high = map(float, re.match(pattern, first).groups())
    assert low < 3 / math.sqrt(8) < high and lr == pytest.approx(3 / math.sqrt(8), rel=0.3)
    assert first.endswith(f"your peak_lr=0.01 is {100 * lr:.3g} times below")
    begun = set(planted)
    assert main([*PLAN, folder, "--wider=8", "--json=-"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["width"] == 512 and facts["lr"] < lr and facts["high"] / facts["low"] > high / low
    assert set(planted) == begun


@pytest.mark.full
def test_a_peak_lr_beyond_the_forecast_is_said_to_be_above(planted, tmp_path, capsys):
    assert main([*PLAN, "--config.optim.peak_lr=30", f"--workdir={tmp_path / 'high'}"]) == 0  # the search goes down
    assert re.search(r"your peak_lr=30 is \S+ times above$", capsys.readouterr().out.splitlines()[0])
    assert any("lr=0.0001144" in name for name in planted)


def test_where_no_lr_diverges_it_says_which_were_tried(planted, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stability, "has_diverged", lambda place, vocab_size: False)
    assert main([*PLAN, f"--workdir={tmp_path / 'never'}"]) == 1
    assert "width 16: LRs from 0.01 to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--stability"], "--stability needs --config"),
        (["--stability", "--config=tiny", "--wider=1.5"], "--wider=1.5 must be a whole number from 1 to 1000; nearest"),
        (["--stability", "--config=tiny", "--wider=1e9"], "nearest: 1000"),
        (["--stability", "--config=tiny", "--flops=1e9"], "--flops has no effect with --stability"),
        (["--stability", "--config=tiny", "--", "--x=1"], "options after -- belong to a study"),
        (["--config=tiny", "--hardware=cpu", "--wider=2"], "--wider goes with --stability"),
        (["--flops=1e9", "--workdir=x"], "--workdir goes with --stability"),
        (["--stability", "--config=tiny", "--config.model.n_heads=1"], "leaves fewer than 3 widths"),
        (["--stability", "--config=tiny", "--config.schedule.batch_stages=1@10"], "batch_stages"),
    ],
)
def test_bad_input_is_one_line(arguments, line, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *arguments]) == 2
    (text,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("scalelab: ")]
    assert line in text and not list(tmp_path.iterdir())


@pytest.mark.full
def test_real_runs_diverge_and_are_read_again_without_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stability, "STEPS", 20)
    monkeypatch.setattr(stability, "SEEDS", 1)
    run = [*PLAN, "--config.model.n_heads=4", "--config.optim.peak_lr=0.1", f"--workdir={tmp_path / 'real'}"]
    assert main([*run, "--json=-"]) == 0
    facts = json.loads(capsys.readouterr().out)
    for seeds in facts["measured"].values():
        assert all(each["stable"] < each["lr"] < each["diverged"] for each in seeds)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "real" / "runs").rglob("metrics.jsonl")}
    assert main([*run, "--json=-"]) == 0
    assert json.loads(capsys.readouterr().out) == facts
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "real" / "runs").rglob("metrics.jsonl")}
