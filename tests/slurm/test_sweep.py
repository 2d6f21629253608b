"""Sweeps on a real Slurm of one node (`make test-slurm`)."""

import re
import subprocess
import sys
import time

import pytest

from scalelab import records
from scalelab.sweep.executors import jobs
from tests.slurm import cluster
from tests.train.runs import ROOT, untimed

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(cluster.missing_program()), reason=f"{cluster.missing_program()} is not installed: "
                       "apt-get install slurmctld slurmd slurm-client munge"),
]  # fmt: skip
WAIT_S = 240
CONFIG = """
from scalelab.configs import tiny
from scalelab.config import override
def get_config():
    return override(tiny.get_config(), {{"model.d_model": 16, "train.steps": {steps}, "train.steps_per_dispatch": 1,
        "eval.batches": 1, "checkpoint.every_steps": 20, "train.deterministic": True}} | {changes})
def sweep(h): return {grid}
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster.start(tmp_path_factory.mktemp("cluster") / "slurm") as running:
        yield running


class Sweep:
    """A sweep's folder, its config file, and the commands that a user would type."""

    def __init__(self, slurm, folder, grid, steps=60, changes=None):
        self.slurm, self.folder, self.place = slurm, folder, folder / "sweep"
        folder.mkdir(exist_ok=True)
        (folder / "mine.py").write_text(CONFIG.format(grid=grid, steps=steps, changes=changes or {}))
        self.environment = slurm.environment | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}

    def start(self, *options, executor="slurm"):
        command = [sys.executable, "-m", "scalelab", "sweep", f"--config={self.folder}/mine.py",
                   f"--workdir={self.place}", f"--executor={executor}", *options]  # fmt: skip
        return subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip

    def finish(self, process, code=0):
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == code, (process.returncode, out[-2000:], err[-3000:], self.logs())
        return out, err

    def run(self, *options, code=0, **more):
        return self.finish(self.start(*options, **more), code)

    def command(self, *options):
        done = subprocess.run([sys.executable, "-m", "scalelab", "sweep", f"--workdir={self.place}", *options],
                              env=self.environment, cwd=self.folder, capture_output=True, text=True)  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def logs(self):
        return {str(path): path.read_text()[-1500:] for path in self.place.glob("**/*.out")} | {
            str(path): path.read_text()[-1500:] for path in self.place.glob("packs/*/log.txt")
        }

    def jobs(self):
        return self.slurm.run("squeue", "-h", "-r", "-o", "%i %T").split("\n")[:-1]

    def wait_for_step(self, step, trial=None):
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            names = [trial] if trial else [path.name for path in self.place.glob("runs/*")]
            if names and all(jobs.last_step(self.place, [name]) >= step for name in names):
                return
            time.sleep(0.1)
        raise AssertionError((self.jobs(), self.logs()))

    def digests(self):
        return {path.name: untimed(path) for path in sorted(self.place.glob("runs/*"))}

    def starts(self):
        return [line for path in self.place.glob("packs/*/starts.jsonl") for line in records.read_json_lines(path)]


WIDTHS = 'h.sweep("model.d_model", [16, 24, 32, 40, 48, 56])'


def release(slurm):
    """Let requeued jobs start at once: Slurm makes them wait for two minutes."""
    for job in slurm.run("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i").split():
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], env=slurm.environment, check=False)


def test_an_array_of_six_packs_trains_what_the_pool_trains(slurm, tmp_path):
    here, there = (Sweep(slurm, tmp_path / name, WIDTHS) for name in ("here", "there"))
    _, err = there.run("--slurm.cpus-per-task=1", "--max-parallel=3")
    assert re.search(r"submitted 6 packs as Slurm job \d+", err)
    here.run("--config.sweep.workers=1", executor="local")
    assert there.digests() == here.digests() and len(there.digests()) == 6
    code, out, err = there.command("--status")
    assert code == 0 and out.count("done") == 6 and "Slurm: no job is left" in err
    _, err = there.run()  # again: nothing to do
    assert "submitted" not in err
