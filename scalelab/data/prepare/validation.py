"""Validation sets of the user's own (`--val-source`), and files of a glob whose names say that they are one."""

import glob
import os
import pathlib
import re
import shlex
from collections.abc import Sequence

from scalelab.data.prepare import specs
from scalelab.data.read.selection import Selection
from scalelab.errors import BadInput

WORDS = {"val", "valid", "validation", "test", "dev"}
# A test of code is a text like any other.
CODE_ENDINGS = (".py", ".js", ".ts", ".go", ".rs", ".c", ".cc", ".cpp", ".java", ".rb", ".sh")
NAMED = 3  # files named in a refusal


def parse_parts(
    sources: Sequence[str], val_sources: Sequence[str], train_on_all: bool, text_key: str = "text"
) -> list[specs.SourcePart]:
    """Parse `--source` and `--val-source` as parts, sorted by name. With validation sources nothing else is held out.

    Raises BadInput with all faults: those of `specs.parse_sources`, files that are both, and globs and folders that
    take files whose names say val, valid, test or dev for training, unless `train_on_all`.
    """
    train, faults = specs.find_parts(sources, text_key, "train" if val_sources else "")
    val, val_faults = specs.find_parts(val_sources, text_key, "val")
    faults += val_faults
    for part in train:
        faults += _overlaps(part, val)
        faults += [] if train_on_all else _held_out_names(part)
    specs.raise_faults(faults)
    return sorted([*train, *val], key=lambda part: part.key)


def _overlaps(train: specs.SourcePart, val: Sequence[specs.SourcePart]) -> list[str]:
    """The fault, if a file gives the same documents to `train` and to `val`."""
    held = {path: part for part in val if not _may_differ(train.selection, part.selection) for path in part.paths}
    both = [path for path in train.paths if path in held]
    if not both:
        return []
    rest = [path for path in train.paths if path not in held]
    hint = f": name the others, --source={_quoted(rest)}" if rest else ""
    return [f"{both[0]} is in {train.flag} and in {held[both[0]].flag}{hint}"]


def _may_differ(train: Selection, val: Selection) -> bool:
    """Whether two selections of a file can have no document in common: another key, or each a filter of its own."""
    ours, theirs = set(train.filters), set(val.filters)
    return train.key != val.key or not (ours <= theirs or theirs <= ours)


def _quoted(paths: Sequence[str], selection: str = "") -> str:
    return shlex.quote(",".join(paths[:NAMED]) + ("" if len(paths) <= NAMED else ",…") + selection)


def _held_out_names(part: specs.SourcePart) -> list[str]:
    """The fault, with the lines to paste, if a glob or folder takes files whose names say another use for training."""
    files = _hub_files(part) if part.origins else _files_below(part)
    named = [path for path, says_so in files.items() if says_so]
    if not named:
        return []
    rest, end = [path for path in files if path not in named], part.selection.describe()
    lines = f"--val-source={_quoted(named, end)}"
    lines += f" --source={_quoted(rest, end)}" if rest else " and another --source"
    more = f" and {len(named) - 1} more" if named[1:] else ""
    return [
        f"{part.flag} takes {named[0]}{more} for training, and the name says it is held out: {lines} makes it the "
        "validation set; --train-on-all trains on it"
    ]


def _files_below(part: specs.SourcePart) -> dict[str, bool]:
    return find_held_out(part.places, part.paths)


def find_held_out(places: str, paths: Sequence[str]) -> dict[str, bool]:
    """{path: whether its name says that it is held out}, of the files of globs separated by commas.

    The name of a file that is named alone says nothing.
    """
    patterns = [os.path.expanduser(pattern.strip()) for pattern in places.split(",")]
    chosen = {os.path.realpath(pattern) for pattern in patterns if os.path.isfile(pattern)}
    below = [_fixed_folder(pattern) for pattern in patterns if not os.path.isfile(pattern)]
    return {path: path not in chosen and any(says_held_out(path, folder) for folder in below) for path in paths}


def question_held_out(places: str, paths: Sequence[str]) -> str:
    """A line that asks about files of data.path whose names say val, valid, test or dev; "" if there are none."""
    files = find_held_out(places, paths)
    named = [path for path, says_so in files.items() if says_so]
    if not named:
        return ""
    more = f" and {len(named) - 1} more" if named[1:] else ""
    rest = [path for path in files if path not in named]
    train = f"--source={_quoted(rest)} " if rest else ""
    return (
        f"data.path takes {named[0]}{more} for the corpus, of which a share is held out, and the name says it is held "
        f"out itself: `scalelab prepare {train}--val-source={_quoted(named)} --tokenizer=bytes --out=DIR` makes it the "
        "validation set; naming it without a glob says that it is meant"
    )


def _hub_files(part: specs.SourcePart) -> dict[str, bool]:
    """Like `_files_below`, of files by their addresses on the Hub: hf://datasets/owner/name@commit/path."""
    chosen = [pattern.strip() for pattern in part.places.split(",") if not glob.has_magic(pattern)]
    inside = {origin: f"/{origin.split('/', 5)[-1]}" for origin in part.origins if origin.startswith("hf://")}
    return {
        origin: origin in inside
        and not any(pattern.endswith(inside[origin]) for pattern in chosen)
        and says_held_out(inside[origin], "/")
        for origin in part.origins
    }


def _fixed_folder(pattern: str) -> str:
    """The folders of a glob before its first * or ?; a folder itself."""
    parts = pathlib.PurePath(pattern).parts
    magic = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return os.path.realpath(os.path.join(*parts[:magic])) if magic else os.getcwd()


def says_held_out(path: str, folder: str) -> bool:
    """Whether a file's name, or a folder's between it and `folder`, has one of WORDS as a word."""
    if not path.startswith(folder):
        return False
    *folders, name = pathlib.PurePath(os.path.relpath(path, folder)).parts
    words = re.split(r"[^a-z]+", name.lower()) if not name.endswith(CODE_ENDINGS) else []
    return bool(WORDS & {*words, *(each.lower() for each in folders)})


def check_options(val_fraction: float, val_sources: Sequence[str]) -> None:
    """Raise BadInput for a share that is none, or a share beside validation sources."""
    if val_sources and val_fraction:
        raise BadInput(
            f"--val-fraction={val_fraction} holds documents out beside --val-source={val_sources[0]}, whose documents "
            "are the validation set: leave --val-fraction out"
        )
    if not val_sources and not 0 < val_fraction < 1:
        good = "0.1 is usual" + ("; 0 needs --val-source=SPEC" if val_fraction == 0 else "")
        raise BadInput(f"--val-fraction={val_fraction} is not between 0 and 1; {good}")
