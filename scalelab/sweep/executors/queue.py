"""Slurm's own commands: what its queue says of our jobs, and to submit, requeue and cancel them."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scalelab.errors import BadInput

TIMEOUT_S = 60.0
DRY_RUN = "`scalelab sweep --dry-run` prints the batch script without one"
FINISHED_STATES = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")


class QueuedJob(NamedTuple):
    """A line of squeue: JOB or JOB_INDEX, its state and reason, and the comment it was submitted with."""

    job: str
    state: str
    reason: str
    comment: str

    @property
    def place(self) -> int:
        """The place in its array; 0 for a single job."""
        return int(self.job.partition("_")[2] or 0)


def require_slurm() -> None:
    """BadInput where Slurm's commands are not installed."""
    for command in ("sbatch", "srun", "squeue", "scancel", "scontrol"):
        if not shutil.which(command):
            raise BadInput(
                f"--executor=slurm: there is no {command} on PATH; run it on a login node of the cluster ({DRY_RUN})"
            )


def list_jobs(name: str) -> list[QueuedJob]:
    """The unfinished jobs of this name, one line an element. OSError if Slurm doesn't answer."""
    lines = _run("squeue", "--noheader", "--array", f"--name={name}", "--format=%i|%T|%r|%k").splitlines()
    jobs = [QueuedJob(*line.strip().split("|", 3)) for line in lines if line.count("|") >= 3]
    return [job for job in jobs if job.state not in FINISHED_STATES]


def job_state(job: str) -> str:
    """The state of one job, e.g. RUNNING; "" if Slurm doesn't know it (any more)."""
    try:
        text = _run("scontrol", "show", "job", job)
    except OSError:
        return ""
    return next(iter(re.findall(r"JobState=(\w+)", text)), "")


def requeue_job(job: str) -> None:
    """Have a job run again, as soon as Slurm lets it. OSError if it refuses."""
    _run("scontrol", "requeue", job)


def cancel_jobs(jobs: Sequence[str]) -> None:
    """Cancel jobs, JOB or JOB_INDEX; those that have just ended are no error."""
    if jobs:
        _run("scancel", "--quiet", *jobs)


def list_options() -> list[str]:
    """The long options of this cluster's sbatch, without their dashes. OSError if it doesn't answer."""
    return sorted(set(re.findall(r"--([a-z][a-z-]+)", _run("sbatch", "--help"))))


def list_partitions() -> list[str]:
    """The names of the cluster's partitions. OSError if Slurm doesn't answer."""
    return _run("sinfo", "--noheader", "--format=%R").split()


def this_job() -> str:
    """The id of the job that this process belongs to, as requeue and cancel take it: JOB or JOB_INDEX."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", "")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise OSError(f"{command[0]} gave no answer for {TIMEOUT_S:.0f} s") from late
    if done.returncode:
        raise OSError(next(error_lines(done.stderr), f"{command[0]} ended with {done.returncode}"))
    return done.stdout


def error_lines(text: str) -> Iterator[str]:
    """The messages in what a command of Slurm wrote on standard error, last first, without `error:`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    yield from (re.sub(r"^(\w+: )?(error|fatal): ", r"\1", line) for line in reversed(lines))
