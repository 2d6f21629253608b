"""Read one column of Arrow files: IPC streams, as `datasets` writes them, and IPC files (Feather version 2).

A folder by `datasets`' save_to_disk names its files in state.json; one of several splits names them in
dataset_dict.json. Nothing of `datasets` itself is needed.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.tables import columns
from scalelab.errors import BadInput
from scalelab.untrusted.documents import read_document
from scalelab.untrusted.files import open_file
from scalelab.untrusted.paths import path_below

ARROW_ENDINGS = (".arrow", ".feather", ".ipc")
FILE_MAGIC = b"ARROW1\x00\x00"


def split_arrow(path: str, unit_bytes: int, reading: Reading) -> Iterator[tuple[Piece, int]]:
    """Split into runs of record batches of about `unit_bytes`, with their sizes."""
    first = number = size = 0
    with _opened(path) as (schema, batches):
        columns.check_columns(schema, path, reading)
        for number, batch in enumerate(batches, 1):
            size += batch.get_total_buffer_size()  # nbytes would follow offsets that nobody has checked
            if size >= unit_bytes:
                yield Piece("arrow", path, first, number), size
                first, size = number, 0
    if number > first:
        yield Piece("arrow", path, first, number), size


def arrow_documents(piece: Piece, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """Yield the documents of column `reading.key`; null and invalid UTF-8 are bad."""
    row = 0
    with _opened(piece.path) as (_, batches):
        for number, batch in enumerate(batches):
            if number >= piece.stop:
                return
            if number >= piece.start:
                yield from columns.batch_documents(batch, piece.path, row, reading)
            row += batch.num_rows


def arrow_schema(path: str) -> Any:
    """The columns of a file. Raises BadInput if it is not Arrow's."""
    with _opened(path) as (schema, _):
        return schema


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema of a file and its record batches, mapped into memory: one that is passed over is not read."""
    import pyarrow as pa

    try:
        with open_file(path, follow=True) as file:
            is_file = file.read(len(FILE_MAGIC)) == FILE_MAGIC
        with pa.memory_map(path) as content:
            reader = pa.ipc.open_file(content) if is_file else pa.ipc.open_stream(content)
            columns.field_names(reader.schema)  # a name that is not UTF-8 is told here
            yield reader.schema, (map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"{path} is not a whole Arrow file: {reason}") from error


def saved_files(folder: pathlib.Path) -> list[pathlib.Path] | None:
    """The files of a folder by `datasets`' save_to_disk, in its order; None: it is not one.

    BadInput for a folder of several splits, which names them, and for files out of the folder.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = _read(folder / "dataset_dict.json", "splits")
        if len(splits) != 1:
            one = next((name for name in splits if name == "train"), (splits or ["train"])[0])
            known = ", ".join(map(str, splits))
            raise BadInput(f"--source={folder} holds the splits {known}; name one: --source={folder / str(one)}")
        return saved_files(path_below(folder, str(splits[0])))
    if not (folder / "state.json").is_file() or not (folder / "dataset_info.json").is_file():
        return None
    files = _read(folder / "state.json", "_data_files")
    names = [each.get("filename") if isinstance(each, dict) else None for each in files]
    return [path_below(folder, str(name)) for name in names]


def _read(path: pathlib.Path, key: str) -> list[Any]:
    try:
        content = read_document(path, follow=True)
        value = content[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not as `datasets` writes it: {error!r}") from error
    if not isinstance(value, list):
        raise BadInput(f"{path} is not as `datasets` writes it: {key} is {type(value).__name__}")
    return value
