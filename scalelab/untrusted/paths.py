"""Turn names from a file, an index or a folder into paths below a folder: plain, relative, and without links."""

import contextlib
import os
import pathlib

from scalelab.errors import BadInput
from scalelab.untrusted.text import printable

MOST_NAME_BYTES, MOST_PATH_BYTES = 255, 4096  # NAME_MAX and PATH_MAX of Linux


def check_name(name: object, source: str) -> str:
    """Return `name`, a plain path relative to a folder: `checkpoints/20/state`. BadInput, naming `source`, if not."""
    if why := _obstacle(name):
        raise BadInput(f"{source} names a file {printable(repr(name), 60)}, {why}; was it edited?")
    return str(name)


def _obstacle(name: object) -> str:
    """Explain why `name` is not a plain relative name; "" if it is one."""
    if not isinstance(name, str):
        return "which is not text"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "which is not UTF-8"
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        return "which is not a plain path below its folder"
    if "\\" in name or not name.isprintable():
        return "which holds characters that no file of scalelab has"
    if size > MOST_PATH_BYTES or any(len(part.encode()) > MOST_NAME_BYTES for part in name.split("/")):
        return "which is too long"
    return ""


def path_below(folder: str | os.PathLike[str], name: object, source: str = "") -> pathlib.Path:
    """Make the path of `name` in `folder`. BadInput if it is not a plain relative name, or a part of it is a link.

    `folder` is the user's own and may be a link; nothing below it may. `source`: who gives the name, for the error.
    The file need not be there.
    """
    plain = check_name(name, source or str(folder))
    path = pathlib.Path(folder)
    for part in plain.split("/"):
        path = path / part
        refuse_link(path)
    return path


def refuse_link(path: pathlib.Path, hint: str = "") -> None:
    """Raise BadInput if `path` is a link, which may lead elsewhere; `hint`: a way on, for the error."""
    if path.is_symlink():
        raise BadInput(f"{describe_link(path)}{hint and f'; {hint}'}")


def describe_link(path: str | os.PathLike[str]) -> str:
    """The line that refuses a link."""
    return f"{printable(str(path))} is a link: what a folder holds is read and written in place only"


def list_folders(place: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """Names of (the folders, the links) in `place`, sorted; both empty if it can't be listed."""
    folders, links = [], []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.is_symlink():
                links.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
    return sorted(folders), sorted(links)
