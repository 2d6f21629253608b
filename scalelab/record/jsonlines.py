"""JSON-lines files of a run: appended to safely, checked when read, from the start or from the end.

An append is one write; a failed one is undone if possible. A line torn by a crash is ended before the next is written,
so that no other line is lost.
"""

import contextlib
import functools
import os
import pathlib
import shutil
from collections.abc import Callable, Collection, Iterator
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.record.jsonfiles import Folder, T, retry_transient
from scalelab.untrusted import documents
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import create_draft, open_file, open_to_append, replace_file
from scalelab.untrusted.schemas import Schema, describe_mismatch

MOST_LINE_BYTES = 2**24  # limit of one line; a line of layers.jsonl with 1,000 layers has 300 kB
MOST_TAIL_BYTES = 2**26  # limit of a file's end that is searched for the last line of a kind
MOST_BLOCK_BYTES = 2**20  # of it at a time


def append_json_lines(path: Folder, lines: list[dict]) -> str:
    """Append objects to a JSON-lines file with one write. WorkFailed if the disk is full or fails.

    Returns a warning if the last line was torn and had to be ended; "" otherwise.
    """
    if not lines:
        return ""
    data = "".join(documents.dump_json(line) + "\n" for line in lines).encode()
    try:
        torn = retry_transient(lambda: _append_bytes(path, data))
    except OSError as error:  # on a full disk Python's message doesn't name the file
        raise WorkFailed(f"{path} could not be written ({error.strerror})") from error
    if not torn or _is_json(torn):  # complete except for its newline
        return ""
    return f"{path} ended within a line, which was ended before the next: {_excerpt(torn)}"


def _append_bytes(path: Folder, data: bytes) -> bytes:
    """Write `data` at the end; returns the torn line before it, or b""."""
    descriptor = open_to_append(path)
    try:
        before = os.fstat(descriptor).st_size
        torn = _torn_line(descriptor, before)
        data = b"\n" * bool(torn) + data
        written = 0
        try:
            while written < len(data):
                written += os.write(descriptor, data[written:])
        except OSError:
            with contextlib.suppress(OSError):  # undo the write, unless another process has written since
                if os.fstat(descriptor).st_size == before + written:
                    os.ftruncate(descriptor, before)
            raise
        return torn
    finally:
        os.close(descriptor)


def _torn_line(descriptor: int, size: int) -> bytes:
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return b""
    start = max(0, size - 2**16)
    return os.pread(descriptor, size - start, start).rpartition(b"\n")[2]


def read_json_lines(
    path: Folder, schema: Schema | None = None, damaged: list[str] | None = None, having: str = ""
) -> list[dict]:
    """Read all whole lines of a JSON-lines file ([] if absent), objects that match `schema`.

    A torn last line is left out. Any other damaged line is BadInput, or a text appended to the list `damaged` if given.
    `having`: only lines with this key are read.
    """

    def read() -> tuple[list[dict], list[str]]:  # frees the lines' bytes, which would double the memory
        rows: list[dict] = []
        wrong: list[str] = []
        keys: dict[tuple[str, ...], tuple[str, ...]] = {}  # equal keys share one text, else the memory doubles again
        for number, text, row in _each_line(path, schema or {}, having):
            if row is not None:
                rows.append(dict(zip(keys.setdefault(tuple(row), tuple(row)), row.values(), strict=True)))
            else:
                wrong.append(_describe_damage(path, number, text))
        return rows, wrong

    absent: tuple[list[dict], list[str]] = ([], [])
    rows, wrong = _retry_reading(path, read, absent)
    if wrong and damaged is None:
        raise BadInput(wrong[0])
    if damaged is not None:
        damaged += wrong
    return rows


def _describe_damage(path: Folder, number: int, text: bytes) -> str:
    return f"{path}, line {number}: damaged: {_excerpt(text)}"


def last_values(path: Folder, schema: Schema, keys: Collection[str]) -> dict[str, Any]:
    """Read the last value of each of `keys` in a JSON-lines file; keys that no line has are left out ({}: no file).

    Checks every line, as `read_json_lines` does, and holds one at a time. BadInput for a damaged line.
    """

    def scan() -> dict[str, Any]:
        values: dict[str, Any] = {}
        for number, text, row in _each_line(path, schema):
            if row is None:
                raise BadInput(_describe_damage(path, number, text))
            values |= {key: row[key] for key in keys if key in row}
        return values

    return _retry_reading(path, scan, {})


def keep_json_lines(path: Folder, schema: Schema, wanted: Callable[[dict], bool]) -> list[str]:
    """Replace a JSON-lines file by its lines for which `wanted` is true, atomically; those keep their bytes.

    Returns warnings about damaged lines, which are dropped too; the old file is then kept beside the new one.
    """
    path = pathlib.Path(path)
    lines = numbered_lines(path, schema)
    damaged = [f"{path}, line {number} was damaged" for number, _, row in lines if row is None]
    if damaged:
        copy_file(path, path.with_name(f"{path.name}.damaged"))
        damaged[-1] += f"; the file as it was: {path.name}.damaged"
    content = b"".join(text + b"\n" for _, text, row in lines if row is not None and wanted(row))
    retry_transient(lambda: replace_file(path, content))
    return damaged


def copy_file(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a file of a run, atomically."""
    with open_file(source) as old, create_draft(target) as new:
        shutil.copyfileobj(old, new)
    os.replace(new.name, target)


def first_line(path: Folder, schema: Schema) -> dict | None:
    """Read the first object of a JSON-lines file; None for no object. BadInput if it is damaged."""

    def read() -> dict | None:
        for number, text, row in _each_line(path, schema):
            if row is None:
                raise BadInput(_describe_damage(path, number, text))
            return row
        return None

    return _retry_reading(path, read, None)


def last_line(path: Folder, wanted: Callable[[dict], bool], having: str = "") -> dict | None:
    """Find the last whole object of a JSON-lines file for which `wanted` is true, or None; damaged lines are skipped.

    Reads only as much of the file's end as needed, at most MOST_TAIL_BYTES. `having`: only lines with this key.
    """
    mark = f'"{having}"'.encode() if having else b""

    def scan() -> dict | None:
        for text in filter(lambda text: mark in text, _lines_backwards(path)):
            with contextlib.suppress(ValueError):
                row = parse_json(text)
                if isinstance(row, dict) and wanted(row):
                    return row
        return None

    return _retry_reading(path, scan, None)


def _lines_backwards(path: Folder) -> Iterator[bytes]:
    """The whole lines in the last MOST_TAIL_BYTES of a file, last first, read in blocks that grow."""
    with open_file(path) as file:
        place, rest, size = file.seek(0, os.SEEK_END), b"", 2**14
        first = max(0, place - MOST_TAIL_BYTES)
        while place > first:
            start = max(first, place - size)
            file.seek(start)
            rest, *lines = (file.read(place - start) + rest).split(b"\n")
            yield from reversed(lines)
            place, size = start, min(4 * size, MOST_BLOCK_BYTES)
        if not first:
            yield rest


def tail_lines(path: Folder, size: int = 2**15) -> list[dict]:
    """Read the whole objects in the last `size` bytes of a JSON-lines file, in order; damaged lines are skipped."""
    none: list[bytes] = []
    rows = []
    for text in _retry_reading(path, lambda: _lines_at_end(path, size), none):
        with contextlib.suppress(ValueError):
            rows.append(parse_json(text))
    return [row for row in rows if isinstance(row, dict)]


def _lines_at_end(path: Folder, size: int) -> list[bytes]:
    """The whole lines in the last `size` bytes of a file."""
    with open_file(path) as file:
        start = max(0, file.seek(0, os.SEEK_END) - size)
        file.seek(start)
        return file.read().split(b"\n")[1 if start else 0 :]


def numbered_lines(path: Folder, schema: Schema) -> list[tuple[int, bytes, dict | None]]:
    """Yield (number, bytes, object) of every line but empty ones and a torn last one; a damaged object is None."""
    return _retry_reading(path, lambda: list(_each_line(path, schema)), [])


def _retry_reading(path: Folder, read: Callable[[], T], absent: T) -> T:
    """Return `read()`, with retries, or `absent` if there is no such file. BadInput if it can't be read."""
    try:
        return retry_transient(read)
    except FileNotFoundError:
        return absent
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}") from None


def _each_line(path: Folder, schema: Schema, having: str = "") -> Iterator[tuple[int, bytes, dict | None]]:
    mark = f'"{having}"'.encode() if having else b""
    with open_file(path) as file:
        is_small = os.fstat(file.fileno()).st_size <= MOST_LINE_BYTES
        lines = file if is_small else iter(functools.partial(file.readline, MOST_LINE_BYTES + 1), b"")
        for number, line in enumerate(lines, 1):
            if len(line) > MOST_LINE_BYTES:
                raise BadInput(f"{path}, line {number} has more than {MOST_LINE_BYTES:,} bytes: was it edited?")
            text = line.removesuffix(b"\n")
            if not text or (mark not in text and text.startswith(b"{") and text.endswith(b"}")):
                continue
            try:
                row = parse_json(text)
            except ValueError:
                if len(text) == len(line):  # a line without a newline was not written completely
                    continue
                row = None
            yield number, text, row if row is not None and not describe_mismatch(row, schema) else None


def _is_json(text: bytes) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _excerpt(text: bytes) -> str:
    return repr(text[:60].decode(errors="replace"))
