"""Parse head.json and the index, which others may have written: every name, size and hash is checked before use.

Paths are plain and lie below the folder; objects lie below `files/` or `index/` of the same place. Any other path or
name was edited: BadInput. An index that differs from the hash in its own name is damaged.
"""

import contextlib
import hashlib
import re
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.record import owners
from scalelab.record.jsonfiles import LIST, TEXT, WHOLE, describe_mismatch
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.paths import check_name
from scalelab.untrusted.text import printable

MOST_HEAD_BYTES = 2**16
MOST_INDEX_BYTES = 2**26  # size of the index of 5,000 packs with three checkpoints each
MOST_PARTS = 2**20  # most files and parts of an index: ours never have more
MOST_OBJECT_BYTES = 2**50  # most bytes of one part; object stores take less
HEAD_SCHEMA = {"format": WHOLE, "owner": (TEXT, None), "machine?": TEXT, "index": (TEXT, None), "put": TEXT}
INDEX_SCHEMA = {"format": WHOLE, "files": {"*": LIST}}
INDEX_NAME = re.compile(r"index/([0-9a-f]{32})-\w+")
SHA256 = re.compile(r"[0-9a-f]{64}")
STEP = re.compile(r"(?:.*/)?checkpoints/\d+(?=/)")  # a path up to the checkpoint in it
Parts = list[tuple[str, int, str]]  # (object, bytes, SHA-256) of each part of a file, in order
Files = dict[str, Parts]  # relative path -> its parts


class ObjectsLost(WorkFailed):
    """Objects that a store's index names are missing or damaged; the message names them."""


def parse_head(data: bytes, source: str) -> dict[str, Any]:
    """Parse head.json. BadInput, naming `source`, if scalelab did not write it."""
    content = None
    with contextlib.suppress(ValueError):
        content = parse_json(data)
    if not (isinstance(content, dict) and content.get("format") == 1):
        raise BadInput(f"{source} was not written by this version of scalelab, or damaged since: use another folder")
    wrong = describe_mismatch(content, HEAD_SCHEMA)
    if not wrong and content["owner"] and owners.parse_owner(content["owner"]) is None:
        wrong = "owner is not a process's"
    if wrong:
        raise BadInput(f"{source}: {wrong}; was it edited?")
    if content["index"] is not None:
        _check_object(content["index"], "index", source)
    return content


def parse_index(data: bytes, name: str, source: str) -> Files:
    """Parse the files that an index lists. ObjectsLost if it differs from the hash in its name, BadInput if edited."""
    match = INDEX_NAME.fullmatch(name)
    if match and hashlib.sha256(data).hexdigest()[:32] != match[1]:
        raise ObjectsLost(f"{source} is damaged: its content doesn't match the hash in its name")
    if data.count(b"[") > MOST_PARTS:
        raise BadInput(f"{source} lists more than {MOST_PARTS:,} files and parts")
    try:
        content = parse_json(data)
    except ValueError as error:
        raise BadInput(f"{source} is not JSON ({printable(str(error), 80)}): was it edited?") from None
    if wrong := describe_mismatch(content, INDEX_SCHEMA):
        raise BadInput(f"{source}: {wrong}; was it edited?")
    files = {}
    for path, parts in content["files"].items():
        check_name(path, source)
        files[path] = [_parse_part(part, f"{source}: a part of {path!r}", source) for part in parts]
    for path in files:
        parents = [path[:i] for i, letter in enumerate(path) if letter == "/"]
        if both := [parent for parent in parents if parent in files]:
            raise BadInput(f"{source} names {both[0]!r} as a file and as a folder; was it edited?")
    return files


def _parse_part(part: Any, what: str, source: str) -> tuple[str, int, str]:
    if not (isinstance(part, list) and len(part) == 3):
        raise BadInput(f"{what} is not an object's name, its size and its SHA-256; was it edited?")
    name, size, sha = part
    _check_object(name, "files", source)
    if type(size) is not int or not 0 <= size <= MOST_OBJECT_BYTES:
        raise BadInput(f"{what} can't have {printable(repr(size), 30)} bytes; was it edited?")
    if not (isinstance(sha, str) and SHA256.fullmatch(sha)):
        raise BadInput(f"{what} has no SHA-256 in hex; was it edited?")
    return name, size, sha


def _check_object(name: Any, folder: str, source: str) -> None:
    """Raise BadInput unless `name` is a plain name below `folder` of the same place in the store."""
    if not check_name(name, source).startswith(f"{folder}/"):
        raise BadInput(f"{source} names an object {name!r}, which is not below {folder}/; was it edited?")
