"""A rewind in two processes of one device each: both go back alike, also when either is killed on the way."""

import json
import os
import signal
import subprocess
import sys

import pytest

from scalelab.__main__ import main
from scalelab.data.batches.batches import TrainBatches
from scalelab.record import records
from scalelab.train.resume import rewind
from tests.train.resume.test_rewind import POINTS, SMALL, kill_at_call, plant_bad_data, without_bad_data
from tests.train.runs import ROOT, ended, finish, free_port

pytestmark = pytest.mark.slow


OFF = {"guard.policy": "off", "checkpoint.every_steps": 120}


def train_host(data, point, *arguments):
    """`scalelab train` in this process, on bad data or without it, until it is killed at a `point` of the rewind."""
    with pytest.MonkeyPatch.context() as patch:
        if data == "bad":
            plant_bad_data(patch)
        else:
            patch.setattr(TrainBatches, "numbered", without_bad_data)
        if point:
            kill_at_call(patch, *POINTS[point])
        sys.exit(main(["train", *arguments]))


def start(folder, data, point="", more=(), devices=1, **changes):
    """A process of a run over two devices."""
    settings = {"parallel.data": 2} | SMALL | changes
    arguments = ["--config=configs/tiny.py", f"--workdir={folder}", "--json", *more]
    arguments += [f"--config.{key}={value}" for key, value in settings.items()]
    code = f"import sys; from {__name__} import train_host; train_host(*sys.argv[1:])"
    env = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"}
    return subprocess.Popen(
        [sys.executable, "-c", code, data, point, *arguments],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def pair(folder, points=("", "")):
    """Both processes of a run on bad data, started."""
    meet = (f"--coordinator=localhost:{free_port()}", "--processes=2")
    return [start(folder, "bad", point, (*meet, f"--process-id={i}")) for i, point in enumerate(points)]


def check_rewound(folder, processes, digest):
    """Both end well, and the run has gone back once, to the bits of the run that never saw the bad batches."""
    result = finish(processes[0])
    out, err = ended(processes[1])
    assert (processes[1].returncode, out) == (0, ""), err
    assert result["status"] == "done" and result["params_digest"] == digest
    events = [e for e in records.read_events(folder) if e["kind"] == "guard" and e["action"] == "rewind"]
    assert events[-1]["to"] == 60 and events[-1]["batches"] == [61, 95]
    assert list(rewind.read_decisions(folder)) == ["1"]
    steps = [line["step"] for line in records.read_metrics(folder) if "train_loss" in line]
    assert steps == list(range(1, 121))


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    """That of one process with both devices, whose data never held the bad batches, without any guard."""
    return finish(start(tmp_path_factory.mktemp("spared") / "run", "spared", devices=2, **OFF))["params_digest"]


def test_two_processes_go_back_alike(digest, tmp_path):
    check_rewound(tmp_path / "run", pair(tmp_path / "run"), digest)


@pytest.mark.full
def test_either_process_killed_in_a_rewind_ends_both_and_the_pair_goes_on_to_the_same_bits(digest, tmp_path):
    folder = tmp_path / "run"
    for victim, point in ((0, "after it"), (1, "after restoring")):
        processes = pair(folder, [point if i == victim else "" for i in range(2)])
        _, err = ended(processes[1 - victim])
        processes[victim].communicate()
        assert processes[victim].returncode == -signal.SIGKILL and processes[1 - victim].returncode == 1, err
        assert f"process {victim} of 2 is gone" in err.strip().splitlines()[-1], err
        assert json.loads((folder / "guard.json").read_text())["rewinds"]["1"]["to"] == 60
    check_rewound(folder, pair(folder), digest)
