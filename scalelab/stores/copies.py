"""Local copies of folders in stores, to be read: only what changed is fetched, compared by hash."""

import contextlib
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.jsonfiles import write_json
from scalelab.lock import LEASE_FILE
from scalelab.stores import client
from scalelab.stores.client import Place
from scalelab.stores.download import download, read_index
from scalelab.stores.lease import is_owner_alive, read_head
from scalelab.stores.upload import STEP, Files
from scalelab.stores.urls import local_folder

TRIES = 5  # a writer may replace what is being read


def copy_here(url: str, checkpoints: bool = False, fresh: bool = False) -> pathlib.Path:
    """Copy a folder in a store here; returns the local folder. BadInput if there is none.

    A folder of several runs is copied run by run. `checkpoints`: those too; `fresh`: also what is here already.
    """
    place, folder = client.open_place(url), local_folder(url, "read")
    if read_head(place):
        _copy(place, folder, checkpoints, fresh)
        return folder
    runs = [run for name in client.list_folders(place) if read_head(run := client.open_place(f"{place.url}/{name}"))]
    for run in runs:
        _copy(run, local_folder(run.url, "read"), checkpoints, fresh)
    if not runs:
        raise BadInput(f"{place.url} holds nothing that scalelab wrote, nor do the folders in it")
    return folder


@contextlib.contextmanager
def kept_up_to_date(url: str, every_s: float = 10.0) -> Iterator[pathlib.Path]:
    """A copy of a folder in a store that follows it until the context is left; a store that is down is asked again."""
    folder, left = copy_here(url), threading.Event()

    def repeat() -> None:
        while not left.wait(every_s):
            with contextlib.suppress(BadInput, WorkFailed):
                copy_here(url)

    follower = threading.Thread(target=repeat, daemon=True, name="copy")
    follower.start()
    try:
        yield folder
    finally:
        left.set()
        follower.join()


def _copy(place: Place, folder: pathlib.Path, checkpoints: bool, fresh: bool) -> None:
    for _ in range(TRIES):
        head = read_head(place)
        try:
            files = read_index(place, head[0]["index"] if head else None)
            _update(place, files, folder, checkpoints, fresh)
            if head:
                write_json(folder / LEASE_FILE, {"held": is_owner_alive(head[0], head[2]), "beat": head[2]})
            return
        except FileNotFoundError:  # replaced since its head was read
            continue
    raise WorkFailed(f"{place.url} is being replaced faster than it can be read; try again")


def _update(place: Place, files: Files, folder: pathlib.Path, checkpoints: bool, fresh: bool) -> None:
    """Bring `folder` to the state of `files`."""
    state = local_folder(place.url, "state")
    state = state.with_name(f"{state.name}.read.json")
    known: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    wanted = {path: parts for path, parts in files.items() if checkpoints or not STEP.match(path)}

    def is_here(path: str) -> bool:
        entry = known.get(path)
        return not fresh and bool(entry) and entry == _entry(folder / path, wanted[path])

    for path in known.keys() - files.keys():
        (folder / path).unlink(missing_ok=True)
    download(place, wanted, folder, is_here)
    entries = {path: _entry(folder / path, parts) for path, parts in wanted.items()}
    write_json(state, {path: entry for path, entry in known.items() if path in files} | entries)


def _entry(path: pathlib.Path, parts: Any) -> dict[str, Any]:
    """What tells whether a copied file is still that: its parts, its size and its time."""
    status = path.stat() if path.exists() else None
    return {"parts": [list(part) for part in parts], "file": status and [status.st_size, status.st_mtime_ns]}
