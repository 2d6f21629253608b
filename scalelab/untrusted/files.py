"""Open files that others may have written: regular files, no links, of bounded size."""

import contextlib
import errno
import io
import os
import pathlib
import stat

from scalelab.errors import BadInput
from scalelab.untrusted.text import printable

KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip
MOST_LOG_BYTES = 2**20  # most bytes of a log's end, in which the reason of an end is searched
MOST_JSON_BYTES = 2**25  # most bytes of one JSON document; our largest, the index of a store of 1,000 runs, has 2 MB


def open_file(path: str | os.PathLike[str], most_bytes: int | None = None, follow: bool = False) -> io.BufferedReader:
    """Open a file to be read. BadInput if it is not a regular file, or larger than `most_bytes`.

    `follow`: follow links (only for a path that the user named). Raises FileNotFoundError, NotADirectoryError and
    other OSErrors (PermissionError, EIO) as `open` does. A pipe never makes it wait.
    """
    place = pathlib.Path(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(place, flags)
    except OSError as error:
        kind = "a link" if error.errno == errno.ELOOP else "a socket" if error.errno == errno.ENXIO else ""
        if not kind:
            raise
        raise BadInput(f"{printable(str(place))} is {kind}, not a file") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise BadInput(f"{printable(str(place))} is {kind}, not a file")
        if most_bytes is not None and status.st_size > most_bytes:
            raise BadInput(f"{printable(str(place))} has {status.st_size:,} bytes; at most {most_bytes:,} are read")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise BadInput if this name is a link or anything else than a file; it may be absent."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = KINDS.get(stat.S_IFMT(mode), "something else")
            raise BadInput(f"{printable(str(path))} is {kind}, not a file")


def read_bytes(path: str | os.PathLike[str], most_bytes: int = MOST_JSON_BYTES, follow: bool = False) -> bytes:
    """Read a whole file; see `open_file`. BadInput if it holds more than `most_bytes`."""
    with open_file(path, most_bytes, follow) as file:
        content = file.read()
    if len(content) > most_bytes:
        raise BadInput(f"{printable(str(path))} holds more than the {most_bytes:,} bytes that are read")
    return content


def read_text(path: str | os.PathLike[str], most_bytes: int = MOST_JSON_BYTES, follow: bool = False) -> str:
    """Read a whole file of UTF-8; see `read_bytes`. BadInput if it is not."""
    try:
        return read_bytes(path, most_bytes, follow).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{printable(str(path))} is not text (UTF-8; byte {error.start})") from None


def open_to_append(path: str | os.PathLike[str]) -> int:
    """Open a descriptor to read and append to a file, made if absent. BadInput for a link, or if it is not a file."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise BadInput(f"{printable(str(path))} is a link: nothing is written through it") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput(f"{printable(str(path))} is not a file: nothing is written into it")
    return descriptor


def replace_file(path: str | os.PathLike[str], data: bytes | str, sync: bool = False) -> None:
    """Write a draft beside `path` and rename it onto it: a link there is replaced, not written through."""
    file = create_draft(path)
    try:
        with file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(file.name, path)
    except OSError:  # on a full disk the old file stays
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        raise


def append_text(path: str | os.PathLike[str], text: str) -> None:
    """Append to a file, made if absent; see `open_to_append`."""
    with os.fdopen(open_to_append(path), "ab") as file:
        file.write(text.encode())


def read_end(path: str | os.PathLike[str], most_bytes: int = MOST_LOG_BYTES) -> str:
    """Read the last `most_bytes` of a log as text, with bytes that are not UTF-8 replaced; "" if it is absent."""
    try:
        with open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            return file.read(most_bytes).decode(errors="replace")
    except FileNotFoundError:
        return ""


def create_draft(path: str | os.PathLike[str]) -> io.BufferedWriter:
    """Create the draft `.NAME.PID.tmp` beside `path`, to be renamed onto it: never written through a link."""
    place = pathlib.Path(path)
    draft = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):  # left by an earlier process of this number
        draft.unlink()
    return open(draft, "xb")


def open_or_create(path: str | os.PathLike[str]) -> tuple[int, bool]:
    """(a descriptor to read and write a small file, whether it was made now). BadInput for a link or no file."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        check_file(path)
    return os.open(path, flags | os.O_CREAT, 0o644), False
