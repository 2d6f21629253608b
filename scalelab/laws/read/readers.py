"""File formats of a table of runs: .csv, .jsonl, .parquet. Anything else is refused before it is read.

Parquet is written here too, so that one place knows its types.
"""

import csv
import json
import pathlib
from collections.abc import Sequence
from typing import Any, TextIO

from scalelab.errors import BadInput

LARGEST_BYTES = 512 * 2**20  # a table of runs is some megabytes; more is another file, given by mistake
Line = dict[str, Any]


def read_raw_rows(path: pathlib.Path) -> list[Line]:
    """Read a file's rows, {column: value} as stored there. BadInput for a file that can't be a table of runs."""
    if path.suffix not in READERS:
        raise BadInput(
            f"{str(path)!r}: a table is a .csv, .jsonl or .parquet file; anything else must be a folder of runs"
        )
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise BadInput(
            f"{str(path)!r} has {size / 2**30:.2f} GiB; a table of runs has at most 0.5: is it another file?"
        )
    if not size:
        raise BadInput(f"{str(path)!r} is empty")
    try:
        lines = READERS[path.suffix](path)
    except UnicodeDecodeError:
        raise BadInput(f"{str(path)!r} is not text (UTF-8): it doesn't look like a {path.suffix} table") from None
    except OSError as error:
        raise BadInput(f"{str(path)!r} can't be read: {error.strerror or error}") from None
    if not lines:
        raise BadInput(f"{path} holds no rows")
    return lines


def shorten_text(value: Any) -> str:
    """Shorten a value of a file to one line of at most 60 characters for a message: it may be anything."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


def _open_text(path: pathlib.Path) -> TextIO:
    with path.open("rb") as file:
        if b"\0" in file.read(4096):
            raise BadInput(f"{str(path)!r} is a binary file: it doesn't look like a {path.suffix} table")
    return path.open(newline="", encoding="utf-8-sig")


def _read_csv(path: pathlib.Path) -> list[Line]:
    with _open_text(path) as file:
        try:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
        except csv.Error as error:
            raise BadInput(f"{str(path)!r} is not CSV: {error}") from None
    if double := next((name for name in header if header.count(name) > 1), None):
        raise BadInput(f"{path.name} has two columns {shorten_text(double)!r}: which one counts?")
    for number, row in enumerate(rows, 1):
        if len(row) > len(header):
            raise BadInput(f"{path.name}, row {number} has {len(row)} cells, the header {len(header)}")
    return [dict(zip(header, row, strict=False)) for row in rows]


def _read_jsonl(path: pathlib.Path) -> list[Line]:
    rows = []
    with _open_text(path) as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", "a number too long or lists too deep")
                raise BadInput(f"{path}, line {number} is not JSON: {reason}") from None
            if not isinstance(row, dict):
                raise BadInput(f"{path}, line {number} is not an object: {shorten_text(row)!r}")
            rows.append(row)
    return rows


def _read_parquet(path: pathlib.Path) -> list[Line]:
    import pyarrow  # imported for this kind of table only
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            rows, columns = file.metadata.num_rows, file.metadata.num_columns
            if 8 * rows * columns > LARGEST_BYTES:  # the file's size says little: equal values pack to almost nothing
                raise BadInput(f"{str(path)!r} holds {rows:,} rows of {columns} columns: is it another file?")
            return file.read().to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{str(path)!r} is not a parquet file: {shorten_text(error)}") from None


def write_parquet(rows: Sequence[Line], columns: Sequence[str], path: pathlib.Path) -> None:
    """Write a table that `read_raw_rows` reads back: integers, floats, booleans and text as such, None as null.

    A column of mixed types becomes floats if all its values are numbers, else text. The file appears whole or not at
    all.
    """
    from pyarrow import parquet

    draft = path.with_name(f".{path.name}.tmp")
    parquet.write_table(arrow_table(rows, columns), draft)
    draft.replace(path)


def arrow_table(rows: Sequence[Line], columns: Sequence[str] | None = None) -> Any:
    """The rows as a `pyarrow.Table`, with types as `write_parquet` says; without `columns` all that any row has."""
    import pyarrow

    columns = columns or list(dict.fromkeys(key for row in rows for key in row))
    return pyarrow.table({column: _arrow_column([row.get(column) for row in rows]) for column in columns})


def _arrow_column(values: list[Any]) -> Any:
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pyarrow.nulls(len(values), pyarrow.float64())  # no value yet; later ones are mostly numbers
    wanted = {
        frozenset({int}): pyarrow.int64(), frozenset({float}): pyarrow.float64(), frozenset({bool}): pyarrow.bool_(),
        frozenset({int, float}): pyarrow.float64(),
    }.get(frozenset(kinds))  # fmt: skip
    if wanted is None:
        return pyarrow.array([None if value is None else str(value) for value in values], pyarrow.string())
    if wanted == pyarrow.float64():
        values = [None if value is None else float(value) for value in values]
    return pyarrow.array(values, wanted)


READERS = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
