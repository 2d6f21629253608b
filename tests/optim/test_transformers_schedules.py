"""Schedules beside those of transformers 5.24.0, stepped once for each optimizer step.

transformers_schedules.json holds their LR at 40 steps: 8 of warm-up, of `get_wsd_schedule` a decay of 10, the peak 1.
Ours is one step ahead of theirs in the warm-up (their step 0 has LR 0), and inverse_sqrt is one step ahead everywhere:
it follows Vaswani et al. 2017, whose steps count from 1.
"""

import json
import pathlib

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.optim import schedules
from tests.rounding import FP32

TABLE = json.loads(pathlib.Path(__file__).with_name("transformers_schedules.json").read_text())
WARMUP, STEPS = TABLE["warmup"], TABLE["steps"]
OURS = {
    "get_linear_schedule_with_warmup": {"name": "linear"},
    "get_cosine_schedule_with_warmup": {"name": "cosine"},
    "get_cosine_with_min_lr_schedule_with_warmup": {"name": "cosine", "final_share": 0.1},
    "get_constant_schedule_with_warmup": {"name": "constant"},
    "get_inverse_sqrt_schedule": {"name": "inverse_sqrt"},
    "get_wsd_schedule": {"name": "wsd", "decay_share": TABLE["decay"] / STEPS},
}


@pytest.mark.parametrize("name", OURS)
def test_ours_is_one_step_ahead_in_the_warmup(name):
    values = {"final_share": 0.0, "warmup_steps": WARMUP} | OURS[name]
    if values["name"] in ("constant", "inverse_sqrt"):
        del values["final_share"]
    changes = {f"schedule.{key}": value for key, value in values.items()}
    changes |= {"train.steps": STEPS, "optim.peak_lr": TABLE["peak"]}
    config = config_lib.resolve(config_lib.override(base.get_config(), changes))
    ours = np.asarray(schedules.schedule_curves(config, list(range(STEPS)))["lr"], float)
    theirs = np.asarray(TABLE["lr"][name])
    ahead = STEPS - 1 if name == "get_inverse_sqrt_schedule" else WARMUP
    np.testing.assert_allclose(ours[:ahead], theirs[1 : ahead + 1], rtol=8 * FP32, atol=8 * FP32)
    if ahead == WARMUP:
        np.testing.assert_allclose(ours[WARMUP:], theirs[WARMUP:], rtol=8 * FP32, atol=8 * FP32)
    assert theirs[0] == 0 < ours[0]
