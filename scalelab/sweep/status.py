"""The state of a sweep, read from its files: one row per trial, also while other processes train."""

import os
import pathlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from scalelab.errors import BadInput, Stopped, WorkFailed, quote_path
from scalelab.index.alive import DEAD_STATUS
from scalelab.index.grids import read_manifest
from scalelab.index.table import IndexedRun, progress_or_damage, read_indexed_runs
from scalelab.record import records
from scalelab.untrusted.paths import list_folders, path_below

# A trial that diverged is a result of its grid, and one that was stopped early by a rule too.
ENDED_STATUSES = ("done", "diverged", records.STOPPED_EARLY_STATUS)


def read_trial_rows(folder: pathlib.Path, runs: Mapping[str, IndexedRun] | None = None) -> list[dict[str, Any]]:
    """Read one row per trial: name, status, step, steps, train_loss, val_loss, tokens_per_s.

    status: waiting, running, done, diverged, stopped early, stopped, dead (with `dead_since`), failed or damaged.
    `runs`: those of the folder, if they have been read. BadInput if the folder holds no sweep.
    """
    if not (folder / "sweep.json").exists():
        command = f"scalelab sweep --workdir={quote_path(folder)}"
        raise BadInput(f"{str(folder)!r} holds no sweep: `{command}` has not started there")
    manifest = read_manifest(folder)
    runs = read_started_runs(folder) if runs is None else runs
    return [
        _row(name, runs[name].progress, steps) if name in runs else read_planned_row(folder, name, steps)
        for name, steps in manifest["trials"].items()
    ]


def read_planned_row(folder: pathlib.Path, name: str, steps: int) -> dict[str, Any]:
    """`read_trial_row` of a trial by its name in sweep.json; one whose folder is a link is damaged."""
    try:
        return read_trial_row(path_below(folder / "runs", name), steps)
    except BadInput as error:
        return _row(name, {"status": records.DAMAGED_STATUS, "damage": str(error)}, steps)


def read_started_runs(folder: pathlib.Path) -> dict[str, IndexedRun]:
    """The runs of a sweep's folder by name; none if no trial has a folder yet."""
    place = folder / "runs"
    names = [name for each in list_folders(place) for name in each]
    if not any(os.path.lexists(place / name / "config.json") for name in names):
        return {}
    return read_indexed_runs(folder)


def read_trial_row(folder: pathlib.Path, steps: int) -> dict[str, Any]:
    """Read the row of one trial; if its files can't be read, `damage` holds the reason."""
    return _row(folder.name, progress_or_damage(folder), steps)


def _row(name: str, progress: dict[str, Any], steps: int) -> dict[str, Any]:
    return {"name": name, "status": progress["status"], "step": 0, "steps": steps} | progress


def exit_code(verdicts: Collection[str]) -> int:
    """0: every trial ended; 75: some were stopped, killed or not started; 1: some crashed or are damaged."""
    unfinished = {"waiting", "starting", "running", "stopped", DEAD_STATUS} & set(verdicts)
    return 75 if unfinished else 0 if set(verdicts) <= set(ENDED_STATUSES) else 1


def describe_verdicts(verdicts: Collection[str]) -> str:
    """Count the verdicts, e.g. `5 trials: 4 done, 1 diverged`."""
    counts = Counter(verdicts)
    return f"{counts.total()} trials: {', '.join(f'{number} {verdict}' for verdict, number in counts.most_common())}"


def require_ended(folder: pathlib.Path, verdicts: Mapping[str, str], stop: Callable[[], bool]) -> None:
    """Refuse to go on before every trial of a study has ended, done or diverged.

    Stopped after a signal, or where trials train elsewhere; WorkFailed if some crashed.
    """
    if stop():
        raise Stopped(folder)
    if failed := [name for name, verdict in verdicts.items() if exit_code([verdict]) == 1]:
        raise WorkFailed(
            f"{len(failed)} of {len(verdicts)} runs failed, {failed[0]} first: see {folder / 'packs'}; "
            "the same command tries them again"
        )
    if exit_code(verdicts.values()) == 75:
        raise Stopped(folder)
