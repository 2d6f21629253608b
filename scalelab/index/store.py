"""The file of an index: facts read from run folders, each with the state of the files that they were read from.

    .index.json    line 1: `scalelab index VERSION DIGEST`, of the code that read the facts, and of what follows
                   then JSON: {"states": {run: state of its files}, "tables": [compact tables of facts by run]}

Facts are used only while the state of all their files is unchanged: size, inode, times of modification and change.
A file that changed shortly before it was read could change again within one tick of the file system's clock, with both
times as they were; such facts are not stored (as "racily clean" entries of git's index, Documentation/technical/
racy-git.txt). A damaged file, or one of other code, is ignored and written anew.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.record.jsonfiles import Folder
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import read_bytes

INDEX_FILE = ".index.json"
READ_FILES = (
    "config.json", "record.json", "metrics.jsonl", "events.jsonl", "layers.jsonl", "evaluations.jsonl",
)  # fmt: skip
MOST_INDEX_BYTES = 2**29  # an index of 100,000 runs has 200 MB
LEAST_RUNS = 64  # fewer runs are read fast enough without an index
CLOCK_TICK_NS = 2_000_000_000  # tick of the coarsest clock of a file system (FAT: 2 s)
PLACE_COLUMNS = ("name", "folder")  # columns that follow from the run's place: not stored, None in loaded facts
Facts = dict[str, Any]


def file_state(run: str) -> tuple[str, int] | None:
    """State of a run's files: (digest over all READ_FILES, time of the last change in ns); None without config.json."""
    parts, latest = [], 0
    for name in READ_FILES:
        try:
            stat = os.lstat(f"{run}/{name}")  # a link is not read, so its own state counts
        except (FileNotFoundError, NotADirectoryError):
            if name == READ_FILES[0]:
                return None
            parts.append(bytes(32))
            continue
        latest = max(latest, stat.st_mtime_ns, stat.st_ctime_ns)
        parts.append(struct.pack("4q", stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino))
    return hashlib.blake2b(b"".join(parts), digest_size=12).hexdigest(), latest


def code_version(*files: str) -> str:
    """Digest of the reading code: facts that other code has read are not used."""
    digest = hashlib.blake2b(digest_size=12)
    for file in (*files, __file__):
        digest.update(pathlib.Path(file).read_bytes())
    return digest.hexdigest()


def load_index(place: Folder, version: str) -> tuple[dict[str, str], list[dict[str, Facts]]]:
    """Load the index in `place`: ({run: state}, one {run: facts} for each table); empty without a valid index."""
    try:
        head, _, body = read_bytes(pathlib.Path(place, INDEX_FILE), MOST_INDEX_BYTES).partition(b"\n")
        if head != _head(version, body):
            return {}, []
        content = parse_json(body)
        return content["states"], [_expand(table) for table in content["tables"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, []


def _head(version: str, body: bytes) -> bytes:
    return f"scalelab index {version} {hashlib.blake2b(body, digest_size=12).hexdigest()}".encode()


class IndexDraft:
    """A draft index: made before runs are read, it replaces the old one at the end. It does nothing if unwritable."""

    def __init__(self, place: Folder) -> None:
        self.place, self.draft = pathlib.Path(place), ""
        with contextlib.suppress(OSError):  # the folder is read-only
            descriptor, self.draft = tempfile.mkstemp(prefix=f"{INDEX_FILE}.", suffix=".tmp", dir=place)
            self.started = os.fstat(descriptor).st_mtime_ns  # time by the file system's clock, which may be a server's
            os.close(descriptor)

    def is_settled(self, latest: int) -> bool:
        """Whether a file's last change, at `latest` (ns), is long enough before this draft began."""
        return bool(self.draft) and latest < self.started - CLOCK_TICK_NS

    def write(self, version: str, states: Mapping[str, str], tables: Sequence[Mapping[str, Facts]]) -> None:
        """Replace the index, atomically."""
        content = {"states": states, "tables": [_compress(table) for table in tables]}
        body = json.dumps(content, separators=(",", ":")).encode()
        with contextlib.suppress(OSError):
            pathlib.Path(self.draft).write_bytes(_head(version, body) + b"\n" + body)
            os.chmod(self.draft, 0o666 & ~_umask())
            os.replace(self.draft, self.place / INDEX_FILE)
            self.draft = ""

    def close(self) -> None:
        """Remove the draft if it was not written."""
        if self.draft:
            with contextlib.suppress(OSError):
                os.unlink(self.draft)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def share_values(rows: Mapping[str, Facts]) -> dict[str, Facts]:
    """Let rows share one object for equal values, as after loading: a tenth of the memory."""
    return _expand(_compress(rows))


def _compress(rows: Mapping[str, Facts]) -> list[dict[str, Any]]:
    """Group rows of the same columns; a value that is equal in the whole group is stored once."""
    groups: dict[tuple[str, ...], dict[str, Facts]] = {}
    for name, row in rows.items():
        groups.setdefault(tuple(row), {})[name] = row
    return [_compress_group(columns, group) for columns, group in groups.items()]


def _compress_group(columns: Sequence[str], rows: Mapping[str, Facts]) -> dict[str, Any]:
    first = next(iter(rows.values()))
    texts = {key: repr(first[key]) for key in columns if key not in PLACE_COLUMNS}
    varying = [key for key in texts if any(repr(row[key]) != texts[key] for row in rows.values())]
    base = {key: first[key] if key in texts and key not in varying else None for key in columns}
    return {"base": base, "varying": varying, "rows": {n: [row[k] for k in varying] for n, row in rows.items()}}


def _expand(groups: Sequence[Mapping[str, Any]]) -> dict[str, Facts]:
    """Undo `_compress`; rows share the values that are equal."""
    return {
        name: group["base"] | dict(zip(group["varying"], values, strict=True))
        for group in groups
        for name, values in group["rows"].items()
    }
