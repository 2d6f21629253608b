"""Runs of other programs as arguments of commands: opened before the work, with a line on what was taken for what."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab import api
from scalelab.cli.parser import Parser, print_status
from scalelab.errors import BadInput
from scalelab.record import listing

MOST_LINES = 4  # runs whose columns are told one by one
MOST_NOTES = 6
HELP = "of runs that another program trained: which of their columns is what, where names don't tell"
EXAMPLE = "N=124M,val_loss=eval/c4/loss"


def add_sources(parser: Parser, names: Sequence[str], files: bool = True) -> dict[str, str]:
    """Let these arguments name runs of other programs too; adds --columns where the command has none.

    `files`: any file is a run's log; False where a file is a table of runs, unless it is a log by name and content.
    Returns {folder of a source's runs: path that the user gave}, filled when arguments are parsed.
    """
    given: dict[str, str] = {}
    has_columns = any("--columns" in action.option_strings for action in parser._actions)
    if not has_columns:
        parser.add_argument("--columns", metavar="FIELD=COLUMN,…", help=f"{HELP}: {EXAMPLE}")
    parser.sources = lambda options: given.update(open_all(options, names, files, has_columns))
    return given


def parse_fields(text: str | None) -> dict[str, str]:
    """Parse --columns for runs into {field: column}. BadInput for what is not FIELD=COLUMN."""
    fields: dict[str, str] = {}
    for part in text.split(",") if text else []:
        field, equals, column = (side.strip() for side in part.partition("="))
        if not equals or not column:
            raise BadInput(f"--columns: {part!r} is not FIELD=COLUMN, such as {EXAMPLE} (a table's columns: --show)")
        if field in fields:
            raise BadInput(f"--columns names {field} twice: {fields[field]!r} and {column!r}")
        fields[field] = column
    return fields


def open_all(options: Any, names: Sequence[str], files: bool, is_tables: bool) -> dict[str, str]:
    """Replace each argument that is a source by its folder of runs; --columns of tables is left for their reader.

    Returns {folder: path that was given}.
    """
    text, rest, opened, given = options.columns, None, list[bool](), dict[str, str]()
    if text and is_tables and (files or any(is_logged(path) for name in names for path in getattr(options, name))):
        text, rest = _split_fields(text)
    for name in names:
        value = getattr(options, name)
        paths = value if isinstance(value, list) else [] if value is None else [value]
        folders = [_open(path, text, files) for path in paths]
        opened += [folder is not None for folder in folders]
        given |= {folder: os.fspath(path) for path, folder in zip(paths, folders, strict=True) if folder}
        places = [folder or path for path, folder in zip(paths, folders, strict=True)]
        setattr(options, name, places if isinstance(value, list) else places[0] if places else value)
    if not is_tables:
        if text and not any(opened):
            raise BadInput(f"--columns={text}: it is for runs that another program trained, and none is given")
        options.foreign = any(opened)
    elif opened and (all(opened) or (files and any(opened))):
        options.columns = rest
    return given


def given_path(given: Mapping[str, str], run: str) -> str:
    """The path that the user gave for a run which was opened from another program's; its own else."""
    return next((path for folder, path in given.items() if run.startswith(folder)), run)


def _split_fields(text: str) -> tuple[str | None, str | None]:
    """(--columns of what runs log, --columns of other fields of a law), None for an empty one."""
    from scalelab.foreign.write import ALL_FIELDS  # here: only such runs need the readers

    parts = text.split(",")
    logged = [part for part in parts if part.partition("=")[0].strip() in ALL_FIELDS]
    others = [part for part in parts if part not in logged]
    return ",".join(logged) or None, ",".join(others) or None


def is_logged(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder, or a file that is a run's log: no table by its name, and of a known format."""
    if not os.path.isfile(path):
        return os.path.isdir(path)
    from scalelab.foreign.find import find_runs  # here: help needs no readers
    from scalelab.foreign.readers.lines import kind_of

    place = pathlib.Path(path)
    try:
        return not kind_of(place) and bool(find_runs(place))
    except BadInput:
        return False


def _open(path: str | os.PathLike[str], text: str | None, files: bool) -> str | None:
    """The folder of a source's runs, with lines on standard error; None for a path that is not such a source."""
    if not os.path.exists(path) or not (files or is_logged(path)):
        return None
    if os.path.isdir(path) and listing.holds_runs(path):  # of ours: readers would load jax
        return None
    runs = api.open_runs(path, columns=parse_fields(text), progress=show_progress)
    if not runs.lines:
        return None
    tell_runs(runs.lines, runs.notes, runs.left_out)
    return runs.folder


def show_progress(name: str, number: int, total: int) -> None:
    """Print a line at every hundredth run of many."""
    if total >= 100 and number % 100 == 0:
        print_status(f"read {number} of {total} runs")


def tell_runs(lines: Sequence[str], notes: Sequence[str], left_out: Sequence[str]) -> None:
    """Print what was taken for what of some runs: of many alike, once."""
    _tell_alike(lines, MOST_LINES, "", "more kinds of runs: `source` in each record.json has theirs")
    _tell_alike(notes, MOST_NOTES, "note: ", "more in the runs' record.json")
    for reason in left_out[:MOST_NOTES]:
        print_status(f"left out: {reason}")
    if len(left_out) > MOST_NOTES:
        print_status(f"left out: {len(left_out) - MOST_NOTES} more")


def _tell_alike(lines: Sequence[str], most: int, mark: str, more: str) -> None:
    """Print lines `NAME: WHAT` once a WHAT, each behind `mark`; of more than `most` their number and `more`."""
    names: dict[str, list[str]] = {}
    for line in lines:
        name, _, what = line.partition(": ")
        names.setdefault(what, []).append(name)
    for what, runs in list(names.items())[:most]:
        print_status(f"{mark}{_name_some(runs)}: {what}")
    if len(names) > most:
        print_status(f"{mark}{len(names) - most} {more}")


def _name_some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} runs ({names[0]}, …)"
