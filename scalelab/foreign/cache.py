"""The size of the cache of foreign runs: what was used last stays, the oldest goes once it is larger than its limit."""

import contextlib
import os
import pathlib
import re
import shutil
import time
from collections.abc import Iterator

from scalelab.errors import BadInput

LIMIT_GIB = 10.0
LIMIT_NAME = "SCALELAB_FOREIGN_GIB"
IN_USE_S = 3600.0  # another process may still read what was used within it
OWN_NAME = re.compile(r"[0-9a-f]{32}|\.[0-9a-f]{32}\.\d+")  # of an entry, and of a draft with its process
DRAFT_S = 86400.0  # a draft of a process that was killed


def cache_limit() -> float:
    """The limit in GiB: $SCALELAB_FOREIGN_GIB, else LIMIT_GIB. BadInput for what is not a number above zero."""
    text = os.environ.get(LIMIT_NAME) or str(LIMIT_GIB)
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise BadInput(
            f"{LIMIT_NAME}={text[:40]}: the cache's limit in GiB is a number above zero; nearest: {LIMIT_GIB:g}"
        )
    return limit


def mark_used(place: pathlib.Path) -> None:
    """Note that an entry of the cache was read now; a cache that can't be written stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(place)


def prune_cache(root: pathlib.Path, keep: pathlib.Path) -> str:
    """Remove the entries that were used longest ago until the cache is within its limit; returns a line on it, or "".

    `keep`, what was used within IN_USE_S, and folders that are not the cache's own stay.
    """
    limit, now = cache_limit(), time.time()
    entries = []
    for entry in _entries(root):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            age = now - entry.stat().st_mtime
            if not entry.name.startswith("."):
                entries.append((age, _bytes_below(entry), entry))
            elif age > DRAFT_S:
                shutil.rmtree(entry, ignore_errors=True)
    size, removed, freed = sum(each[1] for each in entries), 0, 0
    for age, entry_bytes, entry in sorted(entries, key=lambda each: -each[0]):
        if size <= limit * 2**30:
            break
        if entry != keep and age > IN_USE_S:
            shutil.rmtree(entry, ignore_errors=True)
            size, removed, freed = size - entry_bytes, removed + 1, freed + entry_bytes
    if not removed and size <= limit * 2**30:
        return ""
    left = f"{size / 2**30:.2g} GiB of {limit:g} are used ({LIMIT_NAME} sets it)"
    if not removed:
        return f"cache: {left}; nothing in {root} is older than an hour, so nothing is removed"
    return f"cache: {removed} sources unused for longest ({freed / 2**30:.2g} GiB) were removed from {root}: {left}"


def _entries(root: pathlib.Path) -> Iterator[pathlib.Path]:
    folders = list[os.DirEntry[str]]()
    with contextlib.suppress(FileNotFoundError), os.scandir(root) as found:
        folders = [each for each in found if each.is_dir(follow_symlinks=False)]
    yield from (pathlib.Path(each.path) for each in folders if OWN_NAME.fullmatch(each.name))


def _bytes_below(folder: pathlib.Path) -> int:
    """The bytes of a folder's files; what another process removes meanwhile counts as nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
