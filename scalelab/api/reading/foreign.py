"""Read runs that other programs trained: import them as run folders, or open them where they lie."""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from scalelab.api.arguments import ANY_PATH, FOLDER, Path, check_arguments
from scalelab.errors import BadInput
from scalelab.foreign import opened, write
from scalelab.record import listing

Counted = Callable[[str, int, int], None]  # called with a run's name, its number, and how many there are


class ForeignRuns(NamedTuple):
    """Runs of another program as run folders of ours.

    `folder`: what to give to `runs`, `fit`, `diagnose` and the others; `runs`: the folder of each run; `lines`: what
    was taken for what; `notes`: what is asked or not known; `left_out`: why other runs could not be read.
    """

    folder: str
    runs: list[str]
    lines: list[str]
    notes: list[str]
    left_out: list[str]


def _uncounted(name: str, number: int, total: int) -> None:
    """Ignore a report."""


@check_arguments(source=ANY_PATH, workdir=FOLDER)
def import_runs(
    source: Path, workdir: Path, *, columns: Mapping[str, str] | None = None, progress: Counted = _uncounted
) -> ForeignRuns:
    """Write the runs of another program as run folders (`scalelab import run`): one as `workdir`, several below it.

    `columns`: {field: column} where names don't tell (`{"N": "124M", "val_loss": "eval/c4/loss"}`). BadInput for a
    source without runs, and for a folder that holds something else.
    """
    return _facts(write.import_source(_path(source), pathlib.Path(workdir), dict(columns or {}), progress))


@check_arguments(source=ANY_PATH)
def open_runs(source: Path, *, columns: Mapping[str, str] | None = None, progress: Counted = _uncounted) -> ForeignRuns:
    """Open runs of another program as `runs`, `fit` and the others do by themselves, and say what was taken for what.

    They are imported once into a cache. A folder of our own runs is returned as it is. BadInput as `import_runs`.
    """
    path = _path(source)
    imported = opened.open_if_foreign(path, columns, report=progress)
    if imported is None:
        return ForeignRuns(str(path), [str(run) for run in listing.run_folders(path)], [], [], [])
    return _facts(imported)


def _path(source: Path) -> pathlib.Path:
    path = pathlib.Path(os.path.expanduser(source))
    if not path.exists():
        raise BadInput(f"no file or folder {str(source)!r}")
    return path


def _facts(made: write.Imported) -> ForeignRuns:
    return ForeignRuns(str(made.folder), [str(run) for run in made.runs], made.lines, made.notes, made.left_out)
