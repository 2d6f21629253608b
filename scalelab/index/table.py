"""Rows of many runs and the progress of each, read through the index beside them."""

import contextlib
import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab import errors, set_by
from scalelab.errors import BadInput
from scalelab.index import alive, grids, store
from scalelab.record import identity, jsonfiles, jsonlines, listing, records
from scalelab.record.soundness import record as sound_record
from scalelab.record.soundness import size
from scalelab.untrusted import documents, files, paths, schemas
from scalelab.untrusted.paths import describe_link, list_folders

PROGRESS_KEYS = ("step", "train_loss", "val_loss", "tokens_per_s")
BATCH = 256  # runs read at a time before equal values are merged
RESAVED_SHARE = 0.02  # changed runs from which on the index is rewritten: fewer are read again faster


class IndexedRun(NamedTuple):
    """A run's row, as of `listing.read_runs`, and its `progress`, as of `read_progress` (or its `damage`)."""

    row: dict[str, Any]
    progress: dict[str, Any]


def read_runs(folder: records.Folder) -> list[dict[str, Any]]:
    """Read one row per run; equal to `listing.read_runs`, and faster where there are many runs."""
    return [run.row for run in read_indexed_runs(folder).values()]


def read_grid(folder: records.Folder) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Read (a row per run of a sweep's latest grid, or per run of another folder; names of runs left out)."""
    runs, left_out = grids.split_runs(folder, read_indexed_runs(folder))
    return [run.row for run in runs.values()], left_out


def read_indexed_runs(folder: records.Folder) -> dict[str, IndexedRun]:
    """{name: run} of the folder if it is a run, else of its `runs/`, else of all runs in it. BadInput if there is none.

    Among several runs a damaged one has a row that says so; a single damaged run is BadInput. A run with the status
    `running` but without a living process has the status `dead`, and `dead_since`.
    """
    runs = _read_all(pathlib.Path(folder))
    return {name: _mark_end(run) for name, run in runs.items()}


def _mark_end(run: IndexedRun) -> IndexedRun:
    """Correct a run's status by its logbook or lock: the index holds only the record's status."""
    if run.row["status"] not in alive.UNFINISHED_STATUSES:
        return run
    if run.progress["status"] == "failed":
        return run._replace(row=run.row | {"status": "failed"})
    since = alive.dead_since(run.row["folder"])
    end = {"status": alive.DEAD_STATUS, alive.DEAD_KEY: since}
    return IndexedRun(run.row | end, run.progress | end) if since else run


def _read_all(folder: pathlib.Path) -> dict[str, IndexedRun]:
    """Read {name: run} from files alone, without status corrections; BadInput as for `read_indexed_runs`."""
    if (folder / "config.json").exists():
        (row,) = listing.read_runs(folder)
        return {folder.name: IndexedRun(row, progress_or_damage(folder))}
    for place in listing.run_places(folder):
        if runs := _read_place(place):
            return runs
    return _read_runs(folder, [path.name for path in listing.run_folders(folder)])  # says why there is none


def all_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of all columns, in order of first appearance."""
    names: dict[str, None] = {}
    for row in rows:
        if not row.keys() <= names.keys():
            names |= dict.fromkeys(row)
    return list(names)


def read_progress(folder: pathlib.Path) -> dict[str, Any]:
    """Read the last logged `step`, `train_loss`, `val_loss` and `tokens_per_s` of a run, if it has any.

    `status`: that of its record; `failed` if its logbook ends so; `waiting` without a record. BadInput: damaged files.
    """
    return _make_progress(folder, records.read_sound_record(folder))


def _make_progress(folder: pathlib.Path, record: Mapping[str, Any]) -> dict[str, Any]:
    status = record.get("status", "waiting")
    if records.is_imported(record):  # its logs were checked as they were written, and its last values kept
        return {"status": status} | record.get("progress", {})
    values = jsonlines.last_values(folder / "metrics.jsonl", records.METRICS_SCHEMA, PROGRESS_KEYS)
    events = records.read_events(folder)
    return {"status": "failed" if events and events[-1]["kind"] == "failed" else status} | values


def progress_or_damage(folder: pathlib.Path) -> dict[str, Any]:
    """Read the progress of a run; if its files can't be read, `damage` holds the reason."""
    try:
        return read_progress(folder)
    except BadInput as error:
        return {"status": records.DAMAGED_STATUS, "damage": str(error)}


def _read_runs(place: pathlib.Path, names: Iterable[str]) -> dict[str, IndexedRun]:
    """Read {name: run} of the folders that are runs."""
    runs = {name: _read_run(place / name) for name in names}
    return {name: run for name, run in runs.items() if run}


def _read_run(folder: pathlib.Path) -> IndexedRun | None:
    """Read each file once; None if the folder's config.json is not a run's."""
    with contextlib.suppress(BadInput):
        config, record = records.read_config_and_record(folder)
        return IndexedRun(listing.make_row(folder, config, record), _make_progress(folder, record))
    if not listing.may_be_config(folder / "config.json"):
        return None
    return IndexedRun(listing.read_run_or_damage(folder), progress_or_damage(folder))


def _read_place(place: pathlib.Path) -> dict[str, IndexedRun]:
    """Read {name: run} of the runs in one folder, in order of names."""
    names, links = list_folders(place)
    runs = _read_folders(place, names)
    linked = {path.name: _refuse_link(path) for path in listing.linked_runs(place, links)}
    return dict(sorted((runs | linked).items())) if linked else runs


def _refuse_link(path: pathlib.Path) -> IndexedRun:
    damage = describe_link(path)
    return IndexedRun(listing.damaged_row(path, damage), {"status": records.DAMAGED_STATUS, "damage": damage})


def _read_folders(place: pathlib.Path, names: Iterable[str]) -> dict[str, IndexedRun]:
    """Read {name: run} of the named folders that are runs."""
    states = {name: state for name in names if (state := store.file_state(f"{place}/{name}"))}
    if len(states) < store.LEAST_RUNS:
        return _read_runs(place, states)
    version = _version()
    stored, tables = store.load_index(place, version)
    valid = [name for name, (state, _) in states.items() if stored.get(name) == state]
    runs = _join(place, {name: tables[0][name] for name in valid}, {name: tables[1][name] for name in valid})
    if len(runs) < len(states):
        runs |= _read_and_store(place, version, states, runs)
    return {name: runs[name] for name in states if name in runs}


@functools.cache
def _version() -> str:
    from scalelab.configs import base  # the code that defines identities

    readers = identity, jsonfiles, jsonlines, listing, records, sound_record, size
    modules = (*readers, errors, set_by, documents, files, paths, schemas, base)
    return store.code_version(__file__, *(str(module.__file__) for module in modules))


def _join(
    place: pathlib.Path, rows: Mapping[str, dict[str, Any]], progress: Mapping[str, dict[str, Any]]
) -> dict[str, IndexedRun]:
    """Make runs of stored facts, with their names and folders."""
    for name, row in rows.items():
        row["name"], row["folder"] = name, f"{place / name}"
    return {name: IndexedRun(row, progress[name]) for name, row in rows.items()}


def _read_and_store(
    place: pathlib.Path, version: str, states: Mapping[str, tuple[str, int]], valid: Mapping[str, IndexedRun]
) -> dict[str, IndexedRun]:
    """Read the runs that are not `valid`, and rewrite the index if there are many."""
    draft = store.IndexDraft(place)
    try:
        names = [name for name in states if name not in valid]
        fresh: dict[str, IndexedRun] = {}
        for start in range(0, len(names), BATCH):
            fresh |= _read_batch(place, names[start : start + BATCH])
        new = {name for name, run in fresh.items() if _is_storable(run) and draft.is_settled(states[name][1])}
        if len(new) > RESAVED_SHARE * len(states):
            runs = {name: run for name, run in {**valid, **fresh}.items() if name in valid or name in new}
            tables = [
                {name: part for name, part in zip(runs, parts, strict=True)}
                for parts in zip(*runs.values(), strict=True)
            ]
            draft.write(version, {name: states[name][0] for name in runs}, tables)
        return fresh
    finally:
        draft.close()


def _read_batch(place: pathlib.Path, names: Sequence[str]) -> dict[str, IndexedRun]:
    """Read a batch of runs; their equal values share one object."""
    runs = _read_runs(place, names)
    whole = {name: run for name, run in runs.items() if _is_storable(run)}
    rows, progress = (store.share_values({name: run[part] for name, run in whole.items()}) for part in (0, 1))
    return runs | _join(place, rows, progress)


def _is_storable(run: IndexedRun) -> bool:
    """Whether a run's facts may be stored: not if damaged, since the description names the path asked for."""
    return "damage" not in run.row and "damage" not in run.progress
