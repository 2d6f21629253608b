"""The jobs of a sweep in Slurm's queue: which pack has one, which has ended and why, cancel them, tell of them."""

import hashlib
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

from scalelab.errors import WorkFailed, quote_path
from scalelab.record import records
from scalelab.record.jsonfiles import NUMBER, WHOLE
from scalelab.sweep.executors import element, jobs, queue
from scalelab.sweep.executors.worker import STOPPED_EXIT_CODE
from scalelab.untrusted.files import append_text, read_end

SUBMISSION_SCHEMA = {"packs": {"*": WHOLE}, "time": NUMBER}


def job_name(folder: pathlib.Path) -> str:
    """The name of all jobs of a sweep: its folder's, and a digest of the whole path."""
    path = str(folder.absolute())
    return f"{folder.absolute().name}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def find_jobs(folder: pathlib.Path) -> dict[str, queue.QueuedJob]:
    """{pack: its unfinished job}, from the queue and the submissions of a sweep. OSError if Slurm doesn't answer."""
    live: dict[str, queue.QueuedJob] = {}
    for job in queue.list_jobs(job_name(folder)):
        path = element.submissions_folder(folder) / f"{job.comment}.json"
        if path.exists():
            packs = records.read_json(path, SUBMISSION_SCHEMA)["packs"]
            live |= {pack: job for pack, index in packs.items() if index == job.place}
    return live


def settle(folder: pathlib.Path, pack: str, job: queue.QueuedJob | None) -> int | None:
    """The exit code of a pack that has ended; None while it has a job. Why it failed becomes its log's last line."""
    last = _last_line(folder, pack)
    ended = _is_end(last)
    if ended and (job is None or last["job"] == job.job):
        code, why = int(last["code"]), last.get("why") or f"exit code {last['code']}"
    elif job is not None:
        return None
    elif last and queue.job_state(last["job"]) == "CANCELLED":
        return STOPPED_EXIT_CODE
    else:
        code, why = 1, describe_loss(folder, pack, last)
    if code not in (0, STOPPED_EXIT_CODE):
        append_text(folder / "packs" / pack / "log.txt", f"{why}\n")
    return code


def _last_line(folder: pathlib.Path, pack: str) -> dict[str, Any]:
    lines = jobs.read_starts(folder, pack)
    return lines[-1] if lines else {}


def _is_end(line: Mapping[str, Any]) -> bool:
    return line.get("code") is not None and not line.get("why", "").endswith("; requeued")


def was_lost(folder: pathlib.Path, pack: str) -> bool:
    """Whether a pack's job began and has ended without a word: killed, or lost with its node."""
    last = _last_line(folder, pack)
    return bool(last) and not _is_end(last)


def describe_loss(folder: pathlib.Path, pack: str, last: Mapping[str, Any]) -> str:
    """Why a pack has neither a job nor an end, as far as the files tell."""
    outputs = sorted((element.submissions_folder(folder) / "jobs").glob(f"{last.get('job') or '*'}_*.out"))
    errors = [line for path in outputs for line in read_end(path).splitlines() if "error" in line]
    words = f": {errors[-1].strip()}" if errors else ""
    if not last:
        return f"its Slurm job ended before it wrote into {folder}: is that shared between nodes?{words}"
    return f"Slurm job {last['job']} on {last['host']} ended without a word (killed, out of memory, node lost){words}"


def cancel(folder: pathlib.Path) -> int:
    """Cancel all jobs of a sweep, which save first; the number of jobs. WorkFailed if Slurm doesn't answer."""
    queue.require_slurm()
    try:
        live = find_jobs(folder)
        comments = "".join(f"{comment}\n" for comment in sorted({job.comment for job in live.values()}))
        append_text(element.submissions_folder(folder) / element.CANCELLED_FILE, comments)
        queue.cancel_jobs([job.job for job in live.values()])
    except OSError as error:
        raise WorkFailed(f"Slurm doesn't answer: {error}") from error
    return len(live)


def describe_queue(folder: pathlib.Path) -> str:
    """One line about the jobs of a sweep, for its status; "" where none was ever submitted."""
    if not element.submissions_folder(folder).is_dir():
        return ""
    try:
        live = find_jobs(folder)
    except OSError as error:
        return f"Slurm doesn't answer: {error}"
    return f"Slurm: {count_states(live)}" if live else "Slurm: no job is left"


def count_states(live: Mapping[str, queue.QueuedJob]) -> str:
    """The states of jobs in words, e.g. `2 running, 1 pending (Priority)`."""
    kinds: dict[str, int] = {}
    for job in live.values():
        words = job.state.lower() + (f" ({job.reason})" if job.state == "PENDING" and job.reason != "None" else "")
        kinds[words] = kinds.get(words, 0) + 1
    return ", ".join(f"{count} {words}" for words, count in kinds.items())


def describe_leaving(folder: pathlib.Path) -> str:
    """What a user can do after ctrl-C."""
    command, name = f"scalelab sweep --workdir={quote_path(folder)}", shlex.quote(job_name(folder))
    return (
        f"the jobs go on in Slurm; the same command attaches to them. Look: {command} --status, or squeue "
        f"--name={name}; end them: {command} --cancel"
    )
