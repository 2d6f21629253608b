"""The runs of a ladder to accuracy, from tables and folders of runs (`laws/use/ladder.py`)."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.api.arguments import STORED, Path, check_arguments, list_paths, several
from scalelab.api.laws.fit_rows import read_sources
from scalelab.errors import BadInput
from scalelab.laws.fits.study import default_convention, study_table
from scalelab.laws.read.groups import choose_groups
from scalelab.laws.use.ladder import (
    TASK_LOSS,
    Ladder,
    LadderPrediction,
    LadderRuns,
    fit_ladder,
    gather_runs,
    hold_out_ladder,
)

LAST_CHECKPOINTS = 5
READ_LAW = dataclasses.replace(TASK_LOSS, columns=("N", "D", "accuracy"))  # names the columns that are read


class LadderTable(NamedTuple):
    """A ladder's runs, the number of their rows, and lines on what was chosen or left out."""

    runs: LadderRuns
    n_rows: int
    notes: tuple[str, ...]
    excluded: tuple[dict[str, str], ...]


def read_ladder(
    sources: Sequence[str],
    columns: Mapping[str, str] | None = None,
    *,
    n_convention: str | None = None,
    where: Sequence[str] = (),
    cluster: str = "auto",
    last: int = LAST_CHECKPOINTS,
    finished: Sequence[str] = (),
) -> LadderTable:
    """Read N, D, task loss and accuracy; rows of one run whose D differ are its checkpoints. BadInput as the command.

    `cluster`: the column that names runs, "auto" (found by name or structure) or "none" (every row is a run); `last`:
    checkpoints of a run whose scatter is measured.
    """
    table = read_sources(sources, READ_LAW, columns, n_convention, where, finished=finished)
    fields, selected, excluded = study_table(table.rows, READ_LAW, n_convention or default_convention(table.rows), 0)
    cells = {key: [row.get(key) for row in selected] for key in selected[0]} | fields
    groups = choose_groups(cells, TASK_LOSS, cluster)
    notes = list(table.notes)
    labels = None
    if groups and _are_checkpoints(groups.labels, fields["D"]):
        labels = groups.labels
        notes.append(
            f"{groups.column}: {len(set(labels))} runs; the last row of each counts, the last {last} tell noise"
        )
    runs = gather_runs(fields["N"], fields["D"], fields["loss"], fields["accuracy"], labels, last)
    return LadderTable(runs, len(selected), tuple(notes), tuple(excluded))


@dataclasses.dataclass(frozen=True, eq=False)
class AccuracyStudy:
    """A fitted ladder to accuracy: its runs, predictions of the held-out runs, and of the run that was asked for."""

    ladder: Ladder
    table: LadderTable
    held_out: list[LadderPrediction]
    prediction: LadderPrediction | None


@check_arguments(sources=several(STORED))
def fit_accuracy(
    sources: Path | Sequence[Path],
    columns: Mapping[str, str] | None = None,
    *,
    n_convention: str | None = None,
    where: str | Sequence[str] = (),
    cluster: str = "auto",
    last_checkpoints: int = LAST_CHECKPOINTS,
    hold: Mapping[str, float] | None = None,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    level: float = 0.9,
    target_values: Mapping[str, float] | None = None,
    holdout: int | None = None,
    finished: str | Sequence[str] = (),
) -> AccuracyStudy:
    """Fit a ladder to accuracy (`scalelab fit --accuracy`), predict a run of N and D, score the `holdout` largest."""
    target = target_values or {}
    if target and set(target) != {"N", "D"}:
        raise BadInput(
            "--target-values: a ladder predicts a run of N parameters and D tokens: --target-values=N=7e9,D=4e12"
        )
    if not all(0 < value < float("inf") for value in target.values()):
        raise BadInput("--target-values: N and D are positive numbers")
    table = read_ladder(
        [os.fspath(each) for each in list_paths(sources)],
        columns,
        n_convention=n_convention,
        where=list(where),
        cluster=cluster,
        last=last_checkpoints,
        finished=[finished] if isinstance(finished, str) else list(finished),
    )
    ladder = functools.partial(
        fit_ladder, hold=hold, objective=objective, delta=delta, bootstrap=bootstrap, seed=seed, level=level
    )
    held = [] if holdout is None else hold_out_ladder(table.runs, holdout, **ladder.keywords)
    fitted = ladder(table.runs)
    return AccuracyStudy(fitted, table, held, fitted.predict(target["N"], target["D"]) if target else None)


def _are_checkpoints(labels: Sequence[str], D: np.ndarray) -> bool:
    """Whether a group's rows are checkpoints: their tokens differ. Otherwise they are seeds, each a run."""
    return any(len({D[row] for row in range(len(D)) if labels[row] == name}) > 1 for name in set(labels))
