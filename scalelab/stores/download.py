"""Download objects into a local folder: every byte is compared with its hash, every file renamed into place."""

import hashlib
import os
import pathlib
import shutil
from collections.abc import Callable

from scalelab.errors import BadInput
from scalelab.stores import client
from scalelab.stores.client import Place
from scalelab.stores.formats import MOST_INDEX_BYTES, STEP, Files, ObjectsLost, Parts, parse_index
from scalelab.untrusted.files import create_draft
from scalelab.untrusted.paths import path_below

MOST_NAMED = 5  # most objects named in one line
MOST_LOST = 100  # lost objects of one file after which it is given up: each costs a request
ANNOUNCED_BYTES = 10**9


def read_index(place: Place, name: str | None) -> Files:
    """Read an index's list of files ({} without one). ObjectsLost if it is missing or damaged, BadInput if edited."""
    if name is None:
        return {}
    try:
        data = client.get(place, name, MOST_INDEX_BYTES)
    except FileNotFoundError:
        raise ObjectsLost(f"{place.url}/{name} is missing: head.json names it, and it lists all files") from None
    return parse_index(data, name, f"{place.url}/{name}")


def download_files(
    place: Place,
    files: Files,
    folder: pathlib.Path,
    skip: Callable[[str], bool] = lambda path: False,
    is_current: Callable[[], bool] = lambda: True,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Write files into `folder`, checkpoints last, the newest first; each appears when all of it is there.

    A checkpoint with missing or damaged objects appears without those, and `report` gets a line; loading then falls
    back to an earlier one, as on a disk. ObjectsLost names all such objects of other files. It is also raised if
    `is_current()` is false: a writer then replaced the lost objects.
    """
    wanted = {path: parts for path, parts in files.items() if not skip(path)}
    _check_space(place, wanted, folder, report)
    step_files: dict[str, list[str]] = {}
    for path in wanted:
        match = STEP.match(path)
        step_files.setdefault(match[0] if match else "", []).append(path)
    plain = step_files.pop("", [])
    if lost := _write_all(place, files, {path: path_below(folder, path) for path in plain}):
        raise ObjectsLost(f"{_describe(place, lost)}: bring it back from the bucket's versions or a copy")
    for step in sorted(step_files, key=lambda step: int(step.rpartition("/")[2]), reverse=True):
        final = path_below(folder, step)
        here = final if final.exists() else path_below(folder, f"{step}.tmp")
        if here != final:
            shutil.rmtree(here, ignore_errors=True)
        lost = _write_all(
            place, files, {path: path_below(here, path.removeprefix(f"{step}/")) for path in step_files[step]}
        )
        if lost and not is_current():
            raise ObjectsLost(_describe(place, lost))
        if lost:
            (here / "state").mkdir(parents=True, exist_ok=True)  # also for a checkpoint without any object left
            for older in lost:
                older.unlink(missing_ok=True)
            report(f"{step} is damaged in the store: {_describe(place, lost)}")
        if here != final:
            os.rename(here, final)


def _check_space(place: Place, wanted: Files, folder: pathlib.Path, report: Callable[[str], None]) -> None:
    """Announce a large copy. BadInput if the disk has too little room for the size that the index claims."""
    total = sum(size for parts in wanted.values() for _, size, _ in parts)
    disk = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if total < ANNOUNCED_BYTES:
        return
    free = shutil.disk_usage(disk).free
    if total > free:
        raise BadInput(
            f"{place.url} lists {total / 1e9:,.1f} GB to copy here, and {disk} has {free / 1e9:,.1f} GB free; "
            "set SCALELAB_CACHE to a folder on a larger disk"
        )
    report(f"{place.url}: copying {total / 1e9:,.1f} GB to {folder}")


def _write_all(place: Place, files: Files, targets: dict[str, pathlib.Path]) -> dict[pathlib.Path, list[str]]:
    """Write several files; returns {path: a text for each missing or damaged object} for those not written."""
    lost = client.in_parallel(lambda path: _write(place, files[path], targets[path]), targets)
    return {path: texts for path, texts in zip(targets.values(), lost, strict=True) if texts}


def _describe(place: Place, lost: dict[pathlib.Path, list[str]]) -> str:
    texts = [text for each in lost.values() for text in each]
    least = "at least " if any(len(each) == MOST_LOST for each in lost.values()) else ""
    more = [f"and {least}{len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
    return f"{place.url}/" + "; ".join(texts[:MOST_NAMED] + more)


def _write(place: Place, parts: Parts, path: pathlib.Path) -> list[str]:
    """Write a file. If objects are missing or damaged, leave it and return a text for each, up to MOST_LOST."""
    lost: list[str] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with create_draft(path) as file:
        for part in parts:
            if text := _copy_object(place, *part, file.write):
                lost.append(text)
            if len(lost) == MOST_LOST:
                break
        file.flush()
        os.fsync(file.fileno())
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.unlink() if lost else os.replace(draft, path)
    return lost


def _copy_object(place: Place, name: str, size: int, sha: str, write: Callable[[bytes], object]) -> str:
    """Copy an object piece by piece; returns how it differs from the saved one, or ""."""
    digest = hashlib.sha256()
    try:
        for start in range(0, size, client.PIECE_BYTES):
            length = min(client.PIECE_BYTES, size - start)
            data = client.get_piece(place, name, start, length)
            if len(data) != length:
                return f"{name} is damaged: it has fewer than the {size:,} bytes saved"
            digest.update(data)
            write(data)
    except FileNotFoundError:
        return f"{name} is missing"
    if digest.hexdigest() != sha:
        return f"{name} is damaged: SHA-256 {digest.hexdigest()[:12]}…, saved {sha[:12]}…"
    return ""
