"""Copy folders of stores here for reading: only changed files are fetched, compared by hash."""

import contextlib
import functools
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.record.jsonfiles import LIST, describe_mismatch, write_json
from scalelab.record.lock import LEASE_FILE
from scalelab.stores import client
from scalelab.stores.client import Place, StoreDown, StoreRefused
from scalelab.stores.download import download_files, read_index
from scalelab.stores.formats import MOST_INDEX_BYTES, STEP, Files, ObjectsLost
from scalelab.stores.lease import is_owner_alive, read_head, refuse_headless
from scalelab.stores.urls import local_folder
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import read_bytes
from scalelab.untrusted.paths import check_name, path_below

TRIES = 5  # a writer may replace files during the copy
KNOWN_SCHEMA = {"*": {"parts": LIST, "file": (LIST, None)}}
Report = Callable[[str], None]


def copy_here(
    url: str, checkpoints: bool = False, fresh: bool = False, report: Report = lambda line: None
) -> pathlib.Path:
    """Copy a folder in a store here; returns the local folder. BadInput if there is none.

    A folder of several runs is copied run by run; an unreadable one keeps its former copy, and `report` gets a line.
    `checkpoints`: copy those too, as in `download_files`; `fresh`: fetch also files that are already here.
    """
    place, folder = client.open_place(url), local_folder(url, "read")
    if read_head(place):
        _copy(place, folder, checkpoints, fresh, report)
        return folder
    refuse_headless(place)
    refusals: list[BadInput | WorkFailed] = []
    copied = 0
    for name in client.list_folders(place):
        try:
            run = client.open_place(f"{place.url}/{check_name(name, place.url)}")
            if read_head(run):
                _copy(run, local_folder(run.url, "read"), checkpoints, fresh, report)
                copied += 1
            else:
                refuse_headless(run)
        except (StoreDown, StoreRefused):
            raise
        except (BadInput, WorkFailed) as refusal:
            refusals.append(refusal)
    if refusals and not copied:
        raise refusals[0]
    for reason in refusals:
        report(f"left out: {reason}")
    if not copied:
        raise BadInput(f"{place.url} holds nothing that scalelab wrote, nor do the folders in it")
    return folder


@contextlib.contextmanager
def kept_up_to_date(url: str, every_s: float = 10.0) -> Iterator[pathlib.Path]:
    """Within it, keep a local copy of a store's folder up to date; a store that is down is tried again."""
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


def _copy(place: Place, folder: pathlib.Path, checkpoints: bool, fresh: bool, report: Report) -> None:
    for _ in range(TRIES):
        head = read_head(place)
        index = head[0]["index"] if head else None
        try:
            files = read_index(place, index)
            wanted = {path: parts for path, parts in files.items() if checkpoints or not STEP.match(path)}
            _update(place, files, wanted, folder, fresh, functools.partial(_is_present, place, index), report)
            if head:
                alive = is_owner_alive(head[0], head[2])
                write_json(path_below(folder, LEASE_FILE), {"held": alive, "beat": head[2]})
            return
        except ObjectsLost:
            if _is_present(place, index):  # no writer has replaced it
                raise
    raise WorkFailed(f"{place.url} is being replaced faster than it can be read; try again")


def _present_index(place: Place) -> str | None:
    head = read_head(place)
    return head[0]["index"] if head else None


def _is_present(place: Place, index: str | None) -> bool:
    return _present_index(place) == index


def _update(
    place: Place,
    files: Files,
    wanted: Files,
    folder: pathlib.Path,
    fresh: bool,
    is_current: Callable[[], bool],
    report: Report,
) -> None:
    """Bring `folder` to the state of `files`, of which `wanted` are copied."""
    state = local_folder(place.url, "state")
    state = state.with_name(f"{state.name}.read.json")
    known = _read_known(state)

    def is_here(path: str) -> bool:
        entry = known.get(path)
        return not fresh and bool(entry and entry["file"]) and entry == _entry(folder / path, wanted[path])

    for path in known.keys() - files.keys():
        with contextlib.suppress(BadInput):  # older versions wrote a file of such a name elsewhere
            path_below(folder, path).unlink(missing_ok=True)
    download_files(place, wanted, folder, is_here, is_current, report)
    entries = {path: _entry(folder / path, parts) for path, parts in wanted.items()}
    write_json(state, {path: entry for path, entry in known.items() if path in files} | entries)


def _read_known(state: pathlib.Path) -> dict[str, Any]:
    """Read which files were copied before; {} if unknown, then all are compared again."""
    with contextlib.suppress(BadInput, ValueError, FileNotFoundError):
        known: dict[str, Any] = parse_json(read_bytes(state, 2 * MOST_INDEX_BYTES))
        return {} if describe_mismatch(known, KNOWN_SCHEMA) else known
    return {}


def _entry(path: pathlib.Path, parts: Any) -> dict[str, Any]:
    """Facts that show whether a copied file is unchanged: its parts, size and time."""
    status = path.stat() if path.exists() else None
    return {"parts": [list(part) for part in parts], "file": status and [status.st_size, status.st_mtime_ns]}
