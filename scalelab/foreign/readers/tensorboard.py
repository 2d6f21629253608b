"""TensorBoard's event files: TFRecords of `Event` messages, read by tensorboardX's message classes.

A record: its length (8 bytes), a checksum of these (4), the message, a checksum of it (4); little-endian. A file that
ends within a record is of a run that is writing, or was killed: what is whole counts.
"""

import pathlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.foreign.run import ForeignRun, merge_lines
from scalelab.untrusted.files import open_file

MARK = "tfevents"
MOST_RECORD_BYTES = 2**26
MOST_FILE_BYTES = 2**32
MOST_TAGS = 2000
LONGEST_TAG = 300


def is_event_file(path: pathlib.Path) -> bool:
    """Whether a file's name is one of TensorBoard's."""
    return MARK in path.name


def read_events(folder: pathlib.Path, files: Sequence[pathlib.Path]) -> ForeignRun:
    """Read the scalars of all event files of one run. BadInput if there is none."""
    series: dict[str, dict[int, float]] = {}
    times: dict[int, float] = {}
    torn = []
    for path in sorted(files):
        prefix = "" if path.parent == folder else f"{path.parent.name}/"  # the parts of a run of Keras share tags
        torn += [path.name] if _read_file(path, prefix, series, times) else []
    if not series:
        raise BadInput(f"{str(folder)!r}: its TensorBoard files hold no scalar")
    parts = [(tag, list(points), list(points.values())) for tag, points in series.items()]
    parts.append(("wall_time", list(times), list(times.values())))
    notes = tuple(f"{name} ends within a record: what is whole was read" for name in torn)
    return ForeignRun(folder.name, "TensorBoard event files", list(files), merge_lines(parts), notes=notes)


def _read_file(path: pathlib.Path, prefix: str, series: dict[str, dict[int, float]], times: dict[int, float]) -> bool:
    """Add a file's scalars to `series`; returns whether the file ends within a record."""
    from google.protobuf.message import DecodeError  # imported with the messages, for these files only
    from tensorboardX.proto.event_pb2 import Event

    for data in _records(path):
        if data is None:
            return True
        try:
            event = Event.FromString(data)
        except DecodeError:
            raise BadInput(f"{str(path)!r} holds a record that is not TensorBoard's") from None
        for value in event.summary.value:
            number = _scalar(value)
            if number is not None and 0 <= event.step < 2**53:
                tag = prefix + value.tag[:LONGEST_TAG]
                if tag not in series and len(series) >= MOST_TAGS:
                    raise BadInput(f"{str(path)!r} holds more than {MOST_TAGS:,} series")
                series.setdefault(tag, {})[event.step] = number
                times[event.step] = event.wall_time
    return False


def _records(path: pathlib.Path) -> Iterator[bytes | None]:
    """Yield the records of a file; None at the end where one is not whole."""
    with open_file(path, MOST_FILE_BYTES, follow=True) as file:
        while head := file.read(12):
            if len(head) < 12:
                yield None
                return
            (size,) = struct.unpack("<Q", head[:8])
            if size > MOST_RECORD_BYTES:
                raise BadInput(f"{str(path)!r} is not an event file of TensorBoard: a record of {size:,} bytes")
            data, end = file.read(size), file.read(4)
            if len(data) < size or len(end) < 4:
                yield None
                return
            yield data


def _scalar(value: Any) -> float | None:
    """The number of a summary's value: a plain one, or a tensor of one element; None for anything else."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor"):
        return None
    tensor = value.tensor
    if any(side.size not in (0, 1) for side in tensor.tensor_shape.dim):
        return None
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if len(numbers) == 1:
            return float(numbers[0])
    kinds = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64
    kind = np.dtype(kinds.get(tensor.dtype, "V1"))
    content = bytes(tensor.tensor_content)
    return float(np.frombuffer(content, kind)[0]) if tensor.dtype in kinds and len(content) == kind.itemsize else None
