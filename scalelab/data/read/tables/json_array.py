"""Read the records of a .json file that is one array of objects, as `json.dump` of a list writes it (Alpaca's form).

One worker reads a file, record after record: memory holds one record and a chunk.
"""

import codecs
import functools
import json
import os
import re
from collections.abc import Iterator

import numpy as np

from scalelab.data.read.files import MAX_DOCUMENT_BYTES, inner_name, read_chunks
from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.text import record_documents
from scalelab.errors import BadInput

BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
LOOKED_AT = 2**16  # bytes of the start of a file
NEAR_END = 64  # letters: a fault so near the end of what was read may be a word that goes on


def is_json_array(path: str) -> bool:
    """Whether a file of JSON is one array: its name ends in .json, and its first line is not a record by itself.

    False for a file that can't be read: its own reader says why.
    """
    if not inner_name(path.lower()).endswith(".json"):
        return False
    try:
        start = next(read_chunks(path), b"")[:LOOKED_AT]
    except BadInput:
        return False
    lines = start.removeprefix(codecs.BOM_UTF8).lstrip().split(b"\n", 2)
    return lines[0].startswith(b"[") and not (len(lines) > 1 and lines[0].rstrip().endswith(b"]") and lines[1].strip())


def split_json_array(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Make one piece of the file: in its middle the start of a record is unknown."""
    yield Piece("json array", path), os.path.getsize(path)


def array_documents(piece: Piece, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """Yield the text, or chat, under `reading.key` of each record. BadInput where the array's JSON is not whole."""
    for number, record in enumerate(_records(piece.path), 1):
        place = functools.partial("{}, record {}".format, piece.path, number)
        if reading.is_chosen(record, place):
            yield from record_documents(record, reading, place)


def _refuse_more(path: str, records: int, rest: str, chunks: Iterator[bytes]) -> None:
    """BadInput where something stands behind the array: it would be left out in silence."""
    more = rest.strip().encode() or next((chunk.strip() for chunk in chunks if chunk.strip()), b"")
    if more:
        raise BadInput(
            f"{path}: {more[:40]!r} stands behind its array of {records:,} records: one array a file is read"
        )


def _records(path: str) -> Iterator[object]:
    """The parsed elements of the array."""
    decoder, utf8, parse = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8")(), 0
    chunks, buffer, number = read_chunks(path), "", 0
    try:
        buffer = utf8.decode(next(chunks, b"")).removeprefix("\ufeff").lstrip()[1:]
        while True:
            parse = BETWEEN.match(buffer, parse).end()  # type: ignore[union-attr]
            if buffer[parse : parse + 1] == "]":
                _refuse_more(path, number, buffer[parse + 1 :], chunks)
                return
            try:
                record, end = decoder.raw_decode(buffer, parse)
                if end == len(buffer) and (chunk := next(chunks, b"")):  # a number may go on
                    buffer += utf8.decode(chunk)
                    continue
            except json.JSONDecodeError as error:
                goes_on = error.msg.startswith("Unterminated") or error.pos + NEAR_END > len(buffer)
                buffer = buffer[parse:]
                if not goes_on or not (chunk := next(chunks, b"")):
                    raise BadInput(
                        f"{path}, record {number + 1}: bad JSON, {error.msg}: {buffer[:40]!r}; is it one array?"
                    ) from None
                if len(buffer) > MAX_DOCUMENT_BYTES:
                    raise BadInput(f"{path}, record {number + 1} is longer than {MAX_DOCUMENT_BYTES} letters") from None
                buffer, parse = buffer + utf8.decode(chunk), 0
                continue
            number += 1
            yield record
            parse = end
    except BadInput:
        raise
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}, after record {number}: 0x{error.object[error.start]:02x} is not valid UTF-8") from None
    except (RecursionError, ValueError):
        raise BadInput(f"{path}, record {number + 1}: nested too deep, or a number of thousands of digits") from None
