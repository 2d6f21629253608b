"""Objects as a local folder again: every byte compared with the hash in the index, every file renamed into place."""

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from scalelab.errors import WorkFailed
from scalelab.stores import client
from scalelab.stores.client import Place
from scalelab.stores.upload import STEP, Files


def read_index(place: Place, name: str | None) -> Files:
    """The files that an index lists; {} without one. FileNotFoundError if it was replaced meanwhile."""
    if name is None:
        return {}
    content: Any = json.loads(client.get(place, name))
    return {path: [tuple(part) for part in parts] for path, parts in content["files"].items()}


def download(
    place: Place, files: Files, folder: pathlib.Path, skip: Callable[[str], bool] = lambda path: False
) -> None:
    """Write files into `folder`; a checkpoint appears under its number when all of it is there.

    FileNotFoundError if an object was deleted meanwhile; WorkFailed if one is damaged.
    """
    wanted = {path: parts for path, parts in files.items() if not skip(path)}
    steps = {match[0] for path in wanted if (match := STEP.match(path)) and not (folder / match[0]).exists()}

    for step in steps:
        shutil.rmtree(folder / f"{step}.tmp", ignore_errors=True)

    def write(path: str) -> None:
        match = STEP.match(path)
        draft = match[0] if match and match[0] in steps else ""
        _write(place, wanted[path], folder / (f"{draft}.tmp{path.removeprefix(draft)}" if draft else path))

    client.in_parallel(write, wanted)
    for step in steps:
        os.rename(folder / f"{step}.tmp", folder / step)


def _write(place: Place, parts: list[tuple[str, int, str]], path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(draft, "wb") as file:
        for name, size, sha in parts:
            digest = hashlib.sha256()
            for start in range(0, size, client.PIECE_BYTES):
                data = client.get_piece(place, name, start, min(client.PIECE_BYTES, size - start))
                digest.update(data)
                file.write(data)
            if digest.hexdigest() != sha:
                raise WorkFailed(
                    f"{place.url}/{name} is damaged: SHA-256 {digest.hexdigest()[:12]}…, saved {sha[:12]}…"
                )
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
