"""Documents from the columns of Arrow record batches: texts, lists of token ids, or lists of messages."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from scalelab.data.read.reading import NO_TOOLS, TOOLS, Reading
from scalelab.data.read.tokenfiles import split_at_separator
from scalelab.data.tokenizers.tokenizer import check_ids
from scalelab.errors import BadInput, nearest_hint

ROWS_PER_READ = 256


def column_type(schema: Any, key: str) -> Any:
    """The type of a column, or of a field in columns of records (meta.text); None: there is no such field."""
    import pyarrow as pa

    if key in schema.names:
        return schema.field(schema.names.index(key)).type
    head, _, rest = key.partition(".")
    if not rest or head not in schema.names:
        return None
    kind = schema.field(head).type
    return column_type(pa.schema(list(kind)), rest) if pa.types.is_struct(kind) else None


def holds_ids(kind: Any) -> bool:
    """Whether a column's type is a list of whole numbers: a document of ready-made tokens in each row."""
    import pyarrow as pa

    return kind is not None and _is_list(kind) and pa.types.is_integer(kind.value_type)


def check_columns(schema: Any, path: str, reading: Reading) -> None:
    """Raise BadInput for an absent or doubled column of the key or of a filter, and for a key without text."""
    wanted = {one.key: f"of the filter {one}" for one in reading.selection.filters} | {reading.key: reading.key_origin}
    for key, origin in wanted.items():
        kind = column_type(schema, key)
        if kind is None:
            raise BadInput(f"{path} has no column {key!r} ({origin}){nearest_hint(key, field_names(schema))}")
        if (n := schema.names.count(key)) > 1:
            raise BadInput(f"{path} has {n} columns {key!r} ({origin}): which one?")
    kind = column_type(schema, reading.key)
    if not (_is_text(kind) or holds_ids(kind) or _is_chat(kind)):
        raise BadInput(f"{path}: column {reading.key!r} holds {kind}, not text ({reading.key_origin})")
    if _is_chat(kind) and not reading.is_chat:
        raise BadInput(
            f"{path}: column {reading.key!r} holds lists of messages, not text: --chat renders them by the tokenizer's "
            "template"
        )
    tools = [name for name in TOOLS if name in schema.names and str(column_type(schema, name)) != "null"]
    if _is_chat(kind) and tools:
        raise BadInput(f"{path}: column {tools[0]!r} stands beside the messages: {NO_TOOLS}")


def batch_documents(batch: Any, path: str, row: int, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """The documents of a record batch whose first row is the file's row `row`. ArrowException if it is damaged."""
    for start in range(0, batch.num_rows, ROWS_PER_READ):
        yield from _documents(batch.slice(start, ROWS_PER_READ), path, row + start, reading)


def _documents(batch: Any, path: str, row: int, reading: Reading) -> Iterator[bytes | np.ndarray]:
    column = _column(batch, reading.key)
    values = _id_lists(column) if holds_ids(column.type) else _values(column)
    fields = {one.key: _checked(_column(batch, one.key)).to_pylist() for one in reading.selection.filters}
    for i, value in enumerate(values):
        place = functools.partial(name_row, path, row + i)
        if fields and not reading.is_chosen({key: cells[i] for key, cells in fields.items()}, place):
            continue
        if value is None:
            reading.bad(place(), f"column {reading.key!r} is null, or holds a null")
        elif isinstance(value, np.ndarray):
            check_ids(value, reading.vocab_size, functools.partial("{}, row {}, token {}: ".format, path, row + i))
            yield from split_at_separator(value, reading.separator)
        elif isinstance(value, list):
            ids = reading.chat_or_fault(value)
            if isinstance(ids, str):
                reading.bad(place(), ids)
            else:
                yield ids
        elif value and reading.is_text(value, place):
            yield value


def name_row(path: str, row: int) -> str:
    """The place of a row, for error lines."""
    return f"{path}, row {row}"


def _column(batch: Any, key: str) -> Any:
    """The array of a column, or of a field in columns of records."""
    import pyarrow.compute as pc

    if key in batch.schema.names:
        return batch.column(key)
    head, *rest = key.split(".")
    records = batch.column(head)
    records.validate()  # its sizes; a text that is not UTF-8 is told by row
    return pc.struct_field(records, rest)


def _checked(column: Any) -> Any:
    """The column, whose offsets lie in the file: others would be read from elsewhere in memory. ArrowInvalid if not."""
    column.validate(full=True)
    return column


def _values(column: Any) -> list[Any]:
    """Texts as bytes, since a string column may hold invalid UTF-8, or lists of messages."""
    import pyarrow as pa

    column.validate()
    if pa.types.is_dictionary(column.type):
        column = _checked(column).dictionary_decode()
    if not _is_list(column.type):
        column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    return _checked(column).to_pylist()


def _id_lists(column: Any) -> Iterator[np.ndarray | None]:
    """The ids of each row; None for a null, or a list with a null."""
    import pyarrow as pa

    column = _checked(_checked(column).cast(pa.large_list(column.type.value_type)))
    offsets, values = column.offsets.to_numpy(), column.values
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    for i in range(len(column)):
        ids = values.slice(offsets[i], offsets[i + 1] - offsets[i])
        yield None if is_null[i] or ids.null_count else ids.to_numpy(zero_copy_only=False)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return any(is_kind(kind) for is_kind in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _is_chat(kind: Any) -> bool:
    import pyarrow as pa

    return (
        _is_list(kind) and pa.types.is_struct(kind.value_type) and "role" in [field.name for field in kind.value_type]
    )


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return any(
        is_kind(inner) for is_kind in (*texts, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    )


def field_names(schema: Any) -> list[str]:
    """The names of all columns, and of the fields in columns of records."""
    import pyarrow as pa

    inside = [
        f"{field.name}.{name}"
        for field in schema
        if pa.types.is_struct(field.type)
        for name in field_names(pa.schema(list(field.type)))
    ]
    return [*schema.names, *inside]
