"""Samples of WebDataset's tars: members one after the other with one name and several endings (000.txt, 000.json).

The key's first part names the ending that holds the document: `#txt`, or a field in a member of JSON, `#json.caption`.
A sample's name ends at the first dot after its folder (webdataset's base_plus_ext).
"""

import functools
import itertools
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from scalelab.data.read.reading import Reading
from scalelab.data.read.text import record_documents
from scalelab.errors import BadInput

SAMPLES_LOOKED_AT = 8
SAMPLE_ENDINGS = {
    *("txt", "text", "md", "html", "transcript", "json", "cls", "id", "npy", "npz", "pth", "pyd"),
    *("jpg", "jpeg", "png", "webp", "mp3", "wav", "flac", "mp4", "ogg", "m4a"),
}

Member = tuple[str, Callable[[], bytes]]  # name, and a function that reads the content


def split_name(name: str) -> tuple[str, str]:
    """The sample and the ending of a member: "a/000.cls.txt" -> ("a/000", "cls.txt")."""
    folder, base = posixpath.split(name)
    stem, _, ending = base.partition(".")
    return posixpath.join(folder, stem), ending.lower()


def find_endings(names: Iterable[str]) -> list[str]:
    """The endings in the first samples of an archive, if it is WebDataset's: of one name several members each."""
    groups = itertools.groupby(map(split_name, names), key=lambda pair: pair[0])
    samples = [sorted({ending for _, ending in group}) for _, group in itertools.islice(groups, SAMPLES_LOOKED_AT)]
    endings = sorted(set(itertools.chain(*samples)))
    is_sampled = len(samples) > 1 and all(len(sample) > 1 for sample in samples)
    return endings if is_sampled and set(endings) <= SAMPLE_ENDINGS else []


def check_key(path: str, endings: list[str], reading: Reading) -> None:
    """Raise BadInput if the key names none of the samples' endings."""
    if _ending(reading.key, endings) is None:
        choice = next((ending for ending in ("txt", "json", *endings) if ending in endings), "txt")
        example = f"{path}#{choice}" + (".KEY" if choice == "json" else "")
        known = ", ".join(endings)
        raise BadInput(f"{path} holds WebDataset samples of {known}: which is the document? --source={example}")


def sample_documents(members: Iterable[Member], path: str, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """The document of each sample that the source's filters keep."""
    for name, group in itertools.groupby(members, key=lambda member: split_name(member[0])[0]):
        place = functools.partial("{}:{}".format, path, name)
        wanted = [reading.key, *(one.key for one in reading.selection.filters)]
        parts = {
            ending: read()
            for member, read in group
            if any(_ending(key, [ending := split_name(member)[1]]) is not None for key in wanted)
        }
        record: dict[str, Any] = {ending: _parsed(ending, content) for ending, content in parts.items()}
        if not reading.is_chosen(record, place):
            continue
        if (content := parts.get(reading.key)) is not None:
            if content and reading.is_text(content, place):
                yield content
        else:
            yield from record_documents(record, reading, place)


def _ending(key: str, endings: Iterable[str]) -> str | None:
    """Which of `endings` a key names or leads into."""
    return next((each for each in endings if key == each or key.startswith(f"{each}.")), None)


def _parsed(ending: str, content: bytes) -> Any:
    """The value of a member, for filters and nested keys: JSON, else a text without spaces around it."""
    if ending.split(".")[-1] == "json":
        try:
            return json.loads(content.decode())
        except (ValueError, RecursionError):
            return None
    return content.decode(errors="replace").strip()
