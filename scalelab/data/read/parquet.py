"""Read the strings of one column of parquet files, in row groups."""

import functools
from collections.abc import Iterator
from typing import Any

from scalelab.data.read.reading import Piece, Reading
from scalelab.errors import BadInput, nearest_hint

ROWS_PER_READ = 256


def split_parquet(path: str, unit_bytes: int, reading: Reading) -> Iterator[tuple[Piece, int]]:
    """Split into runs of row groups of about `unit_bytes` (packed), with their sizes."""
    file = _open(path)
    _check_column(file, path, reading.text_key)
    facts = file.metadata
    first, size = 0, 0
    for group in range(facts.num_row_groups):
        size += facts.row_group(group).total_byte_size
        if size >= unit_bytes or group == facts.num_row_groups - 1:
            yield Piece("parquet", path, first, group + 1), size
            first, size = group + 1, 0


def parquet_documents(piece: Piece, reading: Reading) -> Iterator[bytes]:
    """Yield the non-empty strings of column `reading.text_key`; null and invalid UTF-8 are bad."""
    import pyarrow as pa

    file = _open(piece.path)
    row = sum(file.metadata.row_group(group).num_rows for group in range(piece.start))
    try:
        for batch in file.iter_batches(ROWS_PER_READ, list(range(piece.start, piece.stop)), [reading.text_key]):
            for row, value in enumerate(_values(batch.column(reading.text_key)), row):  # noqa: B020 - it goes on from there
                if value is None:
                    reading.bad(_row(piece.path, row), f"column {reading.text_key!r} is null")
                elif value and reading.is_text(value, functools.partial(_row, piece.path, row)):
                    yield value
            row += 1 if len(batch) else 0
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0]
        raise BadInput(f"{piece.path}: damaged parquet after row {row}: {reason}") from error


def _values(column: Any) -> list[bytes | None]:
    """Read values as bytes: a string column may hold invalid UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary()).to_pylist()


def _row(path: str, row: int) -> str:
    return f"{path}, row {row}"


def _open(path: str) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path} is not a whole parquet file: {str(error).split(chr(10))[0]}") from error


def _check_column(file: Any, path: str, key: str) -> None:
    import pyarrow as pa

    schema = file.schema_arrow
    if key not in schema.names:
        raise BadInput(f"{path} has no column {key!r} (--text-key){nearest_hint(key, schema.names)}")
    if (n := schema.names.count(key)) > 1:
        raise BadInput(f"{path} has {n} columns {key!r} (--text-key): which one?")
    kind = schema.field(key).type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_string, is_large, is_view = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    if not any(is_kind(inner) for is_kind in (is_string, is_large, is_view, *is_bytes)):
        raise BadInput(f"{path}: column {key!r} holds {kind}, not text (--text-key)")
