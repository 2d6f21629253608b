"""Read the unpacked bytes of a file in chunks of bounded size. Errors name the damaged byte."""

import bz2
import functools
import lzma
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from scalelab.errors import BadInput, needs_package
from scalelab.untrusted.files import open_file

READ_CHUNK_BYTES = 2**20  # unpacked bytes yielded at once, at most
READ_BYTES = 2**16  # packed bytes read at once: error lines name a byte to within this
ZSTD_READ_BYTES = 2**12
XZ_MEMORY_BYTES = 2**28  # of unpacking; xz -9 asks for 65 MiB
MAX_DOCUMENT_BYTES = 2**28  # most bytes of a line, member or record: a longer one would not fit in memory twice
MOST_TIMES, LEAST_BYTES = 200, 2**28  # a file that unpacks to more than both (MOST_TIMES its size) is not text
SUSPECT_BYTES = 2**24  # above it, and MOST_TIMES what was read so far, a file is checked to its end before it is used
PACKED_ENDINGS = (".gz", ".zst", ".xz", ".bz2")
PACKED_TARS = (".tgz", ".txz", ".tbz2")


def inner_name(path: str) -> str:
    """Remove the packing from a name: a.jsonl.gz -> a.jsonl."""
    return path.removesuffix(pathlib.PurePath(path).suffix) if path.endswith(PACKED_ENDINGS) else path


def read_chunks(path: str, start: int = 0) -> Iterator[bytes]:
    """Yield all bytes from `start` on (packed files: from 0, unpacked). Raises BadInput for a file that is damaged,
    missing, or unpacks to far more than its size.
    """
    unpacked, checked = 0, not path.endswith((*PACKED_ENDINGS, *PACKED_TARS))
    try:
        with open_file(path, follow=True) as file:
            file.seek(start)
            for chunk in _unpack(file, path):
                unpacked += len(chunk)
                if not checked and unpacked > max(SUSPECT_BYTES, MOST_TIMES * file.tell()):
                    _check_unpacked_size(path)
                    checked = True
                yield chunk
    except OSError as error:
        raise BadInput(f"can't read {path}: {error.strerror or error}") from error


def _check_unpacked_size(path: str) -> None:
    """Raise BadInput for a bomb before any of it is tokenized. Unpacking takes a second per GB, tokenizing minutes."""
    unpacked = 0
    with open_file(path, follow=True) as file:
        for chunk in _unpack(file, path):
            unpacked += len(chunk)
            check_times(path, unpacked, file.tell())


def check_times(path: str, unpacked: int, packed: int) -> None:
    """Raise BadInput for a bomb: a file made to fill disks, or time, by many bytes from few."""
    if unpacked > max(LEAST_BYTES, MOST_TIMES * packed):
        raise BadInput(f"{path} unpacks to more than {MOST_TIMES} times its size, which no text does")


def _unpack(file: Any, path: str) -> Iterator[bytes]:
    readers = {(".gz", ".tgz"): _gzip, (".zst",): _zstd, (".xz", ".txz"): _xz, (".bz2", ".tbz2"): _bzip2}
    read = next((read for endings, read in readers.items() if path.endswith(endings)), _plain)
    return read(file, path)


def _plain(file: Any, path: str) -> Iterator[bytes]:
    while chunk := file.read(READ_CHUNK_BYTES):
        yield chunk


def _gzip(file: Any, path: str) -> Iterator[bytes]:
    """Unpack gzip (RFC 1952): members one after the other, each with a checksum that zlib compares."""
    member = None
    while packed := file.read(READ_BYTES):
        while packed:
            member = member or zlib.decompressobj(wbits=31)
            try:
                yield from _inflate(member, packed)
            except zlib.error as error:
                raise _damaged(path, "gzip", file.tell() - len(packed), error) from error
            packed = b""
            if member.eof:
                packed, member = member.unused_data.lstrip(b"\0"), None  # zeros between members (tapes) are legal
    if member:
        raise BadInput(f"{path} is cut off: its gzip data end at byte {file.tell()} without their checksum")


def _inflate(member: Any, packed: bytes) -> Iterator[bytes]:
    more = True
    while more:
        chunk = member.decompress(packed, READ_CHUNK_BYTES)
        if chunk:
            yield chunk
        packed = member.unconsumed_tail
        more = not member.eof and bool(packed or len(chunk) == READ_CHUNK_BYTES)


def _xz(file: Any, path: str) -> Iterator[bytes]:
    """Unpack xz: streams one after the other, with zeros between them, in multiples of 4, allowed by the format."""
    make = functools.partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
    return _streams(file, path, "xz", make, lzma.LZMAError)


def _bzip2(file: Any, path: str) -> Iterator[bytes]:
    """Unpack bzip2: streams one after the other, as parallel packers write them."""
    return _streams(file, path, "bzip2", bz2.BZ2Decompressor, OSError)


def _streams(file: Any, path: str, kind: str, make: Callable[[], Any], fault: type[Exception]) -> Iterator[bytes]:
    """Unpack the streams of a file one after the other, READ_CHUNK_BYTES at most at once."""
    stream = None
    while packed := file.read(READ_BYTES):
        while packed:
            stream = stream or make()
            try:
                while True:
                    if chunk := stream.decompress(packed, READ_CHUNK_BYTES):
                        yield chunk
                    packed = b""
                    if stream.eof or stream.needs_input:
                        break
            except fault as error:
                raise _damaged(path, kind, max(0, file.tell() - READ_BYTES), error) from error
            if stream.eof:
                packed, stream = stream.unused_data.lstrip(b"\0"), None
    if stream:
        raise BadInput(f"{path} is cut off: its {kind} data end at byte {file.tell()} within a stream")


def _zstd(file: Any, path: str) -> Iterator[bytes]:
    """Unpack zstandard (RFC 8878), few packed bytes at once, since the output of one call is unbounded."""
    try:
        import zstandard
    except ImportError:
        raise needs_package(f"{path} is zstandard data and", "zstandard") from None
    frame = None
    while packed := file.read(ZSTD_READ_BYTES):
        while packed:
            frame = frame or zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()
            try:
                chunk = frame.decompress(packed)
            except zstandard.ZstdError as error:
                if "memory" in str(error):
                    raise BadInput(
                        f"{path} needs a window above 128 MiB to be unpacked: zstd -d --long=31 first"
                    ) from error
                raise _damaged(path, "zstandard", file.tell() - len(packed), error) from error
            yield from (chunk[i : i + READ_CHUNK_BYTES] for i in range(0, len(chunk), READ_CHUNK_BYTES))
            packed, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame:
        raise BadInput(f"{path} is cut off: its zstandard data end at byte {file.tell()} within a frame")


def _damaged(path: str, kind: str, offset: int, error: Exception) -> BadInput:
    return BadInput(f"{path}: damaged {kind} data at byte {offset} or up to {READ_BYTES} after it ({error})")


class ChunkStream:
    """A file-like view of chunks, for callers of read(n)."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.left, self.at = pieces, b"", 0

    def read(self, n: int) -> bytes:
        """At most n bytes; b"" at the end."""
        while not self.left:
            piece = next(self.pieces, None)
            if piece is None:
                return b""
            self.left = piece
        chunk, self.left = self.left[:n], self.left[n:]
        self.at += len(chunk)
        return chunk
