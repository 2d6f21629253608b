"""Read the texts of one column of CSV or TSV (RFC 4180, with a header line); cells may also stand between semicolons.

One worker reads a file, since a quoted cell may hold line ends.
"""

import csv
import functools
import itertools
import os
from collections.abc import Iterator

from scalelab.data.read.files import MAX_DOCUMENT_BYTES, inner_name, read_chunks
from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.text import stream_lines
from scalelab.errors import BadInput, nearest_hint

SEPARATORS = {".csv": ",", ".tsv": "\t"}
OTHER_SEPARATORS = ";\t|,"  # tried if the header has no column of the key; a comma is many locales' decimal sign


def is_delimited(path: str) -> bool:
    """Whether this is the name of a CSV or TSV file, packed or not."""
    return inner_name(path.lower()).endswith(tuple(SEPARATORS))


def split_csv(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Make one piece of the file: in its middle the start of a row is unknown."""
    yield Piece("csv", path), os.path.getsize(path)


def csv_documents(piece: Piece, reading: Reading) -> Iterator[bytes]:
    """Yield the non-empty cells of column `reading.key`."""
    return csv_cells(read_chunks(piece.path), piece.path, reading)


def csv_cells(pieces: Iterator[bytes], where: str, reading: Reading) -> Iterator[bytes]:
    """The non-empty cells of column `reading.key` of a stream; a row of another length than the header is bad.

    BadInput for an absent column, and for quotes that are not closed or stand within a cell.
    """
    # Bytes that are not UTF-8 become half surrogates and, cell by cell, bytes again.
    texts = (line.decode(errors="surrogateescape") + "\n" for _, line in stream_lines(pieces, where, 0))
    first = next(texts, "")
    sign = find_separator(first, where, reading.key)
    reader = csv.reader(itertools.chain([first], texts), delimiter=sign, strict=True)
    rows = _long_rows(reader)
    try:
        names = _names(next(rows, []))
        column = _column(names, where, reading) if names else 0
        last = reader.line_num
        for row in rows:
            place = functools.partial("{}, line {}".format, where, last + 1)
            last = reader.line_num
            if not row:  # an empty line
                continue
            if len(row) != len(names):
                reading.bad(place(), f"{len(row)} cells, and the header names {len(names)}")
                continue
            if reading.selection.filters and not reading.is_chosen(dict(zip(names, row, strict=True)), place):
                continue
            document = row[column].encode(errors="surrogateescape")
            if document and reading.is_text(document, place):
                yield document
    except csv.Error as error:
        raise BadInput(f"{where}, line {reader.line_num}: not CSV: {error}") from error


def _long_rows(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield rows with cells up to MAX_DOCUMENT_BYTES; csv's limit is global, so it is restored between rows."""
    while True:
        limit = csv.field_size_limit(MAX_DOCUMENT_BYTES)
        try:
            row = next(reader, None)
        finally:
            csv.field_size_limit(limit)
        if row is None:
            return
        yield row


def find_separator(header: str, where: str, key: str) -> str:
    """The sign between cells: the ending's, or the one by which the header line has a column of the key."""
    usual = SEPARATORS[inner_name(where.lower())[-4:]]
    for sign in (usual, *OTHER_SEPARATORS):
        try:
            if key in _names(next(csv.reader([header], delimiter=sign), [])):
                return sign
        except csv.Error:
            continue
    return usual


def separator_note(path: str, key: str) -> str | None:
    """What to tell of a file whose cells are not separated as its ending says; None: nothing."""
    (line,) = [line for _, line in itertools.islice(stream_lines(read_chunks(path), path, 0), 1)] or [b""]
    sign = find_separator(line.decode(errors="surrogateescape"), path, key)
    return None if sign == SEPARATORS[inner_name(path.lower())[-4:]] else f"{path}: its cells stand between {sign!r}"


def _names(cells: list[str]) -> list[str]:
    return [name.removeprefix("\ufeff").strip() for name in cells]


def _column(names: list[str], where: str, reading: Reading) -> int:
    key, origin = reading.key, reading.key_origin
    if key not in names:
        known = [ascii(name[:40])[1:-1] for name in names[:24]]  # a file that is not CSV may have any names
        raise BadInput(f"{where} has no column {key!r} ({origin}){nearest_hint(key, known)}")
    if (n := names.count(key)) > 1:
        raise BadInput(f"{where} has {n} columns {key!r} ({origin}): which one?")
    return names.index(key)
