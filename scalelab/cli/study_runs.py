"""Print the runs of a study (`tune`, `ablate`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.cli.parser import align_columns
from scalelab.sweep import status
from scalelab.sweep.live import LiveTrial


def describe_trials(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a table of runs, also while they train."""
    texts = [{**row, "status": LiveTrial(dict(row)).status_text} for row in rows]
    columns = ("name", "status", "step", "steps", "val_loss")
    cells = [["-" if row.get(key) is None else str(row[key]) for key in columns] for row in texts]
    return [*align_columns([columns, *cells]), status.describe_verdicts([row["status"] for row in rows])]
