"""Fake CPU devices: their exchanges neither stop nor collide, however many cores there are."""

import os
import subprocess
import sys

import pytest

from scalelab.hardware.fake_devices import FAKE_DEVICES, SCHEDULER, keep_exchanges_going

RING = (
    "parallel.context=8", "parallel.data=1", "model.remat=full", "data.documents=mask", "model.d_model=64",
    "model.n_heads=8", "model.n_kv_heads=8", "model.seq_len=64", "train.steps=2", "train.global_batch=8",
    "eval.batches=1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"XLA_FLAGS": f"--{FAKE_DEVICES}=8"},
            {"XLA_FLAGS": f"--{FAKE_DEVICES}=8 --{SCHEDULER}=false", "PJRT_NPROC": "64"},
        ),
        *(
            ({"XLA_FLAGS": f"--{FAKE_DEVICES}=8 --{SCHEDULER}=true", name: "4"},) * 2
            for name in ("PJRT_NPROC", "NPROC")
        ),
        *(({"XLA_FLAGS": flags},) * 2 for flags in ("--xla_dump_to=a", "")),  # a device of its own needs nothing
    ],
)
def test_a_process_with_fake_devices_has_threads_and_a_scheduler_or_what_the_user_set(given, wanted):
    environment = dict(given)
    keep_exchanges_going(environment)
    assert environment == wanted
    others = {key: value for key, value in os.environ.items() if "NPROC" not in key}
    program = "import scalelab, os; print(os.environ['XLA_FLAGS'], os.environ.get('PJRT_NPROC'))"
    told = subprocess.run([sys.executable, "-c", program], env=others | given, capture_output=True, text=True)
    assert told.stdout.strip() == f"{wanted['XLA_FLAGS']} {wanted.get('PJRT_NPROC')}".strip()


@pytest.mark.slow
def test_a_ring_of_eight_devices_trains_where_threads_are_more_than_devices(tmp_path):
    """With XLA's own choice of scheduler this ends in an abort: two permutes of a device meet in one place."""
    flags = f"{os.environ['XLA_FLAGS']} --{FAKE_DEVICES}=8"
    keys = [f"--config.{key}" for key in RING]
    command = [sys.executable, "-m", "scalelab", "train", "--config=tiny", f"--workdir={tmp_path / 'run'}", *keys]
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
