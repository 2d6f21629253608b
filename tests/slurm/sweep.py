"""A sweep on the cluster as its user sees it: a config file, a folder, the commands they type, what they can kill."""

import contextlib
import os
import signal
import subprocess
import sys
import time

from scalelab.record import records
from scalelab.sweep.executors import jobs
from tests.train.runs import ROOT, hear_signals, untimed

WAIT_S = 240
CONFIG = """
from scalelab.configs import tiny
from scalelab.config import override
def get_config():
    return override(tiny.get_config(), {{"model.d_model": 16, "train.steps": {steps}, "train.steps_per_dispatch": 1,
        "eval.batches": 1, "checkpoint.every_steps": 20, "train.deterministic": True}} | {changes})
def sweep(h): return {grid}
"""


ONE = 'h.sweep("train.seed", [1])'
PAIR = 'h.sweep("model.d_model", [16, 24])'


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
        with hear_signals():
            return subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def finish(self, process, code=0):
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == code, (process.returncode, out[-2000:], err[-3000:], self.logs())
        return out, err

    def run(self, *options, code=0, **more):
        return self.finish(self.start(*options, **more), code)

    def command(self, *options):
        done = subprocess.run(
            [sys.executable, "-m", "scalelab", "sweep", f"--workdir={self.place}", *options],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
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
            names = [trial] if trial else [path.name for path in self.place.glob("runs/*/")]
            if names and all(jobs.last_step(self.place, [name]) >= step for name in names):
                return
            time.sleep(0.1)
        raise AssertionError((self.jobs(), self.logs()))

    def digests(self):
        return {path.name: untimed(path) for path in sorted(self.place.glob("runs/*/"))}

    def starts(self):
        return [line for path in self.place.glob("packs/*/starts.jsonl") for line in records.read_json_lines(path)]


def release(slurm):
    """Let requeued jobs start at once: Slurm makes them wait for two minutes."""
    for job in slurm.run("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i").split():
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], env=slurm.environment, check=False)


def finish_with_releases(sweep, process, code=0):
    """Wait for the end while requeued jobs are let go at once."""
    while process.poll() is None:
        release(sweep.slurm)
        time.sleep(1)
    return sweep.finish(process, code)


def wait_until(condition):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.5)


def kill_node(slurm):
    """Kill slurmd, the steps' daemons and all that they run, as when a machine loses power."""
    daemon = slurm.daemons["slurmd"]
    family = _pids("pgrep", "-f", "slurmstepd")
    below = [pid for parent in family for pid in _descendants(parent)]
    daemon.kill()
    for pid in {*family, *below}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    daemon.wait()


def _pids(*command):
    return [int(word) for word in subprocess.run(command, capture_output=True, text=True).stdout.split()]


def _descendants(pid):
    children = _pids("pgrep", "-P", str(pid))
    return children + [each for child in children for each in _descendants(child)]
