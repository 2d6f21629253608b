"""The two layers of a `.wandb` file, without the wandb package: records of a LevelDB log, and protobuf's wire format.

LevelDB's log (google/leveldb, its page on the log format): blocks of 32 KiB; a record's piece has a checksum (4 bytes),
its length (2) and its kind (whole, first, middle, last). W&B writes 7 bytes of its own before the first. A protobuf
message is a list of (field number, value): protobuf.dev/programming-guides/encoding.
"""

import pathlib
import struct
from collections.abc import Iterator

from scalelab.errors import BadInput
from scalelab.untrusted.files import open_file

HEADER = b":W&B"
HEADER_BYTES, BLOCK_BYTES, PIECE_BYTES = 7, 2**15, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MOST_FILE_BYTES, MOST_RECORD_BYTES = 2**31, 2**26
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Field = tuple[int, int | bytes]


def read_records(path: pathlib.Path) -> Iterator[bytes]:
    """Yield the records of a .wandb file in order, up to its end or a torn record. BadInput for another file."""
    with open_file(path, MOST_FILE_BYTES, follow=True) as file:
        block = file.read(BLOCK_BYTES)
        if not block.startswith(HEADER):
            raise BadInput(f"{str(path)!r} is not a run file of W&B: it doesn't begin with {HEADER.decode()}")
        at, parts = HEADER_BYTES, bytearray()
        while block:
            while at + PIECE_BYTES <= len(block):
                _, size, kind = struct.unpack_from("<IHB", block, at)
                piece = block[at + PIECE_BYTES : at + PIECE_BYTES + size]
                if len(piece) < size or (kind == 0 and size == 0):  # torn, or the padding of a block
                    break
                at += PIECE_BYTES + size
                parts = bytearray(piece) if kind in (WHOLE, FIRST) else parts + piece
                if len(parts) > MOST_RECORD_BYTES:
                    raise BadInput(f"{str(path)!r} holds a record of more than {MOST_RECORD_BYTES:,} bytes")
                if kind in (WHOLE, LAST):
                    yield bytes(parts)
                    parts = bytearray()
            block, at = file.read(BLOCK_BYTES), 0


def read_fields(data: bytes) -> list[Field]:
    """Parse a message into (field number, whole number or bytes). ValueError for what is not a message."""
    fields, at = list[Field](), 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, number = key & 7, key >> 3
        value: int | bytes
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind == BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("a field that is longer than its message")
            value, at = data[at : at + size], at + size
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"a field of kind {kind}")
        fields.append((number, value))
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(a whole number of 7 bits a byte, the place after it). ValueError if it doesn't end."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number without an end")


def messages(fields: list[Field], number: int) -> Iterator[bytes]:
    """The values of a repeated field of messages or texts."""
    return (value for field, value in fields if field == number and isinstance(value, bytes))
