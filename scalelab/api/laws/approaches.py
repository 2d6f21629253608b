"""Approaches 1 and 2 of `scalelab fit`: how the best N grows with compute, estimated without a law of N and D."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from scalelab.api.arguments import check_arguments, check_value, instance, whole
from scalelab.api.laws.fit_rows import numeric_columns
from scalelab.errors import BadInput
from scalelab.laws.design import design
from scalelab.laws.fits.fitted import INTERVAL_LEVEL
from scalelab.laws.fits.study import N_COLUMNS, Row, default_convention, select_rows
from scalelab.laws.law.names import LAWS
from scalelab.laws.read import units
from scalelab.laws.read.groups import SEED_NAMES
from scalelab.laws.read.table import Table
from scalelab.laws.use.envelope import Envelope, fit_envelope, training_curves
from scalelab.laws.use.isoflop import IsoFlop, fit_isoflop, group_budgets
from scalelab.laws.use.seed_noise import MeasuredNoise, measure_noise
from scalelab.record.records import read_metrics


@dataclasses.dataclass(frozen=True, eq=False)
class ApproachFit:
    """The growth of the best N with C, the numbers of rows and checkpoints, what was left out, what is doubtful.

    `columns`: C, N and loss of the rows; `allocations`: C, N and D of each budget, where C = k N D.
    """

    fit: Envelope | IsoFlop
    n_rows: int
    n_checkpoints: int
    columns: tuple[np.ndarray, np.ndarray, np.ndarray]
    k: float
    allocations: list[dict[str, float]]
    noise: MeasuredNoise | None
    excluded: Sequence[Mapping[str, str]]
    findings: list[design.Finding]


@check_arguments(approach=whole(1))
def fit_approach(
    table: Table,
    approach: Literal[1, 2],
    *,
    n_convention: str | None = None,
    drop_top_loss: int = 0,
    target_flops: float | Sequence[float] = (),
    method: str | None = None,
    cluster: str | None = None,
    seed_noise: bool = False,
    bootstrap: int = 1000,
    seed: int = 0,
    level: float | None = None,
) -> ApproachFit:
    """Fit the best run at each C (1), or IsoFLOP profiles (2), to a table of `read_table` (`scalelab fit --approach`).

    `method`: hull or envelope (1), akima or parabola (2); `cluster`: the column that names runs, for 1; `seed_noise`:
    weigh the budgets of 2 by the noise of seeds. BadInput if no row can be used.
    """
    check_value("table", table, instance("what `scalelab.api.read_table` returns", Table))
    if approach not in (1, 2):
        raise BadInput(f"approach={approach} is not 1 or 2; approach 3 is `scalelab.api.fit`")
    n_convention = n_convention or default_convention(table.rows)
    size = N_COLUMNS[n_convention]
    rows, excluded = select_rows(table.rows, [size, "D", "C", "val_loss"], "val_loss", drop_top_loss)
    if not rows:
        raise NoRows(len(table.rows), excluded)
    columns = tuple(np.array([row[name] for row in rows], float) for name in ("C", size, "val_loss"))
    C, N, loss = columns
    noise, count = None, len(rows)
    if approach == 1:
        fit: Envelope | IsoFlop
        fit, count = _fit_envelope(rows, size, n_convention, method, cluster, bootstrap, seed)
    else:
        noise = _measure_noise(rows, C, N, loss, bootstrap) if seed_noise else None
        extra: dict[str, Any] = {"resamples": bootstrap, "level": level or INTERVAL_LEVEL} if noise else {}
        fit = fit_isoflop(C, N, loss, method or "akima", noise, seed=seed, **extra)
    k = float(np.median([row["C"] / (row[size] * row["D"]) for row in rows]))
    budgets = [target_flops] if isinstance(target_flops, int | float) else list(target_flops)
    return ApproachFit(
        fit,
        len(rows),
        count,
        (C, N, loss),
        k,
        [_allocate(fit, budget, k) for budget in budgets],
        noise,
        excluded,
        [*units.question_labels(table.columns), *_find(approach, rows, size)],
    )


class NoRows(BadInput):
    """The refusal of a table without a usable row; `excluded` says why rows were left out."""

    def __init__(self, n_rows: int, excluded: Sequence[Mapping[str, str]]) -> None:
        reasons = "; ".join(dict.fromkeys(entry["reason"] for entry in excluded))
        super().__init__(f"none of {n_rows} rows can be used: {reasons}")
        self.n_rows, self.excluded = n_rows, excluded


def _find(approach: int, rows: Sequence[Row], size: str) -> list[design.Finding]:
    """Warnings: doubts about units, and weaknesses of an IsoFLOP grid (approach 2 only)."""
    N, D, C, loss = (np.array([row[name] for row in rows], float) for name in (size, "D", "C", "val_loss"))
    questions = units.question_values({"N": N, "D": D}, loss, "loss", C)
    if approach == 1:
        return questions
    return [*questions, *design.row_findings(LAWS["chinchilla"], {"N": N, "D": D}, loss, C)]


def _fit_envelope(
    rows: Sequence[Row],
    size: str,
    n_convention: str,
    method: str | None,
    cluster: str | None,
    bootstrap: int,
    seed: int,
) -> tuple[Envelope, int]:
    """Fit the lower envelope of training curves, from run folders or a table whose column `cluster` names the run."""
    folders = [row for row in rows if "folder" in row and pathlib.Path(row["folder"]).is_dir()]
    if len(folders) == len(rows):
        checkpoints = training_curves(({**row, "N": row[size]}, read_metrics(row["folder"])) for row in rows)
    else:
        columns = numeric_columns(rows, n_convention)
        if not cluster or any(cluster not in row for row in rows):
            raise BadInput(
                "--approach=1 follows each run through training: --cluster=COLUMN must name the run of a row"
            )
        checkpoints = {name: columns[name] for name in ("C", "N", "D", "loss")}
        checkpoints["run"] = np.array([str(row[cluster]) for row in rows])
    run, C, N, D, loss = (checkpoints[name] for name in ("run", "C", "N", "D", "loss"))
    return fit_envelope(run, C, N, D, loss, method or "hull", bootstrap, seed=seed), len(C)


def _measure_noise(
    rows: Sequence[Row], C: np.ndarray, N: np.ndarray, loss: np.ndarray, bootstrap: int
) -> MeasuredNoise:
    """Measure one run's noise from the rows of the table."""
    if bootstrap < 1:
        raise BadInput("--seed-noise draws noisy copies, and --bootstrap=0 gives none: ask for copies; 1000 is usual")
    name = next((name for name in SEED_NAMES if all(name in row for row in rows)), None)
    return measure_noise(group_budgets(C), N, loss, [str(row[name]) for row in rows] if name else None)


def _allocate(fit: Envelope | IsoFlop, C: float, k: float) -> dict[str, float]:
    if not (np.isfinite(C) and C > 0):
        raise BadInput(f"C = {C:g}: a budget is a positive number of FLOPs")
    N = float(fit.n_opt(C)) if isinstance(fit, IsoFlop) else fit.N_coefficient * C**fit.a
    return {"C": C, "N": N, "D": C / (k * N)}
