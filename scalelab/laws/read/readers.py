"""File formats of a table of runs: .csv, .tsv, .jsonl, each also as .gz, and .parquet. Anything else is refused unread.

Parquet is written here too, so that one place knows its types.
"""

import codecs
import csv
import gzip
import io
import itertools
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, TextIO

from scalelab.errors import BadInput
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import open_file
from scalelab.untrusted.text import as_utf8

LARGEST_BYTES = 512 * 2**20  # a table of runs is some megabytes; more is another file, given by mistake
FEWEST_MERGED = 8  # rows of a table whose empty cells may be merged ones
Line = dict[str, Any]


def read_raw_rows(path: pathlib.Path) -> list[Line]:
    """Read a file's rows, {column: value} as stored there. BadInput for a file that can't be a table of runs.

    The path is the user's own, and may be a link.
    """
    kind = _kind_of(path)
    if kind not in READERS or (kind == ".parquet" and path.suffix == ".gz"):
        raise BadInput(
            f"{str(path)!r}: a table is a .csv, .tsv or .jsonl file (each may be .gz), or a .parquet file; "
            "anything else must be a folder of runs"
        )
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise BadInput(
            f"{str(path)!r} has {size / 2**30:.2f} GiB; a table of runs has at most 0.5: is it another file?"
        )
    if not size:
        raise BadInput(f"{str(path)!r} is empty")
    try:
        lines = READERS[kind](path)
    except UnicodeDecodeError:
        raise BadInput(f"{str(path)!r} is not text (UTF-8): it doesn't look like a {kind} table") from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{str(path)!r} can't be read: {getattr(error, 'strerror', None) or error}") from None
    if not lines:
        raise BadInput(f"{path} holds no rows")
    return [_strip_keys(line, path) for line in lines]


def _strip_keys(line: Line, path: pathlib.Path) -> Line:
    """The row with column names without blanks around them; BadInput where two become one."""
    if all(key == key.strip() for key in line):
        return line
    stripped = {key.strip(): value for key, value in line.items()}
    if len(stripped) < len(line):
        double = str(_first_double(key.strip() for key in line))
        raise BadInput(f"{path.name} has two columns {shorten_text(double)!r} but for blanks: which one counts?")
    return stripped


def _first_double(names: Iterable[str]) -> str | None:
    """The first name that comes twice, or None."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def column_names(path: str | os.PathLike[str]) -> list[str]:
    """The names of a table's columns, in order. BadInput as in `read_raw_rows`."""
    return list(dict.fromkeys(key for line in read_raw_rows(pathlib.Path(path)) for key in line))


def shorten_text(value: Any) -> str:
    """Shorten a value of a file to one line of at most 60 characters for a message: it may be anything."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


def _kind_of(path: pathlib.Path) -> str:
    """The suffix that tells the format: `.csv` of runs.csv and of runs.csv.gz."""
    return pathlib.Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _open_text(path: pathlib.Path) -> TextIO:
    """The file's text, unpacked if it is .gz; BadInput for a binary file, and for one that unpacks to too much."""
    file: BinaryIO = open_file(path, LARGEST_BYTES, follow=True)
    if path.suffix == ".gz":
        with file, gzip.GzipFile(fileobj=file) as packed:
            content = packed.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise BadInput(f"{str(path)!r} unpacks to more than 0.5 GiB: is it another file?")
        file = io.BytesIO(content)
    start = file.read(4096)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # Excel's "Unicode text"
        file.seek(0)
        return io.TextIOWrapper(file, newline="", encoding="utf-16")
    if b"\0" in start:
        file.close()
        raise BadInput(f"{str(path)!r} is a binary file: it doesn't look like a {_kind_of(path)} table")
    file.seek(0)
    return io.TextIOWrapper(file, newline="", encoding="utf-8-sig")


def _read_csv(path: pathlib.Path) -> list[Line]:
    with _open_text(path) as file:
        text = file.read()
    cells = _drop_empty_columns(_split_cells(text, path)) or [[]]
    _refuse_title(cells, path)
    header, *rows = _drop_copies(cells)
    if (double := _first_double(header)) is not None:
        raise BadInput(
            f"{path.name} has two columns {shorten_text(double)!r} with other values: which one counts? Rename or "
            "delete the other"
        )
    for number, row in enumerate(rows, 1):
        if len(row) > len(header):
            raise BadInput(
                f"{path.name}, row {number} has {len(row)} cells, the header {len(header)}{_thousands_hint(row)}"
            )
    return [dict(zip(header, row, strict=False)) for row in rows]


def _drop_empty_columns(cells: list[list[str]]) -> list[list[str]]:
    """The cells without columns that have neither a name nor a value, as spreadsheets write them."""
    if not cells or "" not in cells[0]:
        return cells
    used = {place for row in cells for place, cell in enumerate(row) if cell}
    return [[cell for place, cell in enumerate(row) if place in used or place >= len(cells[0])] for row in cells]


def _drop_copies(cells: list[list[str]]) -> list[list[str]]:
    """The cells without columns that are equal to an earlier one, name and values, as joins of tables leave them."""
    if _first_double(cells[0]) is None or any(len(row) != len(cells[0]) for row in cells):
        return cells
    kept = list(dict.fromkeys(zip(*cells, strict=True)))
    return [list(row) for row in zip(*kept, strict=True)]


def _refuse_title(cells: list[list[str]], path: pathlib.Path) -> None:
    """BadInput where one cell stands above a row of several texts, as a title above a table in a spreadsheet."""
    head = [cell for cell in cells[0] if cell]
    if len(head) == 1 and len(cells) > 2 and len(cells[0]) > 1 and all(cells[1]) and len(cells[1]) > 1:
        raise BadInput(
            f"{path.name}: its first line, {shorten_text(head[0])!r}, looks like a title: delete it, so that the names "
            f"of columns come first ({shorten_text(', '.join(cells[1]))})"
        )


def fill_merged(lines: list[Line], columns: Iterable[str]) -> list[tuple[str, int]]:
    """Fill, in place, empty cells below a merged one with its value: [(column, how many)].

    A spreadsheet writes a merged cell's value in its first row only. Of FEWEST_MERGED rows or more, a column counts as
    merged if its first cell is full and at least half of its cells are empty (not merely absent, as in JSON).
    """
    filled = []
    for column in columns:
        empty = [line.get(column) == "" for line in lines]
        if len(lines) < FEWEST_MERGED or not lines[0].get(column) or 2 * sum(empty) < len(lines):
            continue
        for above, line in itertools.pairwise(lines):
            if line.get(column) == "":
                line[column] = above.get(column)
        filled.append((column, sum(empty)))
    return filled


def _thousands_hint(row: list[str]) -> str:
    """A hint where commas inside numbers seem to have split them: groups of three digits follow a number."""
    pairs = itertools.pairwise(row)
    if not any(re.fullmatch(r"-?\d{1,3}", first) and re.fullmatch(r"\d{3}(\.\d+)?", second) for first, second in pairs):
        return ""
    return '; commas inside numbers? Quote these, as in "1,234,567", or write 1234567'


def _split_cells(text: str, path: pathlib.Path) -> list[list[str]]:
    """The cells, without blanks around them. A .tsv has tabs; of a .csv without commas in its header semicolons, tabs
    or bars are tried, and semicolons also where commas would give rows of unequal lengths. A first line `sep=;`, as
    Excel writes and reads it, decides."""
    if _kind_of(path) == ".tsv":
        return _cells(text, "\t", path)
    if told := re.match(r'\s*"?sep=(?P<mark>[,;|\t])"?[ ,;|\t]*\r?\n', text, re.IGNORECASE):
        return _cells(text[told.end() :], told["mark"], path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    if "," not in first:
        return _cells(text, next((mark for mark in ";\t|" if mark in first), ","), path)
    rows = _cells(text, ",", path)
    if ";" in first and len(set(map(len, rows))) > 1:
        other = _cells(text, ";", path)
        return other if len(set(map(len, other))) == 1 else rows
    return rows


def _cells(text: str, delimiter: str, path: pathlib.Path) -> list[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        return [[cell.strip() for cell in row] for row in reader if any(row) or len(row) > 1]
    except csv.Error as error:
        raise BadInput(f"{str(path)!r} is not CSV: {error}") from None


def _read_jsonl(path: pathlib.Path) -> list[Line]:
    rows = []
    with _open_text(path) as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                rows.append(parse_row(text, f"{path}, line {number}"))
    return rows


def parse_row(text: str | bytes, place: str) -> Line:
    """Parse a line of JSON as a row. BadInput, with its place, for anything but an object."""
    try:
        row = parse_json(text)
    except ValueError as error:
        raise BadInput(f"{place} is not JSON: {getattr(error, 'msg', error)}") from None
    if not isinstance(row, dict):
        raise BadInput(f"{place} is not an object: {shorten_text(row)!r}")
    return row


def _read_parquet(path: pathlib.Path) -> list[Line]:
    import pyarrow  # imported for this kind of table only
    from pyarrow import parquet

    try:
        with open_file(path, LARGEST_BYTES, follow=True) as opened, parquet.ParquetFile(opened) as file:
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
        frozenset({int}): pyarrow.int64(),
        frozenset({float}): pyarrow.float64(),
        frozenset({bool}): pyarrow.bool_(),
        frozenset({int, float}): pyarrow.float64(),
    }.get(frozenset(kinds))
    if wanted is None:
        return pyarrow.array([None if value is None else as_utf8(str(value)) for value in values], pyarrow.string())
    if wanted == pyarrow.float64():
        values = [None if value is None else float(value) for value in values]
    return pyarrow.array(values, wanted)


READERS = {".csv": _read_csv, ".tsv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
