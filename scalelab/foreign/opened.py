"""Open a foreign source where a run's folder is expected: imported once into a cache, then read from there.

The cache is `foreign` beside the copies of stores ($SCALELAB_CACHE, else ~/.cache/scalelab), with one folder for each
state of a source's files (paths, sizes, times) and choice of columns; each run's record has the hash of their contents.
It has a limit (`cache`).
"""

import functools
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from scalelab.errors import BadInput
from scalelab.foreign import convert, find, names, questions, run, size, weights, write
from scalelab.foreign.cache import cache_limit, mark_used, prune_cache
from scalelab.foreign.readers import (
    configs,
    databases,
    lines,
    mlflow,
    printed,
    series,
    tensorboard,
    text,
    trainer,
    wandb,
    wire,
)
from scalelab.foreign.write import Imported
from scalelab.record import listing, records
from scalelab.stores.urls import cache_root
from scalelab.untrusted.paths import list_folders, path_below

DONE_FILE = "source.json"
SCHEMA = {"lines": [records.TEXT], "notes": [records.TEXT], "left_out": [records.TEXT], "single": records.TEXT}
MOST_FILES = 200_000
Report = Callable[[str, int, int], None]  # called with a run's name, its number, and how many there are
CODE = (
    configs,
    convert,
    databases,
    find,
    lines,
    mlflow,
    names,
    printed,
    questions,
    run,
    series,
    size,
    tensorboard,
    text,
    trainer,
    wandb,
    weights,
    wire,
    write,
)


def _silent(name: str, number: int, total: int) -> None:
    """Ignore a report."""


def open_if_foreign(
    source: pathlib.Path, columns: Mapping[str, str] | None = None, with_files: bool = True, report: Report = _silent
) -> Imported | None:
    """Open a path that holds runs of other programs, and none of ours; None for any other path.

    `with_files`: a file is a run's log; else one that can be a table of runs is that. BadInput for a file that is
    neither, and as `open_source`.
    """
    if not os.path.isdir(source):  # False, not an error, for a name that is too long
        if not os.path.isfile(source) or (not with_files and lines.kind_of(source)):
            return None
        if with_files:
            return open_source(source, columns, report)
    else:
        try:
            listing.run_folders(source)
            return None
        except BadInput:
            pass
    if _read_done(_place_of(source, columns or {})) is None:
        try:
            find.find_runs(source)
        except BadInput:
            return None
    return open_source(source, columns, report)


def open_source(source: pathlib.Path, columns: Mapping[str, str] | None = None, report: Report = _silent) -> Imported:
    """Import a foreign source into the cache, if it is not there, and describe it. BadInput as `import_source`."""
    columns = dict(columns or {})
    cache_limit()  # refuses an odd one before the work
    place = _place_of(source, columns)
    if (done := _read_done(place)) is not None:
        return done
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        name = write.plain_folder_name(source.resolve().name)
        made = write.import_source(source, draft / name, columns, report)
        content = {"lines": made.lines, "notes": made.notes, "left_out": made.left_out, "single": name}
        records.write_json(draft / DONE_FILE, content)
        try:
            os.replace(draft, place)
        except OSError:  # another process was first
            if _read_done(place) is None:
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    done = _read_done(place)
    assert done is not None
    told = prune_cache(place.parent, place)
    return done._replace(notes=[*done.notes, told]) if told else done


def _read_done(place: pathlib.Path) -> Imported | None:
    """What the cache holds of a source; None if it is not whole."""
    if not (place / DONE_FILE).exists():
        return None
    try:
        content: dict[str, Any] = records.read_json(place / DONE_FILE, SCHEMA)
        mark_used(place)
        folder = path_below(place, content["single"], str(place / DONE_FILE))
        return Imported(folder, listing.run_folders(folder), content["lines"], content["notes"], content["left_out"])
    except BadInput:
        return None


def _place_of(source: pathlib.Path, columns: Mapping[str, str]) -> pathlib.Path:
    """The folder of the cache for a source as it is now."""
    return cache_root().parent / "foreign" / _state_of(source, columns)


def _state_of(source: pathlib.Path, columns: Mapping[str, str]) -> str:
    """A digest of the state of a source's files, of the columns chosen, and of the code that reads them."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([str(source.resolve()), sorted(columns.items()), _code_digest()]).encode(errors="replace"))
    files = [source] if source.is_file() else _files_below(source)
    for path in files:
        state = os.stat(path)
        name = os.fsencode(path)
        digest.update(b"%b\0%d %d %d\n" % (name, state.st_size, state.st_mtime_ns, state.st_ino))
    return digest.hexdigest()


def _files_below(folder: pathlib.Path, depth: int = 0) -> list[pathlib.Path]:
    """The regular files of a folder and its folders, no links followed, in order of names."""
    files = find.files_in(folder)
    if depth < find.MOST_DEPTH:
        for name in list_folders(folder)[0]:
            files += _files_below(folder / name, depth + 1)
            if len(files) > MOST_FILES:
                raise BadInput(f"{str(folder)!r} holds more than {MOST_FILES:,} files: name a folder of runs in it")
    return files


@functools.cache
def _code_digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for module in CODE:
        digest.update(pathlib.Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()
