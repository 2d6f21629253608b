"""Read one column of parquet files, in row groups."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.tables import columns
from scalelab.errors import BadInput


def split_parquet(path: str, unit_bytes: int, reading: Reading) -> Iterator[tuple[Piece, int]]:
    """Split into runs of row groups of about `unit_bytes` (unpacked), with their sizes."""
    file = _open(path)
    columns.check_columns(file.schema_arrow, path, reading)
    facts = file.metadata
    first, size = 0, 0
    for group in range(facts.num_row_groups):
        size += facts.row_group(group).total_byte_size
        if size >= unit_bytes or group == facts.num_row_groups - 1:
            yield Piece("parquet", path, first, group + 1), size
            first, size = group + 1, 0


def parquet_documents(piece: Piece, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """Yield the documents of column `reading.key`; null and invalid UTF-8 are bad."""
    import pyarrow as pa

    file = _open(piece.path)
    row = sum(file.metadata.row_group(group).num_rows for group in range(piece.start))
    keys = [reading.key, *(one.key for one in reading.selection.filters)]
    groups = list(range(piece.start, piece.stop))
    try:
        for batch in file.iter_batches(columns.ROWS_PER_READ, groups, list(dict.fromkeys(keys))):
            yield from columns.batch_documents(batch, piece.path, row, reading)
            row += len(batch)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0]
        raise BadInput(f"{piece.path}: damaged parquet after row {row}: {reason}") from error


def parquet_schema(path: str) -> Any:
    """The columns of a file. Raises BadInput if it is not whole."""
    return _open(path).schema_arrow


def _open(path: str) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
        columns.field_names(file.schema_arrow)  # a name that is not UTF-8 is told here
        return file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a whole parquet file: {str(error).split(chr(10))[0]}") from error
