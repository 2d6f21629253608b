"""Megatron-LM's pairs: NAME.idx holds the places of documents in NAME.bin (megatron/core/datasets/indexed_dataset.py).

9 bytes MMIDIDX and two zeros, uint64 version 1, uint8 type, uint64 sequences S, uint64 D
int32[S] lengths in tokens, int64[S] places in bytes, int64[D] first sequence of each document, with S as the last
"""

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.tokenfiles import split_at_separator
from scalelab.data.tokenizers.tokenizer import check_ids
from scalelab.errors import BadInput
from scalelab.untrusted.files import open_file

INDEX_MAGIC = b"MMIDIDX\x00\x00"
INDEX_HEADER = struct.Struct("<9sQBQQ")
ENTRIES_PER_CHECK = 2**20
ID_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class MegatronIndex(NamedTuple):
    """An opened .idx: type of ids, lengths [S] and places [S] of sequences, first sequence of each document [D]."""

    dtype: str
    lengths: np.ndarray
    places: np.ndarray
    first: np.ndarray


def split_megatron(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Split into runs of documents of about `unit_bytes`, with their sizes. `path` is the .bin."""
    index = open_megatron_index(path)
    _check(path, index)
    width = np.dtype(index.dtype).itemsize
    n_documents, n_bytes = len(index.first) - 1, int(index.lengths.sum(dtype=np.int64)) * width
    step = max(1, n_documents * unit_bytes // max(n_bytes, 1))
    for start in range(0, n_documents, step):
        stop = min(start + step, n_documents)
        yield Piece("megatron", path, start, stop), n_bytes * (stop - start) // n_documents


def index_path(path: str) -> str:
    """Name of the index that belongs to a .bin."""
    return path.removesuffix(".bin") + ".idx"


def open_megatron_index(path: str) -> MegatronIndex:
    """Map the index beside a .bin into memory. Raises BadInput if its header contradicts its size."""
    name = index_path(path)
    size = os.path.getsize(name)
    with open_file(name, follow=True) as file:
        head = file.read(INDEX_HEADER.size)
    if head[:9] != INDEX_MAGIC or len(head) < INDEX_HEADER.size:
        raise BadInput(f"{name} is not a Megatron index: it begins with {head[:9]!r}, not {INDEX_MAGIC!r}")
    _, version, code, n_sequences, n_first = INDEX_HEADER.unpack(head)
    if version != 1 or code not in ID_TYPES:
        known = ", ".join(map(str, ID_TYPES))
        raise BadInput(
            f"{name}: version {version} at byte 9, type {code} at byte 17; this reads version 1, types {known}"
        )
    wanted = INDEX_HEADER.size + 12 * n_sequences + 8 * n_first
    if wanted != size:
        raise BadInput(
            f"{name}: the header declares {n_sequences} sequences at byte 18 and {n_first} document bounds at byte 26, "
            f"{wanted} bytes in all; the file has {size}"
        )
    if not n_sequences or not n_first:
        raise BadInput(f"{name} declares no documents")
    start = INDEX_HEADER.size
    lengths = np.memmap(name, "<i4", "r", start, (n_sequences,))
    places = np.memmap(name, "<i8", "r", start + 4 * n_sequences, (n_sequences,))
    first = np.memmap(name, "<i8", "r", start + 12 * n_sequences, (n_first,))
    return MegatronIndex(ID_TYPES[code], lengths, places, first)


def _check(path: str, index: MegatronIndex) -> None:
    """Raise BadInput if the index points outside of its tokens; checks one block at a time."""
    width, size, name = np.dtype(index.dtype).itemsize, os.path.getsize(path), index_path(path)
    end = 0
    for start in range(0, len(index.lengths), ENTRIES_PER_CHECK):
        block = slice(start, start + ENTRIES_PER_CHECK)
        lengths, places = index.lengths[block], index.places[block]
        room = size - lengths * np.int64(width)  # largest valid place; places may be near 2^63
        wrong = np.flatnonzero((lengths < 0) | (places < 0) | (places > room) | (places % width > 0))
        if len(wrong):
            i = int(wrong[0])
            raise BadInput(
                f"{name}: sequence {start + i} is said to be {lengths[i]} tokens of {width} bytes at byte {places[i]} "
                f"of {path}, which has {size} bytes"
            )
        end = max(end, int((places + size - room).max()))
    if end != size:
        raise BadInput(f"{name}: its sequences end at byte {end} of {path}, which has {size} bytes: are they a pair?")
    falls = any(
        (np.diff(index.first[i : i + ENTRIES_PER_CHECK + 1]) < 0).any()
        for i in range(0, len(index.first), ENTRIES_PER_CHECK)
    )
    if index.first[0] != 0 or index.first[-1] != len(index.lengths) or falls:
        raise BadInput(
            f"{name}: the document bounds run from {index.first[0]} to {index.first[-1]}, not upwards from 0 to "
            f"{len(index.lengths)} sequences"
        )


def megatron_documents(piece: Piece, reading: Reading) -> Iterator[np.ndarray]:
    """Documents `piece.start` to `piece.stop`, without separators; one inside a document ends it there."""
    index = open_megatron_index(piece.path)
    width = np.dtype(index.dtype).itemsize
    with open_file(piece.path, follow=True) as file:
        for document in range(piece.start, piece.stop):
            sequences = [np.empty(0, index.dtype)]
            for sequence in range(int(index.first[document]), int(index.first[document + 1])):
                place, length = int(index.places[sequence]), int(index.lengths[sequence])
                file.seek(place)
                ids = np.frombuffer(file.read(length * width), index.dtype)
                check_ids(ids, reading.vocab_size, _where(piece.path, document, place, width))
                sequences.append(ids)
            yield from split_at_separator(np.concatenate(sequences), reading.separator)


def _where(path: str, document: int, place: int, width: int):
    return lambda i: f"{path}, document {document} (byte {place + i * width}): "
