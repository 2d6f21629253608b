"""Packed trials on several devices: the trial axis is spread over them, and each trial's numbers stay."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.sweep.run import run_sweep
from scalelab.train.step.program import spread_trials, vmapped_program
from tests.train.runs import ROOT, untimed

TINY = {
    "model.d_model": 16, "model.n_layers": 1, "model.seq_len": 32, "train.global_batch": 4, "train.steps": 8,
    "train.steps_per_dispatch": 4, "eval.batches": 1, "eval.every_steps": 8, "checkpoint.every_steps": 4,
    "log.every_steps": 1,
}  # fmt: skip
TRIALS = 9
STOP_AFTER_4 = """
import pathlib, sys
from tests.sweep import test_devices
test_devices.show_shardings()
notes = []
test_devices.run_sweep(pathlib.Path(sys.argv[1]), test_devices.trials(), notes.append, stop=lambda: True)
print(*[note["note"] for note in notes if "devices" in note.get("note", "")], sep="\\n")
"""


def trials():
    """Nine trials of two learning rates and many seeds."""
    points = {f"t{i:02}": {"optim.peak_lr": 1e-3 * (1 + i % 2), "train.seed": i} for i in range(TRIALS)}
    return {
        name: config_lib.resolve(override(tiny.get_config(), TINY | {"sweep.pack": "vmap"} | point))
        for name, point in points.items()
    }


def show_shardings():
    """Print of all states the devices of each trial: no array is whole on every device."""
    configs = list(trials().values())
    program = vmapped_program(config_lib.static(configs[0]), [config_lib.hparams(each) for each in configs])
    places = {
        tuple((shard.device.id, shard.data.shape[0]) for shard in leaf.addressable_shards)
        for leaf in jax.tree.leaves(program.init())
    }
    print(places)


@pytest.mark.parametrize(("n", "devices", "expected"), [
    (8, 8, (8, 1)), (16, 8, (8, 2)), (11, 8, (6, 2)), (9, 8, (5, 2)), (3, 8, (3, 1)), (6, 4, (3, 2)), (5, 1, (1, 5)),
])  # fmt: skip
def test_no_device_has_more_trials_than_it_must(n, devices, expected):
    used, each = spread_trials(n, devices)
    assert (used, each) == expected
    fewest = min(k for k in range(1, n + 1) if k * devices >= n)
    assert each == fewest and (used - 1) * each < n <= used * each


@pytest.mark.slow
def test_trials_on_eight_devices_go_on_on_one_as_if_they_had_always_been_there(tmp_path):
    """To 1e-5: a product of two batched matrices rounds unlike one of nine (after 5 steps, by 9e-8 of the loss)."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", STOP_AFTER_4, str(tmp_path / "spread")],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
        text=True,
        capture_output=True,
    )
    places = tuple((device, 2) for device in range(5))
    note = "9 trials on 5 of 8 devices, 2 on each; the last device also has 1 idle copy"
    assert done.stdout.splitlines() == [str({places}), note], done.stderr[-2000:]
    folder = tmp_path / "spread" / "runs" / "t08"
    assert records.read_json(folder / "record.json")["mesh"] == {"trial": 5, "devices": 5}
    assert untimed(folder)[-1]["step"] == 4

    assert set(run_sweep(tmp_path / "spread", trials()).values()) == {"done"}
    assert records.read_json(folder / "record.json")["mesh"] == {"trial": 1, "devices": 1}
    run_sweep(tmp_path / "one", trials())
    for name in trials():
        spread, one = (untimed(tmp_path / kind / "runs" / name) for kind in ("spread", "one"))
        assert [line["step"] for line in spread] == [line["step"] for line in one] and one[-1]["step"] == 8
        for a, b in zip(spread, one, strict=True):
            np.testing.assert_allclose([a[key] for key in b], [b[key] for key in b], rtol=1e-5, err_msg=name)
