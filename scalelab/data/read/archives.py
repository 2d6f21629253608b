"""Members of tar (also .gz, .zst, .xz, .bz2) and zip files, read in the archive's order and never unpacked to disk.

A member's kind follows from its name, as for files: JSON lines, CSV, else text. An archive with a name or link out of
its folder is refused.
"""

import functools
import itertools
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from scalelab.data.read import delimited, foreign, text
from scalelab.data.read.files import (
    MAX_DOCUMENT_BYTES,
    PACKED_ENDINGS,
    PACKED_TARS,
    READ_CHUNK_BYTES,
    ChunkStream,
    check_times,
    inner_name,
    read_chunks,
)
from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.tables import webdataset
from scalelab.errors import BadInput

# Refused inside an archive.
NON_TEXT_ENDINGS = (".parquet", ".bin", ".idx", ".npy", ".arrow", ".tar", ".zip", *PACKED_TARS, *PACKED_ENDINGS)
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
MOST_DEFLATE_TIMES = 1032  # a match of 258 bytes takes at least 2 bits (RFC 1951)


def split_tar(path: str, unit_bytes: int, reading: Reading) -> Iterator[tuple[Piece, int]]:
    """One piece: a tar can't be entered in the middle. Its kind is "samples" for a tar of WebDataset."""
    endings = webdataset.find_endings(name for name, _ in _tar_members(path))
    if endings:
        webdataset.check_key(path, endings, reading)
    yield Piece("samples" if endings else "tar", path), os.path.getsize(path)


def tar_samples(piece: Piece, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """Yield the documents of the samples in a tar of WebDataset."""
    members = (
        (name, functools.partial(_whole_member, content, piece.path)) for name, content in _tar_members(piece.path)
    )
    yield from webdataset.sample_documents(members, piece.path, reading)


def _whole_member(content: Any, where: str) -> bytes:
    whole: bytes = content.read(MAX_DOCUMENT_BYTES + 1)
    if len(whole) > MAX_DOCUMENT_BYTES:
        raise BadInput(f"{where}: a member longer than {MAX_DOCUMENT_BYTES} bytes is not a document")
    return whole


def split_zip(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Split a zip into runs of members of about `unit_bytes`, by their number in the archive's directory."""
    with _open_zip(path) as archive:
        members = archive.infolist()
    first, size = 0, 0
    for i, member in enumerate(members):
        size += member.file_size
        if size >= unit_bytes or i == len(members) - 1:
            yield Piece("zip", path, first, i + 1), size
            first, size = i + 1, 0


def tar_documents(piece: Piece, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """Yield the documents of every regular file in a tar."""
    for name, content in _tar_members(piece.path):
        yield from _member(content, f"{piece.path}:{name}", reading)


def _tar_members(path: str) -> Iterator[tuple[str, Any]]:
    """The name and the open content of every regular file in a tar, to be read before the next one is asked for."""
    source: Any = ChunkStream(read_chunks(path))
    try:
        archive: Any = tarfile.open(fileobj=source, mode="r|", tarinfo=_Header)  # noqa: SIM115 - so does its source
        while member := archive.next():
            archive.members = []  # tarfile would keep all members in memory
            _check(path, member.name, member.offset)
            if member.issym() or member.islnk():
                base = posixpath.dirname(member.name) if member.issym() else ""
                _check(path, posixpath.join(base, member.linkname), member.offset)
            if member.isreg():
                yield member.name, archive.extractfile(member)
        while rest := archive.fileobj.read(READ_CHUNK_BYTES):
            if rest.strip(b"\0"):
                raise tarfile.ReadError(f"its end mark at byte {archive.offset} is followed by more than zeros")
    except tarfile.TarError as error:
        raise BadInput(
            f"{path} is not a whole tar file: {error} (at byte {source.at} of its unpacked content)"
        ) from error


class _Header(tarfile.TarInfo):
    """A member's header that raises if damaged; tarfile's own header would pass for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse the header in one block of 512 bytes. ReadError: damaged, or of a negative size."""
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not buf.strip(b"\0"):
                raise  # the end mark
            raise tarfile.ReadError(f"{error} where a member or the end mark should be") from error
        if header.size < 0:
            raise tarfile.ReadError(f"a member of {header.size} bytes")
        return header


def zip_documents(piece: Piece, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """Yield the documents of members `piece.start` to `piece.stop` of a zip."""
    with _open_zip(piece.path) as archive:
        for member in archive.infolist()[piece.start : piece.stop]:
            _check(piece.path, member.filename, member.header_offset)
            if member.is_dir() or _is_link(piece.path, member, archive):
                continue
            where = f"{piece.path}:{member.filename}"
            try:
                with archive.open(member) as content:
                    yield from _member(content, where, reading)
                    if content.tell() != member.file_size:
                        raise zipfile.BadZipFile(f"{member.file_size} bytes are declared, {content.tell()} are there")
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
                raise BadInput(f"{where} (at byte {member.header_offset}) is damaged: {error}") from error


def _is_link(path: str, member: zipfile.ZipInfo, archive: zipfile.ZipFile) -> bool:
    """Whether a member is a symbolic link of Unix's zip, whose content is its target. BadInput: it leads out."""
    if not stat.S_ISLNK(member.external_attr >> 16):
        return False
    with archive.open(member) as content:
        target = content.read(READ_CHUNK_BYTES).decode(errors="replace")
    _check(path, posixpath.join(posixpath.dirname(member.filename), target), member.header_offset)
    return True


def _open_zip(path: str) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise BadInput(f"{path} is not a whole zip file: {error}") from error
    check_times(path, sum(map(_unpacked_bytes, archive.infolist())), os.path.getsize(path))
    return archive


def _unpacked_bytes(member: zipfile.ZipInfo) -> int:
    """The most bytes that a member unpacks to: the declared size, or less if its packing can't yield so much."""
    if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return min(member.file_size, MOST_DEFLATE_TIMES * member.compress_size)
    return member.file_size


def _check(path: str, name: str, offset: int) -> None:
    """Raise BadInput for a name out of the folder: absolute, with a drive, or with more `..` than folders."""
    plain = posixpath.normpath(name.replace("\\", "/"))
    if plain.startswith(("/", "../")) or plain == ".." or plain[1:2] == ":":
        raise BadInput(
            f"{path}: the member at byte {offset} is named {name!r}, which leads out of the archive's folder"
        )


def _member(content: Any, where: str, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """The documents of a member by its name's ending; a text has no fields, so filters refuse it."""
    if where.endswith(NON_TEXT_ENDINGS):
        raise BadInput(f"{where}: such a member can't be read inside an archive; unpack it first")
    foreign.check_not_foreign(where)
    pieces = iter(lambda: content.read(READ_CHUNK_BYTES), b"")
    if delimited.is_delimited(where):
        return delimited.csv_cells(pieces, where, reading)
    if where.endswith(JSON_ENDINGS):
        return text.json_line_texts(pieces, where, reading)
    reading.check_no_fields(where)
    first = next(pieces, b"")
    foreign.check_not_foreign(where, first[: foreign.HEAD_BYTES])
    return text.text_stream_documents(itertools.chain([first], pieces), where, reading)


def is_tar(path: str) -> bool:
    """Whether this is the name of a tar file, packed or not."""
    return inner_name(path).endswith(".tar") or path.endswith(PACKED_TARS)
