"""Validation sets of the user's own (`--val-source`), and files of a glob whose names say that they are one."""

import dataclasses
import glob
import os
import pathlib
import re
import shlex

from scalelab.data.prepare import specs
from scalelab.data.read.selection import split_spec
from scalelab.errors import BadInput

WORDS = {"val", "valid", "validation", "test", "dev"}
CODE_ENDINGS = (
    ".py",
    ".js",
    ".ts",
    ".go",
    ".rs",
    ".c",
    ".cc",
    ".cpp",
    ".java",
    ".rb",
    ".sh",
)  # a test of code is text like any other
NAMED = 3  # files named in a refusal


def parse_parts(
    sources: list[str], val_sources: list[str], train_on_all: bool, text_key: str = "text"
) -> list[specs.SourcePart]:
    """Parse `--source` and `--val-source` as parts, sorted by name. With validation sources nothing else is held out.

    Raises BadInput as `specs.parse_sources`, for a file that is both, and for globs that take files whose names say
    val, valid, test or dev for training, unless `train_on_all`.
    """
    train, val = specs.parse_sources(sources, text_key), specs.parse_sources(val_sources, text_key)
    held = {path: part for part in val for path in part.paths}
    for part in train:
        if both := [path for path in part.paths if path in held and not _are_apart(part, held[path])]:
            spec, rest = held[both[0]].spec, [path for path in part.paths if path not in held]
            hint = f": name the others, --source={_quoted(rest)}" if rest else ""
            raise BadInput(f"{both[0]} is in --source={part.spec} and in --val-source={spec}{hint}")
        if not train_on_all:
            _ask_about_names(part)
    if val:
        train = [dataclasses.replace(part, split="train") for part in train]
    return sorted([*train, *(dataclasses.replace(part, split="val") for part in val)], key=lambda part: part.key)


def _are_apart(train: specs.SourcePart, val: specs.SourcePart) -> bool:
    """Whether two sources may take other records of one file: both have filters, and not the same ones."""
    filters = train.selection.filters, val.selection.filters
    return all(filters) and filters[0] != filters[1]


def _quoted(paths: list[str]) -> str:
    return shlex.quote(",".join(paths[:NAMED]) + ("" if len(paths) <= NAMED else ",…"))


def _ask_about_names(part: specs.SourcePart) -> None:
    """Raise BadInput, with the lines to paste, if a glob takes files for training whose names say another use."""
    if part.origins:
        _ask_about_addresses(part)
        return
    patterns = [pattern.strip() for pattern in split_spec(part.spec)[0].split(",")]
    chosen = {os.path.realpath(os.path.expanduser(pattern)) for pattern in patterns if not glob.has_magic(pattern)}
    below = [_fixed_folder(pattern) for pattern in patterns if glob.has_magic(pattern)]
    named = [path for path in part.paths if path not in chosen and any(says_held_out(path, folder) for folder in below)]
    if not named:
        return
    rest = [path for path in part.paths if path not in named]
    lines = f"--val-source={_quoted(named)}" + (f" --source={_quoted(rest)}" if rest else " and another --source")
    raise BadInput(
        f"--source={part.spec} takes {named[0]}{f' and {len(named) - 1} more' if named[1:] else ''} for training, and "
        f"the name says it is held out: {lines} makes it the validation set; --train-on-all trains on it"
    )


def _ask_about_addresses(part: specs.SourcePart) -> None:
    """Raise BadInput if a glob of a data set on the Hub takes files whose names say another use."""
    places = split_spec(part.spec)[0]
    if not (places.startswith("hf://") and glob.has_magic(places)):
        return
    inside = {
        origin: f"/{origin.split('/', 5)[-1]}" for origin in part.origins
    }  # hf:, "", datasets, owner, name@commit
    named = [origin for origin, path in inside.items() if says_held_out(path, "/")]
    if named:
        more = f" and {len(named) - 1} more" if named[1:] else ""
        raise BadInput(
            f"--source={part.spec} takes {named[0]}{more} for training, and the name says it is held out: "
            f"--val-source={_quoted(named)} makes it the validation set; --train-on-all trains on it"
        )


def _fixed_folder(pattern: str) -> str:
    """The folders of a glob before its first * or ?."""
    parts = pathlib.PurePath(os.path.expanduser(pattern)).parts
    magic = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return os.path.realpath(os.path.join(*parts[:magic])) if magic else os.getcwd()


def says_held_out(path: str, folder: str) -> bool:
    """Whether a file's name, or a folder's between it and `folder`, has one of WORDS as a word."""
    if not path.startswith(folder):
        return False
    *folders, name = pathlib.PurePath(os.path.relpath(path, folder)).parts
    words = re.split(r"[^a-z]+", name.lower()) if not name.endswith(CODE_ENDINGS) else []
    return bool(WORDS & {*words, *(each.lower() for each in folders)})


def check_options(val_fraction: float, val_sources: list[str]) -> None:
    """Raise BadInput for a share that is none, or a share beside validation sources."""
    if val_sources and val_fraction:
        raise BadInput(
            f"--val-fraction={val_fraction} holds documents out beside --val-source={val_sources[0]}, whose documents "
            "are the validation set: leave --val-fraction out"
        )
    if not val_sources and not 0 < val_fraction < 1:
        good = "0.1 is usual" + ("; 0 needs --val-source=SPEC" if val_fraction == 0 else "")
        raise BadInput(f"--val-fraction={val_fraction} is not between 0 and 1; {good}")
