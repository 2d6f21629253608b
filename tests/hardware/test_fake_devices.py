"""Fake CPU devices: XLA keeps their exchanges in one order, however many cores there are."""

import os
import subprocess
import sys

import pytest

from scalelab.hardware.fake_devices import FAKE_DEVICES, SCHEDULER, order_collectives

RING = (
    "parallel.context=8", "parallel.data=1", "model.remat=full", "data.documents=mask", "model.d_model=64",
    "model.n_heads=8", "model.n_kv_heads=8", "model.seq_len=64", "train.steps=2", "train.global_batch=8",
    "eval.batches=1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (f"--{FAKE_DEVICES}=8", f"--{FAKE_DEVICES}=8 --{SCHEDULER}=false"),
        (f"--{FAKE_DEVICES}=8 --{SCHEDULER}=true", f"--{FAKE_DEVICES}=8 --{SCHEDULER}=true"),  # as the user says
        ("--xla_dump_to=a", "--xla_dump_to=a"),  # a device of its own needs nothing
    ],
)
def test_a_process_with_fake_devices_asks_for_the_scheduler_that_keeps_order(given, wanted):
    environment = {"XLA_FLAGS": given}
    order_collectives(environment)
    assert environment == {"XLA_FLAGS": wanted}
    env = os.environ | {"XLA_FLAGS": given}
    told = subprocess.run(
        [sys.executable, "-c", "import scalelab, os; print(os.environ['XLA_FLAGS'])"], env=env, capture_output=True
    )
    assert told.stdout.decode().strip() == wanted


@pytest.mark.full
def test_a_ring_of_eight_devices_trains_where_threads_are_more_than_devices(tmp_path):
    """With XLA's own choice of scheduler this ends in an abort: two exchanges of a device meet in one place."""
    flags = f"{os.environ['XLA_FLAGS']} --{FAKE_DEVICES}=8"
    env = os.environ | {"XLA_FLAGS": flags, "PJRT_NPROC": "16"}  # as many threads as a machine of 16 cores has
    keys = [f"--config.{key}" for key in RING]
    command = [sys.executable, "-m", "scalelab", "train", "--config=tiny", f"--workdir={tmp_path / 'run'}", *keys]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
