"""The study of a provoked spike: its runs are one program, and its table is the arithmetic of its curves."""

import json
import math

import pytest

from scalelab import config as config_lib
from scalelab.experiments import spike
from scalelab.sweep.trials import group_into_packs

BASE = config_lib.load(spike.ROOT / "configs" / "spike.py", {})


def test_all_runs_share_one_program_and_no_run_stands_twice():
    runs = spike.make_trials(BASE, range(2))
    assert len(runs) == 2 * 4 + 4 * (3 + 2) and len(group_into_packs(runs)) == 1
    arm = runs[spike.trial_name("warm-up", 0.6, 1)]
    assert (arm.optim.clip_norm, arm.schedule.warmup_steps, arm.train.seed) == (1e9, 100, 1)


def test_the_best_rate_is_chosen_on_its_own_seeds_and_compared_on_others():
    """The choosing seeds prefer 0.3; the reported ones would prefer 0.42, which must not matter."""
    losses = {name: 2.5 for name in spike.make_trials(BASE, range(2))}
    losses |= {spike.trial_name("both", 0.3, seed): 2.0 for seed in spike.CHOOSING_SEEDS}
    losses |= {spike.trial_name("both", 0.3, 0): 2.0, spike.trial_name("both", 0.3, 1): 2.2}
    losses |= {spike.trial_name("both", 0.42, seed): 1.0 for seed in (0, 1)}
    losses |= {spike.trial_name("both", 0.6, 0): 2.021, spike.trial_name("both", 0.6, 1): 2.263}
    losses[spike.trial_name("neither", 0.6, 1)] = math.inf
    curves = {name: [4.0, 3.0, 3.5, 2.0] for name in losses}
    curves[spike.trial_name("neither", 0.6, 0)] = [4.0, 3.0, 9.0, 2.0]
    compared = spike.compare_arms(losses, curves, range(2))
    rows = {row["arm"]: row for row in compared["arms"]}
    assert compared["best_lr"] == 0.3
    # differences .021 and .063 of a mean loss of 2.1: mean 2 %, half-width t(.95, 1) x .021 = 6.3138 x .021
    assert rows["both"]["excess"] == pytest.approx(0.02)
    assert rows["both"]["interval90"][1] == pytest.approx((0.042 + 6.3138 * 0.021) / 2.1, rel=1e-4)
    assert (rows["neither"]["diverged"], rows["neither"]["excess"]) == (1, None)
    assert (rows["neither"]["largest_rise"], rows["both"]["largest_rise"]) == (6.0, 0.5)
    lines = spike.verdicts(compared)
    assert "spikes: yes" in lines[0] and "within 1%" in lines[1] and "NO (+2.00%, 90% interval" in lines[1]


def test_a_missing_workdir_is_one_line(capsys):
    assert spike.main(["--quick"]) == 2
    assert "--workdir=DIR is needed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_short_study_runs_to_its_table(tmp_path, capsys):
    short = ["--config.train.steps=120", "--config.eval.every_steps=120", "--config.eval.batches=1"]  # 100 warm up
    assert spike.main(["--quick", f"--workdir={tmp_path}", "--json", *short]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["arms"]) == 4 and (tmp_path / "spike.png").exists()
