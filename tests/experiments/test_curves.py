"""The study of laws of curves: its runs, what is fitted and what held out, its verdicts, and once in short."""

import json

import numpy as np
import pytest

from scalelab.experiments import curves
from scalelab.laws.curves.curve import make_curve


def test_three_schedules_are_fitted_and_three_held_out():
    base, *_ = curves.parse_arguments(["--config.train.steps=200"])
    trials = curves.make_trials(base)
    assert len(trials) == 18 and trials["wsd-seed2"].schedule.decay_steps == 40 and trials["wsd-seed2"].train.seed == 2
    fitted, held_out = curves.split_curves([make_curve(f"runs/{name}", np.ones(3)) for name in trials])
    assert len(fitted) == len(held_out) == 9
    assert {curve.name.partition("-")[0] for curve in fitted} == {"runs/constant", "runs/cosine", "runs/wsd"}


def test_a_verdict_says_where_a_law_loses():
    run = {"mae": 0.02, "baseline_mae": 0.01, "final_inside": False}
    law = {
        "law": "annealing", "agree": 24, "starts": 24, "undetermined": ["E"], "widening": 1.5,
        "left_out": {"cosine": 2.0},
        "runs": {"linear-seed0": run, "linear-seed1": run | {"mae": 0.005, "final_inside": True}},
    }  # fmt: skip
    (line,) = curves.verdicts([law])
    assert "on 1 of 2 curves" in line and "final losses inside: 1 of 2" in line and "not determined: E" in line


def test_a_missing_workdir_is_one_line(capsys):
    assert curves.main([]) == 2
    assert "--workdir=DIR is needed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_short_study_runs_to_its_table(tmp_path, capsys):
    short = ["--config.train.steps=120", "--config.eval.every_steps=6", "--config.schedule.warmup_steps=6"]
    assert curves.main([f"--workdir={tmp_path}", "--json", *short, "--config.eval.batches=1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [law["law"] for law in result["laws"]] == ["annealing", "multi_power"]
    assert (tmp_path / "curves.png").exists()
