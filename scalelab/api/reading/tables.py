"""Runs and their metrics as rows, for pandas, arrow or plain Python."""

import importlib.util
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from scalelab.api.arguments import RUNS, check_arguments, list_paths, several
from scalelab.errors import BadInput
from scalelab.index.table import read_runs
from scalelab.laws.read.readers import arrow_table
from scalelab.record import listing, records

Source = str | os.PathLike[str]


class Rows(list[dict[str, Any]]):
    """A list of rows, each a dict by column name; a row may lack columns."""

    def columns(self) -> list[str]:
        """The names of all columns, in order of first appearance."""
        return list(dict.fromkeys(name for row in self for name in row))

    def to_arrow(self) -> Any:
        """The rows as a `pyarrow.Table`. A column of mixed types becomes floats if all are numbers, else text."""
        return arrow_table(self)

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`, with types as in `to_arrow`. BadInput if pandas is not installed."""
        if importlib.util.find_spec("pandas") is None:
            raise BadInput("to_pandas() needs a package that is not installed: pip install pandas")
        return self.to_arrow().to_pandas()


@check_arguments(sources=several(RUNS))
def runs(sources: Source | Sequence[Source]) -> Rows:
    """Read a row per run, as `scalelab runs`: of a run's folder, a folder of runs, a pattern (`*`, `**`), or several.

    Columns: name, status, N, D, C, losses, every config value by its key (`optim.peak_lr`), the last value of every
    metric, and scores. BadInput for a folder without runs; a pattern skips matches without runs.
    """
    folders = [pathlib.Path(os.path.expanduser(source)) for source in list_paths(sources)]
    return Rows(row for folder in folders for row in read_runs(folder))


@check_arguments(run=RUNS)
def metrics(run: Source) -> Rows:
    """Read the lines of a run's metrics.jsonl in order: training lines, and evaluations' lines with `val_loss`."""
    folder = pathlib.Path(os.path.expanduser(run))
    if listing.run_folders(folder) != [folder]:
        raise BadInput(f"{str(folder)!r} is a folder of runs: name one of them, e.g. {listing.run_folders(folder)[0]}")
    return Rows(records.read_metrics(folder))
