"""Rows of settings from folders: every run with its config, and of a sweep also the trials that have not started."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput, nearest_hint
from scalelab.index import grids
from scalelab.index.table import IndexedRun, read_indexed_runs
from scalelab.record import records
from scalelab.record.identity import is_identity_key
from scalelab.record.records import DAMAGED_STATUS
from scalelab.sweep.answer.ranking import SweepAnswer, answer_sweep
from scalelab.sweep.answer.settings import SEED_KEY, group_rows, setting_keys
from scalelab.sweep.status import ENDED_STATUSES, read_planned_row, read_started_runs


def answer_folder(
    folder: records.Folder, runs: Mapping[str, IndexedRun] | None = None, all_grids: bool = False
) -> SweepAnswer:
    """The answer of one sweep's folder, by everything that differs between its runs but the seed.

    `runs`: those of the folder, if they have been read. `all_grids`: also runs that only earlier grids had.
    """
    rows, planned, left_out = read_rows(folder, runs, all_grids)
    answer = answer_sweep([*rows, *planned], setting_keys(rows) or setting_keys(planned))
    return dataclasses.replace(answer, left_out=left_out)


def answer_by(folders: Sequence[records.Folder], keys: Sequence[str]) -> SweepAnswer:
    """The answer of the runs in `folders` by chosen keys. BadInput for unknown keys, the seed, and mixed settings."""
    parts = [read_rows(folder) for folder in folders]
    rows, planned = [row for part in parts for row in part[0]], [row for part in parts for row in part[1]]
    left_out = tuple(name for part in parts for name in part[2])
    known = [key for key in dict.fromkeys(key for row in rows for key in row) if "." in key and "/" not in key]
    for key in keys:
        if key == SEED_KEY:
            raise BadInput(f"--by={SEED_KEY}: seeds are replications, over which losses are averaged; name other keys")
        if key not in known:
            raise BadInput(f"--by={','.join(keys)}: no config key {key!r}{nearest_hint(key, known)}")
    _refuse_mixed_settings(rows, keys)
    return dataclasses.replace(answer_sweep([*rows, *planned], keys), left_out=left_out)


def _refuse_mixed_settings(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """BadInput if runs that are equal in `keys` differ in more than their seed, so that their mean says nothing."""
    readable = [row for row in rows if row["status"] != DAMAGED_STATUS]
    groups = group_rows(readable, keys)
    also = list(dict.fromkeys(key for group in groups for key in setting_keys(group) if is_identity_key(key)))
    if also:
        raise BadInput(
            f"--by={','.join(keys)}: runs that are equal in this differ in {', '.join(also)} too, which is not "
            f"replication; nearest: --by={','.join([*keys, *also])}"
        )


def read_rows(
    folder: records.Folder, runs: Mapping[str, IndexedRun] | None = None, all_grids: bool = False
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], tuple[str, ...]]:
    """(rows of the runs in a folder, rows of a sweep's trials that have no readable run: status and swept values, names
    of runs that are left out, as only earlier grids had them).

    A run that its pack has marked as failed has that status. Arguments as for `answer_folder`.
    """
    folder = pathlib.Path(folder)
    content = grids.read_manifest(folder)
    if runs is None:
        runs = read_started_runs(folder) if content["trials"] else read_indexed_runs(folder)
    runs, left_out = (runs, ()) if all_grids else grids.split_runs(folder, runs)
    rows = [_with_failure(run) for run in runs.values()]
    readable = {row["name"] for row in rows if row["status"] != DAMAGED_STATUS}
    rest = {name: None for name in content["trials"] if name not in readable}
    unlisted = [row for row in rows if row["status"] == DAMAGED_STATUS and row["name"] not in rest]
    planned = [_planned_row(folder, name, content) for name in rest]
    return [row for row in rows if row["name"] in readable], [*planned, *unlisted], left_out


def _with_failure(run: IndexedRun) -> dict[str, Any]:
    if run.row["status"] in (*ENDED_STATUSES, DAMAGED_STATUS) or run.progress["status"] != "failed":
        return run.row
    return run.row | {"status": "failed"}


def _planned_row(folder: pathlib.Path, name: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a trial without a readable config, and the values that its sweep gave it."""
    row = read_planned_row(folder, name, manifest["trials"][name])
    return {"name": name, "status": row["status"], "val_loss": None} | manifest.get("values", {}).get(name, {})
