"""The runs of a command of many steps, as lines."""

import pathlib
from typing import Any

from scalelab.cli.parser import align_columns
from scalelab.sweep import status
from scalelab.sweep.live import LiveTrial


def describe_trials(folder: pathlib.Path) -> tuple[list[str], list[dict[str, Any]]]:
    """A table of the runs in `folder` as lines, and its rows; also while they run."""
    rows = status.read_trial_rows(folder)
    texts = [row | {"status": LiveTrial(row).status_text} for row in rows]
    columns = ("name", "status", "step", "steps", "val_loss")
    cells = [["-" if row.get(key) is None else str(row[key]) for key in columns] for row in texts]
    return [*align_columns([columns, *cells]), status.describe_verdicts([row["status"] for row in rows])], rows
