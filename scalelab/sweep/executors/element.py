"""A Slurm job: it trains its pack, and has itself requeued if it was stopped before the end."""

import os
import pathlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab import user_code
from scalelab.errors import BadInput, WorkFailed
from scalelab.record import records
from scalelab.signals import stop_on_signals
from scalelab.sweep.executors import jobs, queue
from scalelab.sweep.executors.worker import STOPPED_EXIT_CODE
from scalelab.untrusted.files import read_end
from scalelab.untrusted.paths import path_below

MOST_REQUEUES = 5  # starts in a row without a new step, after the first
MOST_SKEW_S = 60.0  # between a node's clock and the file server's
CANCELLED_FILE = "cancelled"  # in the folder of submissions: those that nobody wants any more


class Element:
    """A pack as submitit's function; `checkpoint` is submitit's protocol for a signal before training listens.

    `permissions` are of the process that submits: the user code that its user has named.
    """

    permissions: Mapping[str, Sequence[str]] | None = None  # of an element that an older version submitted

    def __init__(
        self,
        folder: str,
        pack: str,
        submission: str,
        judge: Any = None,
        permissions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.folder, self.pack, self.submission, self.judge = folder, pack, submission, judge
        self.permissions = permissions

    def __call__(self) -> int:
        user_code.apply_permissions(self.permissions or {"names": [], "folders": []})
        return train_element(pathlib.Path(self.folder), self.pack, self.submission, self.judge)

    def checkpoint(self) -> Any:
        """The call that submitit submits again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submissions_folder(folder: pathlib.Path) -> pathlib.Path:
    """Where a sweep keeps what it submitted."""
    return path_below(folder, "slurm")


def train_element(folder: pathlib.Path, pack: str, submission: str, judge: Any = None) -> int:
    """Train a pack as this job, or as one process of it; returns the pack's exit code, which starts.jsonl gets too.

    The job is requeued after a stop before its time limit or by preemption, and where no step ends for `train.stall_s`.
    Of several processes only the first one does so, and writes to starts.jsonl.
    """
    if not (submissions_folder(folder) / f"{submission}.json").exists():
        sys.exit(f"{folder} on {os.uname().nodename} is not the folder that was submitted: is it shared between nodes?")
    trials, job = list(jobs.read_job(folder, pack)["trials"]), queue.this_job()
    if os.environ.get("SLURM_PROCID", "0") != "0":
        with stop_on_signals() as stop:
            return jobs.train_job(folder, pack, stop, judge)
    step = jobs.last_step(folder, trials)

    def end(code: int, why: str) -> int:
        jobs.note_end(folder, pack, submission, job, jobs.last_step(folder, trials), code, why)
        return code

    if why := refuse_start(jobs.read_starts(folder, pack, submission), step):
        return end(1, why)
    if abs(skew := jobs.note_start(folder, pack, submission, job, step)) > MOST_SKEW_S:
        text = f"the clock of {os.uname().nodename} is {skew:+.0f} s off the file server's"
        for name in trials:
            (folder / "runs" / name).mkdir(parents=True, exist_ok=True)
            records.write_event(folder / "runs" / name, "warning", None, text)

    def stalled(why: str) -> None:
        _log(why)
        end(*requeue(folder, submission, job, why))
        os._exit(1)

    with stop_on_signals() as stop:
        try:
            code, why = jobs.train_job(folder, pack, stop, judge, stalled), ""
        except (BadInput, WorkFailed) as error:
            code, why = 2 if isinstance(error, BadInput) else 1, str(error)
        except Exception as error:  # of any kind: the submitter reads why
            traceback.print_exc()
            code, why = 1, f"{type(error).__name__}: {error}".splitlines()[0]
        if why:
            _log(why)
        return end(
            *requeue(folder, submission, job, "stopped by a signal") if code == STOPPED_EXIT_CODE else (code, why)
        )


def _log(why: str) -> None:
    sys.stderr.write(f"{why}\n")
    sys.stderr.flush()


def refuse_start(lines: list[dict[str, Any]], step: int) -> str:
    """Why a pack is not started again, from the lines of its starts and ends; "" to start it."""
    starts = [line for line in lines if "code" not in line]
    if sum(line["step"] >= step for line in starts) <= MOST_REQUEUES:
        return ""
    ends = [line["why"] for line in lines if line.get("why")]
    last = f"; the last time: {ends[-1]}" if ends else ""
    return f"started {len(starts)} times, {MOST_REQUEUES + 1} of them without a new step after {step}{last}"


def requeue(folder: pathlib.Path, submission: str, job: str, why: str) -> tuple[int, str]:
    """Requeue this job unless it was cancelled: (exit code 75 or 1, what happened)."""
    marks = submissions_folder(folder) / CANCELLED_FILE
    if marks.exists() and submission in read_end(marks).split():
        return STOPPED_EXIT_CODE, f"{why}; cancelled"
    if queue.job_state(job) == "CANCELLED":
        return STOPPED_EXIT_CODE, f"{why}; cancelled with scancel"
    try:
        queue.requeue_job(job)
    except OSError as error:
        return 1, f"{why}; Slurm did not requeue it: {error}"
    return STOPPED_EXIT_CODE, f"{why}; requeued"
