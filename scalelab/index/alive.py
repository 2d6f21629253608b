"""Decide whether a run with the status `running` has a living process, by its lock's owner and heartbeat.

The lock lies in the run's folder, or in its pack's. An owner on this host lives while the kernel keeps its lock, even
if it is suspended. An owner on another host lives while its heartbeat is younger than `lock.LEASE_S`, by the file
server's clock. A run without a lock file is a copy: `lock.LEASE_FILE`, beside it or above, has the store's lease;
without that only its record counts. Nothing is written.
"""

import contextlib
import datetime
import fcntl
import functools
import os
import pathlib
import socket
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from scalelab.errors import BadInput
from scalelab.record import lock, owners, records
from scalelab.record.jsonfiles import NUMBER, SCALAR, TEXT
from scalelab.untrusted.files import open_file
from scalelab.untrusted.paths import path_below

DEAD_STATUS, DEAD_KEY = "dead", "dead_since"
UNFINISHED_STATUSES = ("starting", "running")  # statuses that need a living process
LEASE_SCHEMA = {"beat": NUMBER, "held": SCALAR}
PACK_SCHEMA = {"pack?": {"checkpoints": TEXT}}
MOST_LOCK_BYTES = 1000


def dead_since(run: records.Folder) -> str | None:
    """The ISO time when the process of a run with the status `running` died; None if it lives or can't be judged."""
    folder = pathlib.Path(run)
    for path in (folder / ".lock", _pack_lock(folder)):
        if path and path.exists():
            beat = _beat_of_dead(path)
            break
    else:
        beat = _beat_of_store(folder)
    if beat is None:
        return None
    with contextlib.suppress(OverflowError, ValueError, OSError):  # a time outside every calendar
        return datetime.datetime.fromtimestamp(beat).astimezone().isoformat(timespec="seconds")
    return None


def is_held(folder: records.Folder) -> bool:
    """Whether a living process holds a folder, by its lock."""
    path = pathlib.Path(folder) / ".lock"
    return path.exists() and _beat_of_dead(path) is None


def status_text(row: Mapping[str, Any]) -> str:
    """Format a row's status for people, e.g. `dead since 2026-11-26 12:01`."""
    since = row.get(DEAD_KEY)
    return f"{DEAD_STATUS} since {since[:16].replace('T', ' ')}" if since else str(row["status"])


def _pack_lock(run: pathlib.Path) -> pathlib.Path | None:
    """The lock of the pack that trains a run; None for a single run, or one with an unreadable record."""
    try:
        path = run / "record.json"
        pack = records.read_json(path, PACK_SCHEMA).get("pack") if path.exists() else None
        packs = run.absolute().parent.parent / "packs"
        return path_below(packs, pathlib.PurePath(pack["checkpoints"]).parent.name) / ".lock" if pack else None
    except BadInput:
        return None


def _beat_of_dead(path: pathlib.Path) -> float | None:
    """The last heartbeat of a lock whose owner is gone, by the file server's clock; None if it lives or is unknown."""
    try:
        with open_file(path, MOST_LOCK_BYTES) as file:
            owner = owners.parse_owner(file.read().decode(errors="replace"))
            beat = os.fstat(file.fileno()).st_mtime
            if owner is None or owner.host == socket.gethostname():
                alive = _is_alive_here(file.fileno(), owner, beat)
            else:
                alive = not owner.beats or _now(path.parent) - beat < lock.LEASE_S
    except (OSError, BadInput):
        return None
    return None if alive else beat


def _is_alive_here(descriptor: int, owner: owners.LockOwner | None, beat: float) -> bool:
    """Whether an owner on this host lives; a lock without a name is free, or was taken a moment ago.

    A shared lock, taken for a moment, asks the kernel: the process number may be another's now, or another container's,
    and a suspended process has no fresh heartbeat. Number and heartbeat decide only if the kernel keeps no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        lives = owner is not None and owners.is_process_alive(owner.process) and time.time() - beat < lock.LEASE_S
        return lives or error.errno not in lock.NO_FLOCK
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _now(folder: pathlib.Path) -> float:
    """The time by the folder's file server; by this host's clock if nothing can be written there."""
    with contextlib.suppress(OSError):
        return time.time() + _seconds_ahead(str(folder), os.stat(folder).st_dev)
    return time.time()


@functools.lru_cache(maxsize=64)
def _seconds_ahead(folder: str, device: int) -> float:
    """Seconds by which the file server's clock is ahead; OSError if it can't be asked."""
    with tempfile.TemporaryFile(dir=folder) as now:
        return os.fstat(now.fileno()).st_mtime - time.time()


def _beat_of_store(run: pathlib.Path) -> float | None:
    """The last heartbeat of a store's owner that is gone, from the copy of its folder."""
    for place in (run, run.parent.parent):  # a run, or one in a sweep
        path = place / lock.LEASE_FILE
        with contextlib.suppress(BadInput):
            if path.exists():
                lease = records.read_json(path, LEASE_SCHEMA)
                return None if lease["held"] else lease["beat"]
    return None
