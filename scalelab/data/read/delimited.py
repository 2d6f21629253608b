"""Read the texts of one column of CSV or TSV (RFC 4180, with a header line).

One worker reads a file, since a quoted cell may hold line ends.
"""

import csv
import functools
import os
from collections.abc import Iterator

from scalelab.data.read.files import MAX_DOCUMENT_BYTES, inner_name, read_chunks
from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.text import stream_lines
from scalelab.errors import BadInput, nearest_hint

SEPARATORS = {".csv": ",", ".tsv": "\t"}


def is_delimited(path: str) -> bool:
    """Whether this is the name of a CSV or TSV file, packed or not."""
    return inner_name(path.lower()).endswith(tuple(SEPARATORS))


def split_csv(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Make one piece of the file: in its middle the start of a row is unknown."""
    yield Piece("csv", path), os.path.getsize(path)


def csv_documents(piece: Piece, reading: Reading) -> Iterator[bytes]:
    """Yield the non-empty cells of column `reading.text_key`."""
    return csv_cells(read_chunks(piece.path), piece.path, reading)


def csv_cells(pieces: Iterator[bytes], where: str, reading: Reading) -> Iterator[bytes]:
    """The non-empty cells of column `reading.text_key` of a stream; a row of another length than the header is bad.

    BadInput for an absent column, and for quotes that are not closed or stand within a cell.
    """
    # Bytes that are not UTF-8 become half surrogates and, cell by cell, bytes again.
    texts = (line.decode(errors="surrogateescape") + "\n" for _, line in stream_lines(pieces, where, 0))
    reader = csv.reader(texts, delimiter=SEPARATORS[inner_name(where.lower())[-4:]], strict=True)
    rows = _long_rows(reader)
    try:
        names = [name.removeprefix("\ufeff").strip() for name in next(rows, [])]
        column = _column(names, where, reading.text_key) if names else 0
        last = reader.line_num
        for row in rows:
            place = functools.partial("{}, line {}".format, where, last + 1)
            last = reader.line_num
            if not row:  # an empty line
                continue
            if len(row) != len(names):
                reading.bad(place(), f"{len(row)} cells, and the header names {len(names)}")
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


def _column(names: list[str], where: str, key: str) -> int:
    if key not in names:
        known = [ascii(name[:40])[1:-1] for name in names[:24]]  # a file that is not CSV may have any names
        raise BadInput(f"{where} has no column {key!r} (--text-key){nearest_hint(key, known)}")
    if (n := names.count(key)) > 1:
        raise BadInput(f"{where} has {n} columns {key!r} (--text-key): which one?")
    return names.index(key)
