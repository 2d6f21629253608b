"""The runs of a ladder to accuracy, from tables and folders of runs (`laws/use/ladder.py`)."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.api.arguments import FIT_OPTIONS, NAMES, STORED, check_arguments, check_options, several
from scalelab.api.laws.fit_rows import read_sources
from scalelab.laws.fits.study import study_table
from scalelab.laws.read.groups import choose_groups
from scalelab.laws.use.ladder import TASK_LOSS, Ladder, LadderRuns, fit_ladder, gather_runs

LAST_CHECKPOINTS = 5
READ_LAW = dataclasses.replace(TASK_LOSS, columns=("N", "D", "accuracy"))  # names the columns that are read


class LadderTable(NamedTuple):
    """A ladder's runs, how many rows they come from, and what was chosen or left out, as lines."""

    runs: LadderRuns
    n_rows: int
    notes: tuple[str, ...]
    excluded: tuple[dict[str, str], ...]


def read_ladder(
    sources: Sequence[str], columns: Mapping[str, str] | None = None, *, n_convention: str | None = None,
    where: Sequence[str] = (), cluster: str = "auto", last: int = LAST_CHECKPOINTS,
) -> LadderTable:  # fmt: skip
    """Read N, D, task loss and accuracy; rows of one run whose D differ are its checkpoints. BadInput as the command.

    `cluster`: the column that names runs, "auto" (found by name or structure) or "none" (every row is a run); `last`:
    checkpoints of a run whose scatter is measured.
    """
    table = read_sources(sources, READ_LAW, columns, n_convention, where)
    fields, kept, excluded = study_table(table.rows, READ_LAW, n_convention or "total", 0)
    cells = {key: [row.get(key) for row in kept] for key in kept[0]} | fields
    groups = choose_groups(cells, TASK_LOSS, cluster)
    notes = list(table.notes)
    labels = None
    if groups and _are_checkpoints(groups.labels, fields["D"]):
        labels = groups.labels
        notes.append(
            f"{groups.column}: {len(set(labels))} runs; the last row of each counts, the last {last} tell noise"
        )
    runs = gather_runs(fields["N"], fields["D"], fields["loss"], fields["accuracy"], labels, last)
    return LadderTable(runs, len(kept), tuple(notes), tuple(excluded))


@check_arguments(sources=several(STORED), columns=NAMES)
def fit_accuracy(sources: str | Sequence[str], columns: Mapping[str, str] | None = None, **options: Any) -> Ladder:
    """Fit a ladder to accuracy (`scalelab fit --accuracy`); `options` are those of `laws.use.ladder.fit_ladder`."""
    options = check_options(options, fit_ladder, FIT_OPTIONS)
    given = [os.fspath(each) for each in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    return fit_ladder(read_ladder(given, columns).runs, **options)


def _are_checkpoints(labels: Sequence[str], D: np.ndarray) -> bool:
    """Whether in some group the tokens differ: else groups are seeds of a setting, each of which is a run."""
    return any(len({D[row] for row in range(len(D)) if labels[row] == name}) > 1 for name in set(labels))
