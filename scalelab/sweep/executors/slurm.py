"""Packs as one array job of Slurm: submitted through submitit, watched in the queue and in the run folders.

    D/slurm/ID.json      one submission, written before it: its packs, by their index in the array
    D/slurm/jobs/        submitit's files, with the output of each job until its pack's own log takes over

Nothing is kept in memory alone: whoever runs the command again finds the jobs by their name in the queue and attaches
to them; a pack without a job, and not at its end, is submitted again.
"""

import collections
import contextlib
import math
import os
import pathlib
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from scalelab import git, user_code
from scalelab.errors import BadInput, nearest_hint
from scalelab.record import lock, records
from scalelab.sweep.executors import element, jobs, queue, sweep_jobs
from scalelab.sweep.executors.deaths import MOST_RESTARTS
from scalelab.sweep.executors.pool import PackJobs, WatchTrials

POLL_S = 3.0
# What the submission itself sets, and what to use instead.
RESERVED = {"array": "--max-parallel", "comment": "", "job-name": "", "open-mode": "", "output": "packs/KEY/log.txt",
            "error": "packs/KEY/log.txt", "wrap": "", "requeue": "", "no-requeue": "", "parsable": "", "wait": "",
            "help": "", "usage": "", "version": "", "test-only": ""}  # fmt: skip


class SlurmArray:
    """An executor that trains packs as the elements of an array job, and answers like `pool.WorkerPool`."""

    def __init__(
        self,
        folder: pathlib.Path,
        settings: Mapping[str, str],
        max_parallel: int = 0,
        report: Callable[[str], None] = lambda line: None,
        allow: Collection[str] = (),
        take_over: bool = False,
        judge: Any = None,
    ) -> None:
        _import_submitit()
        queue.require_slurm()
        check_settings(settings)
        self.folder, self.settings, self.max_parallel, self.report = folder.absolute(), settings, max_parallel, report
        self.allow, self.take_over, self.judge = tuple(allow), take_over, judge
        self.reported = ""  # the last line about the queue: only another one is reported

    def __enter__(self) -> "SlurmArray":
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing to end: jobs are Slurm's."""

    def run(
        self,
        packs: PackJobs,
        watch: WatchTrials = lambda running: None,
        stop: Callable[[], bool] = lambda: False,
        code: Mapping[str, git.RepoState] | None = None,
    ) -> dict[str, int]:
        """Submit the packs that have no job yet, and wait until all have ended; exit codes as of the pool.

        `stop` leaves the jobs running.
        """
        known = sweep_jobs.find_jobs(self.folder)
        new = [pack for pack in packs if pack not in known]
        if known:
            self.report(f"{len(set(packs) & set(known))} packs have a job already: {sweep_jobs.count_states(known)}")
        for pack in new:
            jobs.write_job(self.folder, pack, packs[pack], code, self.allow, self.take_over, self.judge)
        if new:
            self._submit(new)
        codes, lost = dict[str, int](), collections.Counter[str]()
        while set(codes) < set(packs):
            if stop():
                self.report(sweep_jobs.describe_leaving(self.folder))
                break
            live = self._ask_queue()
            if live is not None:
                watch([pack for pack, job in live.items() if job.state == "RUNNING"])
                waiting = [pack for pack in packs if pack not in codes]
                ends = {p: e for p in waiting if (e := sweep_jobs.settle(self.folder, p, live.get(p))) is not None}
                again = [p for p, e in ends.items() if e == 1 and lost[p] < MOST_RESTARTS and self._was_lost(p)]
                lost.update(again)
                codes |= {pack: end for pack, end in ends.items() if pack not in again}
                if again:
                    self._submit(again)
            _sleep(POLL_S, stop)
        return codes

    def _was_lost(self, pack: str) -> bool:
        """Whether a pack's job was killed or lost, so that it has to be submitted again; reports it if so."""
        if not sweep_jobs.was_lost(self.folder, pack):
            return False
        self.report(f"pack {pack}: its job ended without a word (killed, out of memory, node lost); submitted again")
        return True

    def _ask_queue(self) -> dict[str, queue.QueuedJob] | None:
        """The jobs by pack; None while Slurm doesn't answer. Changes in the queue are reported."""
        try:
            live = sweep_jobs.find_jobs(self.folder)
            line = f"Slurm: {sweep_jobs.count_states(live)}" if live else self.reported
        except OSError as error:
            live, line = None, f"Slurm doesn't answer ({error}); asked again every {POLL_S:.0f} s"
        if line != self.reported:
            self.reported = line
            self.report(line)
        return live

    def _submit(self, packs: Sequence[str]) -> None:
        """Submit the packs as one array. BadInput with sbatch's own words if it refuses."""
        submitit = _import_submitit()
        submission = f"{int(time.time())}-{secrets.token_hex(3)}"
        place = element.submissions_folder(self.folder)
        place.mkdir(parents=True, exist_ok=True)
        before = set(place.glob("jobs/*"))
        indices = {pack: index for index, pack in enumerate(packs)}
        records.write_json(place / f"{submission}.json", {"packs": indices, "time": time.time()})
        executor = submitit.SlurmExecutor(place / "jobs", max_num_timeout=element.MOST_REQUEUES)
        executor.update_parameters(
            **array_parameters(self.folder, self.settings, self.max_parallel or len(packs), submission)
        )
        given = submission, self.judge, user_code.export_permissions()
        try:
            with executor.batch():
                submitted = [executor.submit(element.Element(str(self.folder), pack, *given)) for pack in packs]
        except submitit.core.utils.FailedJobError as refusal:
            for path in [place / f"{submission}.json", *(set(place.glob("jobs/*")) - before)]:
                path.unlink()
            lock.remove_empty([place / "jobs", place])
            raise BadInput(_describe_refusal(str(refusal), self.settings)) from None
        self.report(f"submitted {len(packs)} packs as Slurm job {submitted[0].job_id.partition('_')[0]}")


def array_parameters(
    folder: pathlib.Path, settings: Mapping[str, str], max_parallel: int, submission: str
) -> dict[str, Any]:
    """Build submitit's parameters for the array of a sweep in `folder`."""
    return {
        "job_name": sweep_jobs.job_name(folder),
        "comment": submission,
        "time": None,
        "wckey": None,
        "stderr_to_stdout": True,
        "array_parallelism": max_parallel,
        "additional_parameters": {key: value or True for key, value in settings.items()} | {"requeue": True},
    }


def write_batch_script(
    folder: pathlib.Path, settings: Mapping[str, str], max_parallel: int, n_packs: int, report: Callable[[str], None]
) -> str:
    """Write the script that sbatch would get for `n_packs` packs, without a cluster and without submitting it.

    `report` gets a line if no sbatch answers here, so that only its submission can tell an unknown option.
    BadInput for an option that the submission sets itself or, where sbatch lists its options, that it doesn't know.
    """
    _import_submitit()
    from submitit.slurm.slurm import _make_sbatch_string  # an executor itself asks for srun

    refuse_reserved(settings)
    try:
        refuse_unknown(settings, queue.list_options())
    except OSError as error:  # no Slurm here, or one without a cluster
        report(f"options of sbatch are not checked here: {error}")
    folder = folder.absolute()
    place = element.submissions_folder(folder) / "jobs"
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(place))}"
    parameters = array_parameters(folder, settings, max_parallel or n_packs, "SUBMISSION")
    count = n_packs if n_packs > 1 else None  # submitit makes no array of one job
    return _make_sbatch_string(command=command, folder=place, map_count=count, **parameters) + "\n"


def refuse_reserved(settings: Mapping[str, str]) -> None:
    """BadInput for an option of sbatch that the submission sets itself."""
    for key in settings:
        if key in RESERVED:
            instead = f"; see {RESERVED[key]}" if RESERVED[key] else ""
            raise BadInput(f"--slurm.{key} is set by scalelab{instead}")


def _import_submitit() -> Any:
    """submitit without its logging, which closes the streams of other handlers. BadInput if it is not installed."""
    level = os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
    try:
        import submitit
    except ImportError:
        raise BadInput(
            "--executor=slurm needs submitit, which is not installed: pip install 'scalelab[slurm]'"
        ) from None
    finally:
        if level == "NOCONFIG":
            del os.environ["SUBMITIT_LOG_LEVEL"]  # jobs log as ever
    return submitit


def check_settings(settings: Mapping[str, str]) -> None:
    """BadInput for an option that this cluster's sbatch doesn't know, or that the submission sets itself."""
    try:
        known = queue.list_options()
    except OSError as error:
        raise BadInput(f"--executor=slurm: Slurm doesn't answer: {error} ({queue.DRY_RUN})") from None
    refuse_reserved(settings)
    refuse_unknown(settings, known)


def refuse_unknown(settings: Mapping[str, str], known: Sequence[str]) -> None:
    """BadInput for an option that is not among those `known` to this cluster's sbatch."""
    for key in settings:
        if key not in known:
            raise BadInput(f"--slurm.{key} is no option of sbatch{nearest_hint(key, known)}")


def _describe_refusal(text: str, settings: Mapping[str, str]) -> str:
    """The refusal of sbatch in one line, with the existing partitions if it is about a partition."""
    lines = [line for line in queue.error_lines(text) if "sbatch" in line] or list(queue.error_lines(text))
    what = "; ".join(reversed(lines)) or "sbatch refused the job"
    if "partition" in what and (name := settings.get("partition")):
        with contextlib.suppress(OSError):
            return f"--slurm.partition={name}: {what}{nearest_hint(name, queue.list_partitions())}"
    return f"--executor=slurm: {what}"


def _sleep(seconds: float, stop: Callable[[], bool]) -> None:
    for _ in range(math.ceil(seconds / 0.2)):
        if stop():
            return
        time.sleep(0.2)
