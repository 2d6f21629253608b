"""Logs of one row a step: JSON lines of any names, CSV, TSV and parquet; flat or nested.

Trackers that write events (`{"event": "log", "step": …, "metrics": {…}}`, as Levanter's JSON logger) are read as rows,
and what an event says once (hparams, config, summary) as config.
"""

import gzip
import io
import math
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.foreign.names import LOG_NAMES
from scalelab.foreign.readers.series import spread_long
from scalelab.foreign.run import (
    Column,
    ForeignRun,
    columns_of_cells,
    columns_of_rows,
    config_values,
    flatten_values,
)
from scalelab.laws.read.columns import plain_name
from scalelab.laws.read.readers import parse_row, read_raw_rows
from scalelab.untrusted.files import read_bytes

MOST_LOG_BYTES = 2**30
MOST_COLUMNS = 2000
SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
PACKED = ".gz"
STEPS = [*map(plain_name, LOG_NAMES["step"].split()), "epoch"]
ONCE = ("config", "hparams", "hyperparameters", "args", "summary")  # keys of objects that a log holds once


def kind_of(path: pathlib.Path) -> str:
    """The suffix that tells the format: `.jsonl` of log.jsonl and of log.jsonl.gz; "" if no log has it."""
    kind = pathlib.Path(path.stem).suffix if path.suffix == PACKED else path.suffix
    return kind if kind in SUFFIXES and (kind, path.suffix) != (".parquet", PACKED) else ""


def name_of(path: pathlib.Path) -> str:
    """The name of a run after its log's file: `a` of a.jsonl and of a.jsonl.gz."""
    return pathlib.Path(path.stem).stem if path.suffix == PACKED else path.stem


def read_lines(path: pathlib.Path) -> ForeignRun:
    """Read a log of rows. BadInput for a file without a column of numbers."""
    if kind_of(path) in (".jsonl", ".ndjson"):
        columns, texts, config, notes = _read_json_lines(path)
        form = "JSON lines"
    else:
        (columns, texts), config, notes = columns_of_rows(read_raw_rows(path)), dict[str, Any](), tuple[str, ...]()
        form = kind_of(path)[1:].upper() if path.suffix != ".parquet" else "parquet"
    if (wide := spread_long(columns, texts, STEPS)) is not None:
        columns, texts, note = wide
        notes = (*notes, note)
    if not columns:
        raise BadInput(f"{str(path)!r} has no column of numbers")
    return ForeignRun(name_of(path), form, [path], columns, config, texts, notes=notes)


def _read_json_lines(
    path: pathlib.Path,
) -> tuple[dict[str, Column], dict[str, list[Any]], dict[str, Any], tuple[str, ...]]:
    """(columns, texts, config, notes) of a file of objects: by pyarrow, or line by line where it is not strict JSON."""
    data = _read_log(path)
    if not data or data.isspace():
        raise BadInput(f"{str(path)!r} is empty")
    fast = _read_by_arrow(data)
    if fast is not None:
        return *fast, {}, ()
    rows, config, notes = list[dict[str, Any]](), dict[str, Any](), tuple[str, ...]()
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_row(line, f"{path}, line {number}")
        except BadInput:
            if number < len(lines):
                raise
            notes = (f"{path.name} ends within line {number}: what is whole was read",)  # torn by a crash
            continue
        for key in [key for key in row if key in ONCE and isinstance(row[key], Mapping)]:
            content = row.pop(key)
            config |= config_values(content)
            if key == "summary":  # last values; a file of a summary alone has no other line
                row.update(dict(flatten_values(content)))
        if isinstance(row.get("metrics"), Mapping):  # of an event: metrics stand under their own names
            row |= row.pop("metrics")
        flat = dict(flatten_values(row))
        if len(flat) > MOST_COLUMNS:
            raise BadInput(f"{str(path)!r}, line {number} has {len(flat):,} values; at most {MOST_COLUMNS:,} are read")
        rows.append(flat)
    return *columns_of_rows(rows), config, notes


def _read_log(path: pathlib.Path) -> bytes:
    """The bytes of a log, unpacked if it is .gz. BadInput for damage, and for more than are read."""
    data = read_bytes(path, MOST_LOG_BYTES, follow=True)
    if path.suffix != PACKED:
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            data = packed.read(MOST_LOG_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{str(path)!r} can't be unpacked: {error}") from None
    if len(data) > MOST_LOG_BYTES:
        raise BadInput(f"{str(path)!r} unpacks to more than the {MOST_LOG_BYTES:,} bytes that are read")
    return data


def _read_by_arrow(data: bytes) -> tuple[dict[str, Column], dict[str, list[Any]]] | None:
    """Read plain JSON lines of numbers and texts; None for what needs a look at each line."""
    from pyarrow import ArrowInvalid, compute, json, types  # imported for logs of this kind only

    try:
        table = json.read_json(io.BytesIO(data), json.ReadOptions(use_threads=False, block_size=2**24))
    except (ArrowInvalid, UnicodeDecodeError):  # nan and inf are not JSON, kinds of one column may differ
        return None
    if table.num_columns > MOST_COLUMNS or any(name in ONCE for name in table.column_names):
        return None
    columns, texts = dict[str, Column](), dict[str, list[Any]]()
    for name, chunks in zip(table.column_names, table.columns, strict=True):
        kind = chunks.type
        if types.is_integer(kind) or types.is_floating(kind):
            present = np.asarray(compute.is_valid(chunks))
            values = np.array(compute.cast(chunks, "float64", safe=False).to_numpy(zero_copy_only=False), float)
            columns[name] = Column(values, present)
        elif types.is_struct(kind) or types.is_list(kind):
            return None
        elif not types.is_null(kind):
            cells = [each if each is None or isinstance(each, bool | str) else str(each) for each in chunks.to_pylist()]
            numbers, others = columns_of_cells({name: cells})
            columns, texts = columns | numbers, texts | others
    return columns, texts


def join_columns(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Put the rows of several logs one after the other, as of a run that was started again."""
    names = dict.fromkeys(name for part in parts for name in part)
    lengths = [len(next(iter(part.values())).values) if part else 0 for part in parts]
    joined = {}
    for name in names:
        gaps = [Column(np.full(n, math.nan), np.zeros(n, bool)) for n in lengths]
        each = [part.get(name, gap) for part, gap in zip(parts, gaps, strict=True)]
        joined[name] = Column(np.concatenate([c.values for c in each]), np.concatenate([c.present for c in each]))
    return joined
