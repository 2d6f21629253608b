"""Rows of settings from folders: every run with its config, and of a sweep also the trials that have not started."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab import records
from scalelab.errors import BadInput, nearest_hint
from scalelab.identity import is_identity_key
from scalelab.jsonfiles import WHOLE
from scalelab.records import DAMAGED_STATUS
from scalelab.sweep.answer.ranking import SweepAnswer, answer_sweep
from scalelab.sweep.answer.settings import SEED_KEY, group_rows, setting_keys
from scalelab.sweep.status import ENDED_STATUSES, read_trial_row

MANIFEST_SCHEMA = {"trials": {"*": WHOLE}, "values?": {"*": {}}}


def answer_folder(folder: records.Folder) -> SweepAnswer:
    """The answer of one sweep's folder, by everything that differs between its runs but the seed."""
    rows, planned = read_rows(folder)
    return answer_sweep([*rows, *planned], setting_keys(rows) or setting_keys(planned))


def answer_by(folders: Sequence[records.Folder], keys: Sequence[str]) -> SweepAnswer:
    """The answer of the runs in `folders` by chosen keys. BadInput for a key that is unknown, the seed, or not all."""
    rows: list[dict[str, Any]] = []
    planned: list[dict[str, Any]] = []
    for folder in folders:
        for total, part in zip((rows, planned), read_rows(folder), strict=True):
            total += part
    known = [key for key in dict.fromkeys(key for row in rows for key in row) if "." in key and "/" not in key]
    for key in keys:
        if key == SEED_KEY:
            raise BadInput(f"--by={SEED_KEY}: seeds are replications, over which losses are averaged; name other keys")
        if key not in known:
            raise BadInput(f"--by={','.join(keys)}: no config key {key!r}{nearest_hint(key, known)}")
    _refuse_mixed_settings(rows, keys)
    return answer_sweep([*rows, *planned], keys)


def _refuse_mixed_settings(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """BadInput if runs that are equal in `keys` differ in more than their seed: their mean would be of nothing."""
    readable = [row for row in rows if row["status"] != DAMAGED_STATUS]
    groups = group_rows(readable, keys)
    also = list(dict.fromkeys(key for group in groups for key in setting_keys(group) if is_identity_key(key)))
    if also:
        raise BadInput(
            f"--by={','.join(keys)}: runs that are equal in this differ in {', '.join(also)} too, which is not "
            f"replication; nearest: --by={','.join([*keys, *also])}"
        )


def read_rows(folder: records.Folder) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(rows of the runs in a folder, rows of a sweep's trials that have no readable run: status and swept values).

    A run that its pack has marked as failed has that status.
    """
    folder = pathlib.Path(folder)
    manifest = folder / "sweep.json"
    content = records.read_json(manifest, MANIFEST_SCHEMA) if manifest.exists() else {"trials": {}}
    runs = [_with_failure(row) for row in _read_runs(folder, started=bool(content["trials"]))]
    readable = {row["name"] for row in runs if row["status"] != DAMAGED_STATUS}
    rest = [name for name in content["trials"] if name not in readable]
    unlisted = [row for row in runs if row["status"] == DAMAGED_STATUS and row["name"] not in rest]
    planned = [_planned_row(folder, name, content) for name in rest]
    return [row for row in runs if row["name"] in readable], [*planned, *unlisted]


def _read_runs(folder: pathlib.Path, started: bool) -> list[dict[str, Any]]:
    """All rows; none if a sweep has started and no trial has a folder yet."""
    try:
        return records.read_runs(folder)
    except BadInput:
        if started and not any((folder / "runs").glob("*/config.json")):
            return []
        raise


def _with_failure(row: dict[str, Any]) -> dict[str, Any]:
    if row["status"] in (*ENDED_STATUSES, DAMAGED_STATUS):
        return row
    events = records.read_events(row["folder"])
    return row | ({"status": "failed"} if events and events[-1]["kind"] == "failed" else {})


def _planned_row(folder: pathlib.Path, name: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a trial without a readable config, and the values that its sweep gave it."""
    row = read_trial_row(folder / "runs" / name, manifest["trials"][name])
    return {"name": name, "status": row["status"], "val_loss": None} | manifest.get("values", {}).get(name, {})
