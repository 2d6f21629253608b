"""URLs of folders in object stores, and the local folders that stand for them."""

import os
import pathlib

from scalelab.errors import BadInput
from scalelab.untrusted.paths import check_name
from scalelab.untrusted.text import as_utf8

EXTRAS = {"s3": "s3", "gs": "gcs"}  # scheme -> the extra of pyproject.toml


def is_url(text: str) -> bool:
    """Whether a text names a folder in an object store."""
    return str(text).startswith(tuple(f"{scheme}://" for scheme in EXTRAS))


def work_folder(text: str) -> pathlib.Path:
    """The folder to work in: a local path, or the local folder of a URL. BadInput for an unusable one."""
    return local_folder(text) if is_url(text) else plain_folder(text)


def plain_folder(text: str) -> pathlib.Path:
    """Check a folder to make or to resume. BadInput for a URL, or if the path or one of its parents is a file."""
    if not text:  # an unset shell variable, for example
        raise BadInput("'' is not a folder; the current folder is .")
    if is_url(text):
        raise BadInput(f"{text} is in an object store; name a local folder")
    if as_utf8(text) != text:  # its files would name it, and JSON is UTF-8
        raise BadInput(f"{text} is not UTF-8, so no record could name it; rename the folder")
    path = pathlib.Path(os.path.expanduser(text))
    if files := [place for place in (path, *path.parents) if place.exists() and not place.is_dir()]:
        raise BadInput(f"{files[0]} is a file; name a folder")
    return path


def split_url(url: str) -> tuple[str, str, str]:
    """Split `url` into (scheme, bucket, path). BadInput without a bucket or path, or with a path that leaves it."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.rstrip("/").partition("/")
    try:
        check_name(path and f"{bucket}/{path}", "it")
    except BadInput:
        example = bucket if bucket.isalnum() else "bucket"
        raise BadInput(f"{url!r} is not a folder in a bucket, e.g. {scheme}://{example}/runs/mine") from None
    return scheme, bucket, path


def cache_root() -> pathlib.Path:
    """The folder of all local copies: `stores` in $SCALELAB_CACHE, or in ~/.cache/scalelab."""
    root = os.environ.get("SCALELAB_CACHE") or "~/.cache/scalelab"
    return pathlib.Path(os.path.expanduser(root)).absolute() / "stores"


def local_folder(url: str, kind: str = "work") -> pathlib.Path:
    """The local folder of `url`. Its kind: work (written here), read (copied from there), state, held."""
    scheme, bucket, path = split_url(url)
    return cache_root() / kind / scheme / bucket / path


def url_of(folder: str | os.PathLike[str]) -> str | None:
    """The URL that a local folder of kind work stands for; None for any other folder."""
    try:
        parts = pathlib.Path(folder).absolute().relative_to(cache_root() / "work").parts
    except ValueError:
        return None
    return f"{parts[0]}://{'/'.join(parts[1:])}" if len(parts) > 2 and parts[0] in EXTRAS else None
