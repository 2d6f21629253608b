"""Write JSON files atomically, check them as they are read, and sync them to disk.

Passing EIO or ESTALE errors of network file systems are retried.
"""

import errno
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from scalelab.errors import BadInput
from scalelab.untrusted import documents
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import (
    MOST_JSON_BYTES,
    read_bytes,
    replace_file,
)
from scalelab.untrusted.schemas import FLAG, LIST, NUMBER, NUMBERS, PAIR, SCALAR, TEXT, WHOLE, Schema, describe_mismatch

# Passed on from the untrusted room to modules that declare and read files.
__all__ = ("FLAG", "LIST", "NUMBER", "NUMBERS", "PAIR", "SCALAR", "TEXT", "WHOLE", "describe_mismatch")

Folder = str | os.PathLike[str]
T = TypeVar("T")
TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE)  # errors of network file systems that may pass
RETRY_WAITS_S = (0.1, 0.5, 2.5)


def retry_transient(action: Callable[[], T]) -> T:
    """Return `action()`, retried after RETRY_WAITS_S on EIO and ESTALE. Raises the last OSError, with the tries."""
    for wait in RETRY_WAITS_S:
        try:
            return action()
        except OSError as error:
            if error.errno not in TRANSIENT_ERRNOS:
                raise
        time.sleep(wait)
    try:
        return action()
    except OSError as error:
        if error.errno not in TRANSIENT_ERRNOS:
            raise
        raise OSError(error.errno, f"{error.strerror}, {len(RETRY_WAITS_S) + 1} times", error.filename) from error


def is_transient(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, is one that `retry_transient` retries; some libraries give it as text."""
    while error is not None:
        texts = [os.strerror(number) for number in TRANSIENT_ERRNOS]
        if getattr(error, "errno", None) in TRANSIENT_ERRNOS or any(text in str(error) for text in texts):
            return True
        error = error.__cause__ or error.__context__
    return False


def write_json(path: Folder, content: Any) -> None:
    """Replace the file at `path` by `content` as JSON, atomically: readers see the old file or the new one."""
    path = pathlib.Path(path)
    data = (documents.dump_json(content, indent=1) + "\n").encode()

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, sync=True)

    retry_transient(write)


def read_json(
    path: Folder, schema: Schema | None = None, follow: bool = False, most_bytes: int = MOST_JSON_BYTES
) -> Any:
    """Read the JSON in `path`; BadInput if it is absent, damaged, too large, or does not match `schema`.

    `follow`: follow links (only for a path that the user named).
    """
    try:
        content = parse_json(retry_transient(lambda: read_bytes(path, most_bytes, follow)))
    except BadInput:  # a link, a pipe, a device
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"no file {str(path)!r}: is this a finished run's folder?") from None
    except OSError as error:  # a folder, or no permission
        raise BadInput(f"{path} can't be read: {error.strerror}") from None
    except ValueError as error:  # raised also for text that is not UTF-8, and numbers of 400 digits
        place = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else error
        raise BadInput(f"{path} is not JSON ({place}): was it edited or cut?") from None
    if schema is not None and (wrong := describe_mismatch(content, schema)):
        raise BadInput(f"{path}: {wrong}; was it edited?")
    return content


def sync_to_disk(path: Folder) -> None:
    """Flush a file and its folder's entry to disk, safe from a power cut; does nothing if the file is absent."""
    path = pathlib.Path(path)
    for place in (path, path.parent) if path.exists() else ():
        fsync(place)


def fsync(place: Folder) -> None:
    """Flush a file's content, or a folder's entries (a rename in it, say), to disk."""

    def sync() -> None:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    retry_transient(sync)
