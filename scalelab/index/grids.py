"""The grids of a sweep's folder in sweep.json: the latest, and those that it replaced.

    trials   {name: steps} of the latest grid, in its order     values   {name: {key: value}} of what it sweeps
    packs    {pack: names} that train together                  earlier  {"1": trials, values, replaced}, oldest first

Grids trained by `scalelab sweep` have `earlier`. Answers then leave out runs that the latest grid does not have; to
take them all, name the folder `runs/` instead of the sweep's.
"""

import itertools
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from scalelab.record.jsonfiles import NUMBER, SCALAR, TEXT, WHOLE, Folder, read_json
from scalelab.untrusted.paths import check_name

T = TypeVar("T")
MANIFEST = "sweep.json"
_VALUES: dict[str, Any] = {"*": {"*": SCALAR}}
MANIFEST_SCHEMA: dict[str, Any] = {
    "trials": {"*": WHOLE}, "values?": _VALUES, "packs?": {"*": [TEXT]},
    "earlier?": {"*": {"replaced": NUMBER, "trials": {"*": WHOLE}, "values?": _VALUES}},
}  # fmt: skip
MOST_NAMED = 6  # trials in one sentence


def read_manifest(folder: Folder) -> dict[str, Any]:
    """Read a sweep's sweep.json; a folder without one has no trials.

    BadInput if it is damaged, or a trial has a name that no folder of a run has.
    """
    path = pathlib.Path(folder) / MANIFEST
    manifest = {"trials": {}} | (read_json(path, MANIFEST_SCHEMA) if path.exists() else {})
    grids = (manifest, *manifest.get("earlier", {}).values())
    packs = manifest.get("packs", {}).values()
    for name in itertools.chain(*(grid["trials"] for grid in grids), *packs):
        check_name(name, str(path))
    return manifest


def read_listed_values(folder: Folder) -> dict[str, dict[str, Any]]:
    """Read {name: swept values} of the latest grid's trials, where they are known."""
    manifest = read_manifest(folder)
    return {name: manifest.get("values", {}).get(name, {}) for name in manifest["trials"]}


def add_grid(folder: Folder, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sweep's former grids to its new manifest. BadInput if the old manifest is damaged."""
    old = read_manifest(folder)
    earlier = dict(old.get("earlier", {}))
    if old["trials"] and old["trials"].keys() != manifest["trials"].keys():
        former = {key: old[key] for key in ("trials", "values") if key in old}
        earlier[str(len(earlier) + 1)] = {"replaced": time.time()} | former
    return {**manifest, "earlier": earlier}


def split_runs(folder: Folder, runs: Mapping[str, T]) -> tuple[dict[str, T], tuple[str, ...]]:
    """Split into (runs of a sweep's latest grid, in its order; names of runs that only earlier grids had).

    In a folder that `scalelab sweep` did not make, all runs belong to the grid.
    """
    manifest = read_manifest(folder)
    if "earlier" not in manifest:
        return dict(runs), ()
    latest = {name: runs[name] for name in manifest["trials"] if name in runs}
    return latest, tuple(name for name in runs if name not in latest)


def describe_left_out(names: Sequence[str]) -> str:
    """Describe in one line the runs that only earlier grids had; "" if there are none."""
    if not names:
        return ""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    trials = f"{len(names)} trials of an earlier grid are" if len(names) > 1 else "1 trial of an earlier grid is"
    return f"{trials} left out of the answer: {', '.join(names[:MOST_NAMED])}{more}"
