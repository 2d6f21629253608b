"""A sweep or a run as it goes, read from its files alone: wherever it trains, whoever started it."""

import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.index import alive
from scalelab.index.grids import read_manifest
from scalelab.index.table import IndexedRun, read_indexed_runs
from scalelab.record import records
from scalelab.record.jsonlines import last_line, tail_lines
from scalelab.sweep.executors import element, sweep_jobs
from scalelab.sweep.status import ENDED_STATUSES, read_started_runs, read_trial_rows

RUNNING_STATUSES = ("starting", "running")
LOST_STATUSES = ("failed", "diverged", records.DAMAGED_STATUS, records.STOPPED_EARLY_STATUS)
GONE_STATUSES = (*LOST_STATUSES, alive.DEAD_STATUS)
REASON_KINDS = ("failed", "diverged", "stopped_early", "stalled")
LEAST_SILENCE_S, SILENT_INTERVALS = 60.0, 10  # without a new line for longer than both: silent
PACE_LINES = 20


@dataclasses.dataclass(frozen=True)
class LiveTrial:
    """One trial: its row, as of `status.read_trial_rows`, and of its logs' tail `losses` of training (nats/token).

    `steps_per_s`: pace of the last lines; None before there is one. `silent_s`: seconds since the last line, if that is
    long by the pace so far, else 0. `why`: of a lost trial, the last word of its logbook.
    """

    row: Mapping[str, Any]
    losses: tuple[float, ...] = ()
    steps_per_s: float | None = None
    silent_s: float = 0.0
    why: str = ""

    @property
    def status_text(self) -> str:
        """Its status for people, e.g. `dead since 2026-11-26 12:01`."""
        return alive.status_text(self.row)

    @property
    def left_s(self) -> float | None:
        """Seconds to its last step by its pace; None without one."""
        left = self.row["steps"] - self.row["step"]
        return max(left, 0) / self.steps_per_s if self.steps_per_s and not self.silent_s else None


@dataclasses.dataclass(frozen=True)
class LiveView:
    """All trials of a folder at one moment; `packs`: names of trials that train together.

    `is_abandoned`: trials are dead, and no process lives that would go on with them or start those that wait.
    """

    trials: tuple[LiveTrial, ...]
    packs: tuple[tuple[str, ...], ...]
    is_abandoned: bool = False

    def with_status(self, *statuses: str) -> list[LiveTrial]:
        """The trials with one of these statuses."""
        return [trial for trial in self.trials if trial.row["status"] in statuses]

    @property
    def has_ended(self) -> bool:
        """Whether no trial is left that may go on without a new command."""
        return self.is_abandoned or all(
            trial.row["status"] in (*ENDED_STATUSES, *LOST_STATUSES) for trial in self.trials
        )

    @property
    def share(self) -> float:
        """The share of all steps that is done; a trial that has ended has no steps left."""
        done = sum(_steps_done(trial.row) for trial in self.trials)
        return done / max(1, sum(max(1, trial.row["steps"]) for trial in self.trials))

    @property
    def left_s(self) -> float | None:
        """Seconds left if as many trials go on at the pace of those that run now; None without a pace."""
        pace = sum(trial.steps_per_s or 0.0 for trial in self.with_status(*RUNNING_STATUSES) if not trial.silent_s)
        left = sum(max(1, trial.row["steps"]) - _steps_done(trial.row) for trial in self.trials)
        return left / pace if pace else None

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all that runs: a pack logs its speed as a whole, in each of its trials."""
        running = {trial.row["name"]: trial for trial in self.with_status(*RUNNING_STATUSES) if not trial.silent_s}
        firsts = [next((running[name] for name in pack if name in running), None) for pack in self.packs]
        return sum(first.row.get("tokens_per_s") or 0.0 for first in firsts if first)


def _steps_done(row: Mapping[str, Any]) -> int:
    steps = max(1, row["steps"])
    return steps if row["status"] in (*ENDED_STATUSES, *LOST_STATUSES) else min(row["step"], steps)


def read_live(folder: pathlib.Path) -> LiveView:
    """Read a sweep, a run, or a folder of runs. BadInput if it is none of them."""
    if (folder / "sweep.json").exists():
        runs = read_started_runs(folder)
        rows = read_trial_rows(folder, runs)
        packs = read_manifest(folder).get("packs", {}).values()
    else:
        runs = read_indexed_runs(folder)
        rows, packs = [_run_row(run) for run in runs.values()], []
    listed = {name for pack in packs for name in pack}
    alone = [[row["name"]] for row in rows if row["name"] not in listed]
    trials = (_read_trial(row, runs.get(row["name"])) for row in rows)
    statuses = {row["status"] for row in rows}
    is_still = alive.DEAD_STATUS in statuses and not statuses & {*RUNNING_STATUSES}
    is_abandoned = is_still and not alive.is_held(folder) and not _has_jobs(folder)
    return LiveView(tuple(trials), tuple(tuple(pack) for pack in (*packs, *alone)), is_abandoned)


def _has_jobs(folder: pathlib.Path) -> bool:
    """Whether Slurm has jobs of a sweep, which go on without its command; also where Slurm doesn't answer."""
    if not element.submissions_folder(folder).is_dir():
        return False
    try:
        return bool(sweep_jobs.find_jobs(folder))
    except OSError:
        return True


def _run_row(run: IndexedRun) -> dict[str, Any]:
    """The row of a run without a sweep."""
    return {"name": run.row["name"], "step": 0, "steps": run.row.get("train.steps") or 0} | run.progress


def _read_trial(row: Mapping[str, Any], run: IndexedRun | None) -> LiveTrial:
    if run is None or row["status"] not in (*RUNNING_STATUSES, *LOST_STATUSES):
        return LiveTrial(row)
    folder = pathlib.Path(run.row["folder"])
    if row["status"] in LOST_STATUSES:
        return LiveTrial(row, why=row.get("damage") or _last_word(folder))
    lines = [line for line in tail_lines(folder / "metrics.jsonl") if _is_number(line.get("train_loss"))]
    pace, silent_s = _measure_pace(folder, lines[-PACE_LINES:])
    return LiveTrial(row, tuple(float(line["train_loss"]) for line in lines), pace, silent_s)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _last_word(folder: pathlib.Path) -> str:
    event = last_line(folder / "events.jsonl", lambda row: row.get("kind") in REASON_KINDS) or {}
    return str(event.get("text", ""))


def _measure_pace(folder: pathlib.Path, lines: Sequence[Mapping[str, Any]]) -> tuple[float | None, float]:
    """(steps per second, seconds of silence) by the times of training lines since the run last started."""
    event = last_line(folder / "events.jsonl", lambda row: row.get("kind") in ("start", "resume")) or {}
    begun = event.get("time", 0.0)
    points = [(row["step"], row["time"]) for row in lines if _is_number(row.get("time")) and row["time"] >= begun]
    if len(points) < 2 or points[-1][1] <= points[0][1]:
        return None, 0.0
    seconds = points[-1][1] - points[0][1]
    silence = time.time() - points[-1][1]
    is_silent = silence > max(LEAST_SILENCE_S, SILENT_INTERVALS * seconds / (len(points) - 1))
    return (points[-1][0] - points[0][0]) / seconds, silence if is_silent else 0.0
