"""Read text files and JSON lines, plain or packed, whole or a range of bytes.

A text file is one document. Above CUT_BYTES it is cut at the first line end after each multiple of CUT_BYTES. The cuts
depend only on the file, so different workers can read pieces of it.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scalelab.data.read.files import MAX_DOCUMENT_BYTES, PACKED_ENDINGS, read_chunks
from scalelab.data.read.reading import NO_TOOLS, TOOLS, Piece, Reading
from scalelab.data.read.selection import find_field
from scalelab.errors import BadInput

CUT_BYTES = 2**20


def split_text(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Pieces of a text file with their sizes: one for a packed file, else each of about `unit_bytes`."""
    return _split("text", path, max(1, unit_bytes // CUT_BYTES) * CUT_BYTES)


def split_json_lines(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Pieces of a file of JSON lines with their sizes: one for a packed file, else each of about `unit_bytes`."""
    return _split("jsonl", path, unit_bytes)


def _split(kind: str, path: str, step: int) -> Iterator[tuple[Piece, int]]:
    size = os.path.getsize(path)
    if path.endswith(PACKED_ENDINGS) or size <= step:
        yield Piece(kind, path), size
        return
    for start in range(0, size, step):
        yield Piece(kind, path, start, min(start + step, size)), min(step, size - start)


def text_documents(piece: Piece, reading: Reading) -> Iterator[bytes]:
    """The documents that begin in a range of a text file; `piece.start` is a multiple of CUT_BYTES."""
    return text_stream_documents(read_chunks(piece.path, piece.start), piece.path, reading, piece.start, piece.stop)


def text_stream_documents(
    pieces: Iterator[bytes], where: str, reading: Reading, start: int = 0, stop: int = -1
) -> Iterator[bytes]:
    """The documents of a stream of text that begins at byte `start` of a file."""
    for offset, document in _cut(pieces, start, stop):
        if document and reading.is_text(document, lambda: where, offset):
            yield document


def _cut(pieces: Iterator[bytes], start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    buffer, offset = b"", start  # `offset`: place of the buffer in the file
    in_document, boundary = start == 0, start or CUT_BYTES
    while True:
        while len(buffer) < boundary + CUT_BYTES - offset and (piece := next(pieces, b"")):
            buffer += piece
        if boundary >= offset + len(buffer):
            break
        cut = boundary - offset + _line_end(buffer[boundary - offset : boundary - offset + CUT_BYTES])
        if in_document:
            yield offset, buffer[:cut]
        if boundary == stop:
            return
        buffer, offset, in_document, boundary = buffer[cut:], offset + cut, True, boundary + CUT_BYTES
    if in_document and buffer:
        yield offset, buffer


def _line_end(window: bytes) -> int:
    """Place of the cut: after the first line that ends in the window or with the file, else before a whole letter."""
    if (newline := window.find(b"\n")) >= 0:
        return newline + 1
    if len(window) < CUT_BYTES:
        return len(window)
    return next((i for i, byte in enumerate(window[:4]) if byte & 0xC0 != 0x80), 0)


def json_documents(piece: Piece, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """The texts, or chats, of the JSON lines that begin in a range of a file."""
    return json_line_texts(
        read_chunks(piece.path, max(0, piece.start - 1)), piece.path, reading, piece.start, piece.stop
    )


def json_line_texts(
    pieces: Iterator[bytes], where: str, reading: Reading, start: int = 0, stop: int = -1
) -> Iterator[bytes | np.ndarray]:
    """The text under `reading.key` of each line; the stream begins at byte `start - 1` of a file (or 0)."""
    for number, (offset, line) in enumerate(stream_lines(pieces, where, start), 1):
        if stop >= 0 and offset >= stop:
            return
        if not line.strip():
            continue
        place = functools.partial(_line, where, number, start)
        record = _parse_line(line, reading)
        if isinstance(record, str):
            reading.bad(f"{place()} (byte {offset})", record)
        elif reading.is_chosen(record, place):
            yield from record_documents(record, reading, place, offset)


def record_documents(
    record: Any, reading: Reading, place: Callable[[], str], offset: int | None = None
) -> Iterator[bytes | np.ndarray]:
    """The document of one parsed record, if it has a good one; it begins at byte `offset` of its file."""
    text = _text(record, reading)
    if isinstance(text, str):
        reading.bad(place() if offset is None else f"{place()} (byte {offset})", text)
    elif isinstance(text, np.ndarray) or (text and reading.is_text(text, place)):
        yield text


def stream_lines(pieces: Iterator[bytes], where: str, start: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) without line ends. With `start` > 0 the first line is skipped: it belongs to the range before."""
    offset, parts, size = max(0, start - 1), list[bytes](), 0
    skip = start > 0
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for line in ended:
            whole = b"".join([*parts, line])
            if not skip:
                yield offset, whole
            offset, skip, parts, size = offset + len(whole) + 1, False, [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_DOCUMENT_BYTES:
            raise BadInput(
                f"{where}: the line that begins at byte {offset} is longer than {MAX_DOCUMENT_BYTES} bytes; "
                "is it JSON lines?"
            )
    if size and not skip:
        yield offset, b"".join(parts)


def _parse_line(line: bytes, reading: Reading) -> Any:
    """The object or array of one JSON line, or the fault as str."""
    try:
        record = json.loads(line.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        return f"0x{line[error.start]:02x} is not valid UTF-8, {error.start} bytes into it"
    except json.JSONDecodeError as error:
        return f"bad JSON, {error.msg} at column {error.colno}: {error.doc[max(0, error.pos - 10) : error.pos + 30]!r}"
    except (RecursionError, ValueError):
        return "bad JSON, nested too deep or with a number of thousands of digits"
    if isinstance(record, str):
        return f"no key {reading.key!r} ({reading.key_origin}); it is not an object"
    return record


def _text(record: Any, reading: Reading) -> bytes | np.ndarray | str:
    """The text of a record as bytes, the ids of its chat, or the fault as str."""
    key = reading.key
    try:
        value = find_field(record, key)
        if isinstance(value, list):
            return _tools_fault(record, key) or reading.chat_or_fault(value)
        return value.encode() if isinstance(value, str) else f"{key!r} is {json.dumps(value)[:40]}, not a text"
    except KeyError:
        known = (
            f"it has {', '.join(map(repr, list(record)[:8]))}" if isinstance(record, dict) else "it is not an object"
        )
        return f"no key {key!r} ({reading.key_origin}); {known}"
    except UnicodeEncodeError as error:
        return f"{key!r} holds half a surrogate pair, \\u{ord(error.object[error.start]):04x}"
    except RecursionError:
        return "bad JSON, nested too deep or with a number of thousands of digits"


def _tools_fault(record: Any, key: str) -> str:
    """Why a chat with tools beside its messages is not written; "": it has none."""
    beside = [record]
    for name in key.split(".")[:-1]:
        beside.append(beside[-1].get(name) if isinstance(beside[-1], dict) else None)
    named = [name for name in TOOLS for each in beside if isinstance(each, dict) and each.get(name)]
    return f"{named[0]!r} stands beside the messages: {NO_TOOLS}" if named else ""


def _line(where: str, number: int, start: int) -> str:
    """Name of the `number`-th line that begins at byte `start` or later; counts the lines before it."""
    total, left = number + (start > 0), start - 1  # the line of byte start - 1 was skipped
    for piece in read_chunks(where) if start else ():
        total += piece[:left].count(b"\n")
        left -= len(piece)
        if left <= 0:
            break
    return f"{where}, line {total}"
