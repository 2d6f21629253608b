"""A circular pipeline whose batch grows: killed and stopped on the way, it ends as if nothing had happened."""

import json
import os
import signal

import pytest

from scalelab.record import records
from scalelab.train.checkpoints import manifest
from tests.train.resume.test_compatibility import SMALL
from tests.train.runs import command, finish, untimed, wait_for

SETTINGS = SMALL | {
    "model.n_layers": 4, "parallel.stage": 2, "parallel.rounds": 2, "parallel.schedule": "circular",
    "parallel.data": 2, "parallel.microbatches": 2, "train.global_batch": 16, "train.accumulate": 4,
    "schedule.batch_start": 4, "schedule.batch_warmup_tokens": 16 * 16 * 20, "train.steps": 60, "eval.every_steps": 30,
    "checkpoint.every_steps": 5,
}  # fmt: skip


def started(folder):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    overrides = [f"--config.{key}={value}" for key, value in SETTINGS.items()]
    arguments = ["--config=configs/tiny.py", f"--workdir={folder}", *overrides, "--json"]
    return command(*arguments, env={"XLA_FLAGS": flags})


@pytest.mark.slow
def test_killed_and_stopped_while_its_batch_grows_it_goes_on_to_the_same_bits(tmp_path):
    whole, folder = finish(started(tmp_path / "whole")), tmp_path / "run"
    for goal, number, code in ((8, signal.SIGKILL, -signal.SIGKILL), (16, signal.SIGTERM, 75)):
        process = started(folder)
        wait_for(lambda goal=goal: any(line["step"] >= goal for line in records.read_metrics(folder)), process)
        process.send_signal(number)
        process.communicate()
        assert process.returncode == code
    result = finish(started(folder))
    tokens = [line["tokens"] for line in untimed(folder) if "train_loss" in line]
    sizes = [later - earlier for earlier, later in zip([0, *tokens], tokens, strict=False)]
    assert sizes[result["resumed_from"]] < sizes[-1] == 16 * 16  # it went on while the batch still grew
    assert result["params_digest"] == whole["params_digest"], json.dumps([result, whole])
    assert untimed(folder) == untimed(tmp_path / "whole")
    assert manifest.read_manifest(folder / "checkpoints" / "60")["health"] == {"run": "healthy"}  # no copy differs
