"""The log lines that a checkpoint relies on: its manifest holds their length and hash. Nothing here imports jax."""

import functools
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.record.jsonfiles import retry_transient
from scalelab.untrusted.files import open_file


def log_sizes(logs: Sequence[pathlib.Path]) -> dict[pathlib.Path, int]:
    """The present size of each log in bytes; absent logs are left out."""
    return {log: log.stat().st_size for log in logs if log.exists()}


def hash_log_prefixes(folder: pathlib.Path, sizes: Mapping[pathlib.Path, int]) -> dict[str, dict[str, Any]]:
    """`{log relative to the checkpoints folder: {"bytes", "sha256"}}` of the first `sizes[log]` bytes of each log."""
    hashes = {}
    for log, size in sizes.items():
        sha = retry_transient(functools.partial(_sha256, log, size))
        hashes[os.path.relpath(log.absolute(), folder)] = {"bytes": size, "sha256": sha}
    return hashes


def _sha256(path: pathlib.Path, size: int) -> str:
    sha = hashlib.sha256()
    with open_file(path) as file:
        while size and (part := file.read(min(size, 2**20))):
            sha.update(part)
            size -= len(part)
    return sha.hexdigest()


def find_lost_logs(folder: pathlib.Path, content: Mapping[str, Any]) -> list[tuple[pathlib.Path, str]]:
    """Find lost or changed logs that a step in `folder` relies on: [(log, problem)]; `content` is the step's manifest.

    A log is skipped if its run folder is gone, as when only checkpoints were copied.
    """
    lost, step = [], content["step"]
    for name, saved in content.get("logs", {}).items():
        path, length = pathlib.Path(os.path.normpath(folder / name)), saved["bytes"]
        if not (path.parent / "config.json").exists():
            continue
        size = path.stat().st_size if path.exists() else None
        if size is None:
            lost.append((path, f"{path} is missing, and had {length} bytes when step {step} was saved"))
        elif size < length:
            lost.append((path, f"{path} was cut to {size} bytes, and had {length} when step {step} was saved"))
        elif _sha256(path, length) != saved["sha256"]:
            lost.append(
                (path, f"{path} was edited: its first {length} bytes are not those of when step {step} was saved")
            )
    return lost
