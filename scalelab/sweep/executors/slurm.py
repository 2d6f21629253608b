"""Packs as one array job of Slurm: submitted through submitit, watched in the queue and in the run folders.

    D/slurm/ID.json      one submission, written before it: its packs, by their index in the array
    D/slurm/jobs/        submitit's files, with the output of each job until its pack's own log takes over

Nothing is kept in memory alone: whoever runs the command again finds the jobs by their name in the queue and attaches
to them; a pack without a job, and not at its end, is submitted again.
"""

import contextlib
import hashlib
import math
import pathlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from scalelab import git, records
from scalelab.cli.parser import print_status
from scalelab.errors import BadInput, WorkFailed, nearest_hint
from scalelab.jsonfiles import NUMBER, WHOLE
from scalelab.sweep.executors import element, jobs, queue
from scalelab.sweep.executors.pool import PackJobs, WatchTrials

POLL_S = 3.0
SUBMISSION_SCHEMA = {"packs": {"*": WHOLE}, "time": NUMBER}
# What the submission itself sets, and what to use instead.
RESERVED = {"array": "--max-parallel", "comment": "", "job-name": "", "open-mode": "", "output": "packs/KEY/log.txt",
            "error": "packs/KEY/log.txt", "wrap": "", "requeue": "", "no-requeue": "", "parsable": "", "wait": "",
            "help": "", "usage": "", "version": "", "test-only": ""}  # fmt: skip


class SlurmArray:
    """Trains packs as the elements of an array job; as `pool.WorkerPool` to its caller."""

    def __init__(
        self, folder: pathlib.Path, settings: Mapping[str, str], max_parallel: int, allow: Collection[str] = (),
        take_over: bool = False, stop_if: str | None = None,
    ) -> None:  # fmt: skip
        queue.require_slurm()
        check_settings(settings)
        self.folder, self.settings, self.max_parallel = folder.absolute(), settings, max_parallel
        self.options = (tuple(allow), take_over, stop_if)
        self.said = ""  # the last line about the queue: only another one is printed

    def __enter__(self) -> "SlurmArray":
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing to end: jobs are Slurm's."""

    def run(
        self, packs: PackJobs, watch: WatchTrials = lambda running: None, stop: Callable[[], bool] = lambda: False,
        code: Mapping[str, git.RepoState] | None = None,
    ) -> dict[str, int]:  # fmt: skip
        """Submit the packs that have no job yet, and wait until all have ended; exit codes as of the pool.

        `stop` leaves the jobs running.
        """
        known = find_jobs(self.folder)
        new = [pack for pack in packs if pack not in known]
        if known:
            print_status(f"{len(set(packs) & set(known))} packs have a job already: {_summary(known)}")
        for pack in new:
            allow, take_over, stop_if = self.options
            jobs.write_job(self.folder, pack, packs[pack], code, allow, take_over, stop_if)
        if new:
            self._submit(new)
        codes: dict[str, int] = {}
        while set(codes) < set(packs):
            if stop():
                print_status(describe_leaving(self.folder))
                break
            live = self._ask_queue()
            if live is not None:
                watch([pack for pack, job in live.items() if job.state == "RUNNING"])
                waiting = [pack for pack in packs if pack not in codes]
                codes |= {p: end for p in waiting if (end := settle(self.folder, p, live.get(p))) is not None}
            _sleep(POLL_S, stop)
        return codes

    def _ask_queue(self) -> dict[str, queue.QueuedJob] | None:
        """The jobs by pack; None while Slurm doesn't answer. Changes in the queue are printed."""
        try:
            live = find_jobs(self.folder)
            line = f"Slurm: {_summary(live)}" if live else self.said
        except OSError as error:
            live, line = None, f"Slurm doesn't answer ({error}); asked again every {POLL_S:.0f} s"
        if line != self.said:
            self.said = line
            print_status(line)
        return live

    def _submit(self, packs: Sequence[str]) -> None:
        """Submit the packs as one array. BadInput with sbatch's own words if it refuses."""
        import submitit

        submission = f"{int(time.time())}-{secrets.token_hex(3)}"
        place = element.submissions_folder(self.folder)
        place.mkdir(parents=True, exist_ok=True)
        indices = {pack: index for index, pack in enumerate(packs)}
        records.write_json(place / f"{submission}.json", {"packs": indices, "time": time.time()})
        executor = submitit.SlurmExecutor(place / "jobs", max_num_timeout=element.MOST_REQUEUES)
        executor.update_parameters(
            job_name=job_name(self.folder), comment=submission, time=None, wckey=None, stderr_to_stdout=True,
            array_parallelism=self.max_parallel or len(packs),
            additional_parameters={key: value or True for key, value in self.settings.items()} | {"requeue": True},
        )  # fmt: skip
        try:
            with executor.batch():
                submitted = [executor.submit(element.Element(str(self.folder), p, submission)) for p in packs]
        except submitit.core.utils.FailedJobError as refusal:
            (place / f"{submission}.json").unlink()
            raise BadInput(_describe_refusal(str(refusal), self.settings)) from None
        print_status(f"submitted {len(packs)} packs as Slurm job {submitted[0].job_id.partition('_')[0]}")


def check_settings(settings: Mapping[str, str]) -> None:
    """BadInput for an option that this cluster's sbatch doesn't know, or that the submission sets itself."""
    try:
        known = queue.list_options()
    except OSError as error:
        raise BadInput(f"--executor=slurm: Slurm doesn't answer: {error}") from None
    for key in settings:
        if key in RESERVED:
            instead = f"; see {RESERVED[key]}" if RESERVED[key] else ""
            raise BadInput(f"--slurm.{key} is set by scalelab{instead}")
        if key not in known:
            raise BadInput(f"--slurm.{key} is no option of sbatch{nearest_hint(key, known)}")


def _describe_refusal(text: str, settings: Mapping[str, str]) -> str:
    """What sbatch said, in one line, with the partitions that there are where it is about them."""
    lines = [line for line in queue.error_lines(text) if "sbatch" in line] or list(queue.error_lines(text))
    what = "; ".join(reversed(lines)) or "sbatch refused the job"
    if "partition" in what and (name := settings.get("partition")):
        with contextlib.suppress(OSError):
            return f"--slurm.partition={name}: {what}{nearest_hint(name, queue.list_partitions())}"
    return f"--executor=slurm: {what}"


def job_name(folder: pathlib.Path) -> str:
    """The name of all jobs of a sweep: its folder's, and a digest of the whole path."""
    path = str(folder.absolute())
    return f"{folder.absolute().name}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def find_jobs(folder: pathlib.Path) -> dict[str, queue.QueuedJob]:
    """{pack: its unfinished job}, from the queue and the submissions of a sweep. OSError if Slurm doesn't answer."""
    found = {}
    for job in queue.list_jobs(job_name(folder)):
        path = element.submissions_folder(folder) / f"{job.comment}.json"
        if path.exists():
            packs = records.read_json(path, SUBMISSION_SCHEMA)["packs"]
            found |= {pack: job for pack, index in packs.items() if index == job.place}
    return found


def settle(folder: pathlib.Path, pack: str, job: queue.QueuedJob | None) -> int | None:
    """The exit code of a pack that has ended; None while it has a job. A reason goes into its log where none is."""
    lines = jobs.read_starts(folder, pack)
    last = lines[-1] if lines else {}
    ended = last.get("code") is not None and not last["why"].endswith("; requeued")
    if ended and (job is None or last["job"] == job.job):
        return int(last["code"])
    if job is not None:
        return None
    with open(folder / "packs" / pack / "log.txt", "a") as log:
        log.write(f"{describe_loss(folder, pack, last)}\n")
    return 1


def describe_loss(folder: pathlib.Path, pack: str, last: Mapping[str, Any]) -> str:
    """Why a pack has neither a job nor an end, as far as the files tell."""
    outputs = sorted((element.submissions_folder(folder) / "jobs").glob(f"{last.get('job') or '*'}_*.out"))
    said = [line for path in outputs for line in path.read_text(errors="replace").splitlines() if "error" in line]
    words = f": {said[-1].strip()}" if said else ""
    if not last:
        return f"its Slurm job ended before it wrote into {folder}: is that shared between nodes?{words}"
    return f"Slurm job {last['job']} on {last['host']} ended without a word (killed, out of memory, node lost){words}"


def cancel(folder: pathlib.Path) -> int:
    """Cancel all jobs of a sweep, which save first; the number of jobs. WorkFailed if Slurm doesn't answer."""
    queue.require_slurm()
    try:
        live = find_jobs(folder)
        with open(element.submissions_folder(folder) / element.CANCELLED_FILE, "a") as marks:
            marks.writelines(f"{comment}\n" for comment in sorted({job.comment for job in live.values()}))
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
    return f"Slurm: {_summary(live)}" if live else "Slurm: no job is left"


def _summary(live: Mapping[str, queue.QueuedJob]) -> str:
    kinds: dict[str, int] = {}
    for job in live.values():
        words = job.state.lower() + (f" ({job.reason})" if job.state == "PENDING" and job.reason != "None" else "")
        kinds[words] = kinds.get(words, 0) + 1
    return ", ".join(f"{count} {words}" for words, count in kinds.items())


def describe_leaving(folder: pathlib.Path) -> str:
    """What a user can do after ctrl-C."""
    return (
        f"the jobs go on in Slurm; the same command attaches to them. Look: scalelab sweep --workdir={folder} "
        f"--status, or squeue --name={job_name(folder)}; end them: scalelab sweep --workdir={folder} --cancel"
    )


def _sleep(seconds: float, stop: Callable[[], bool]) -> None:
    for _ in range(math.ceil(seconds / 0.2)):
        if stop():
            return
        time.sleep(0.2)
