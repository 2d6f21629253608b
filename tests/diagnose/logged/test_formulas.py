"""Schedules by their formulas: equal to the trained ones at each step, and what the step computes judged by them."""

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.diagnose.checks.logged import formulas
from scalelab.diagnose.checks.logged.schedule import EDGES
from scalelab.optim import schedules
from scalelab.train.single import train_single
from tests.diagnose.logged.runs import change_lines, diagnosed, small_config
from tests.quick import one_in

STEPS = 210
FALLS = {"schedule.warmup_steps": 13, "schedule.final_share": 0.07}
CASES = {
    "linear": {"schedule.fall_share": 0.8}, "cosine": {"schedule.fall_share": 0.9}, "constant": {}, "multi_step": {},
    "cosine_restarts": {"schedule.cycles": 3, "schedule.cycle_growth": 1.7},
    "inverse_sqrt": {"schedule.hold_steps": 40},
    "wsd_s": {"schedule.cycles": 3, "schedule.cycle_growth": 2.0, "schedule.decay_steps": 30},
    **{f"wsd {shape}": {"schedule.decay_steps": 47, "schedule.decay_shape": shape} for shape in schedules.DECAYS},
}  # fmt: skip


@pytest.mark.parametrize("name", one_in(4, CASES))
def test_a_formula_is_the_trained_schedule_at_each_step(name):
    changes = FALLS | {"train.steps": STEPS - 10, "schedule.name": name.partition(" ")[0]} | CASES[name]
    config = config_lib.resolve(override(tiny.get_config(), changes))
    steps = np.arange(STEPS)
    values = {key: config[key.split(".")[0]][key.split(".")[1]] for key in config_lib.key_records()}
    right = formulas.compute_rates(values, steps)
    trained = schedules.schedule_curves(config, steps)["lr"]
    apart = np.abs(trained - right) > 3e-6 * right.max()
    assert apart.sum() <= EDGES, (steps[apart], trained[apart], right[apart])
    assert np.ptp(right) > 0 and formulas.compute_rates(values | {"schedule.name": "power"}, steps) is None


@pytest.mark.full
def test_a_step_that_asks_its_schedule_once_an_epoch_is_named_though_its_program_agrees(tmp_path, capsys, monkeypatch):
    """The program that would be asked has the slip as well: stairs of 8 steps."""
    usual = schedules.schedule_curves
    stairs = lambda config, steps: usual(config, np.asarray(steps) // 8 * 8)  # noqa: E731
    train_single(small_config(), tmp_path / "run")
    rates = stairs(config_lib.resolve(small_config()), range(60))["lr"]
    change_lines(tmp_path / "run", lambda line: line | {"lr": float(rates[line["step"] - 1])})
    monkeypatch.setattr(schedules, "schedule_curves", stairs)
    verdicts, _, _, code = diagnosed(tmp_path / "run", capsys)
    assert code == 1 and "each 8th step, held until the next" in verdicts["schedule_wrong"]["evidence"]
