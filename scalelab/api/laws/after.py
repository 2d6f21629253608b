"""Use a fit: predictions, a tournament of laws, the next runs, figures."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.api.arguments import FOLDER, NUMBER, POSITIVE, Path, check_arguments, check_value, instance
from scalelab.api.defaults import GRID_OPTION, HOLDOUT_DIVISOR
from scalelab.api.laws.approaches import ApproachFit
from scalelab.api.laws.curves import CurveStudy
from scalelab.api.laws.fit_rows import numeric_columns, read_sources
from scalelab.api.laws.fits import Counted, list_budgets
from scalelab.api.laws.settings import ReadSettings
from scalelab.errors import BadInput
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.fits.study import default_convention
from scalelab.laws.law.names import LAWS
from scalelab.laws.next_runs import NextRuns, ProposedRun
from scalelab.laws.next_runs import propose_runs as propose
from scalelab.laws.read.columns import split_conversion
from scalelab.laws.read.readers import column_names
from scalelab.laws.trust.holdout import SCORE_RESAMPLES
from scalelab.laws.trust.tournament import TournamentEntry, run_tournament
from scalelab.laws.trust.uncertainty import Prediction, predict_run
from scalelab.laws.use.isoflop import IsoFlop
from scalelab.sweep.trials import load_trials


def _check_fitted(fitted: object) -> None:
    check_value("fitted", fitted, instance("a fit, as `scalelab.api.fit` returns it", Fitted))


@check_arguments()
def predict(fitted: Fitted, target_flops: float | Sequence[float]) -> dict[float, Prediction]:
    """Predict the loss of a run at each budget by a law of C alone, with intervals (`scalelab fit --target-flops`)."""
    _check_fitted(fitted)
    if fitted.bootstrap is None or fitted.law.columns != ("C",):
        raise BadInput("predict is for a law of C alone, fitted with resamples; others have `fitted.decisions`")
    return {
        C: predict_run(fitted.problem, fitted.best, fitted.bootstrap, {"C": C}, fitted.level)
        for C in list_budgets(target_flops)
    }


@check_arguments()
def tournament(
    fitted: Fitted,
    holdout: int = 0,
    *,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = 1000,
    n_convention: str | None = None,
    progress: Counted | None = None,
) -> tuple[TournamentEntry, ...]:
    """Let every law that has its columns predict the `holdout` largest rows of a fit (`scalelab fit --tournament`)."""
    _check_fitted(fitted)
    table = numeric_columns(fitted.kept, n_convention or default_convention(fitted.kept))
    columns = set(table) | ({"C", "M"} if {"N", "D"} <= set(table) else set())
    laws = [law for law in LAWS.values() if law.target == fitted.law.target and set(law.columns) <= columns]
    laws += [fitted.law] if fitted.law not in laws else []
    count = holdout or max(1, len(fitted.kept) // HOLDOUT_DIVISOR)
    labels = fitted.dependence.labels if fitted.dependence else None
    resamples = min(bootstrap, SCORE_RESAMPLES)
    return run_tournament(table, laws, count, objective, delta, labels, resamples, fitted.level, progress)


class Proposed(NamedTuple):
    """The runs of a grid that narrow a fit most: names, the config files written, notes on the reading."""

    plan: NextRuns
    names: list[str]
    files: list[pathlib.Path]
    notes: tuple[str, ...]


@check_arguments(next_runs=NUMBER, budget_flops=POSITIVE, configs_out=FOLDER)
def propose_runs(
    fitted: Fitted,
    next_runs: int,
    grid: Path,
    budget_flops: float,
    *,
    determine: str = "N",
    target_values: Mapping[str, float] | None = None,
    n_convention: str | None = None,
    columns: Mapping[str, str] | None = None,
    grid_columns: Mapping[str, str] | None = None,
    configs_out: Path = "next",
) -> Proposed:
    """Propose which runs of a grid to do next (`scalelab fit --next-runs`).

    `grid`: a config with sweep(h), whose proposed runs are written to `configs_out`, or a table of candidates, with
    `grid_columns`; `determine`: N, loss or a parameter.
    """
    from scalelab.sweep.forks import candidate_columns, write_forks

    _check_fitted(fitted)
    file, convention = os.fspath(grid), n_convention or default_convention(fitted.kept)
    if not pathlib.Path(file).is_file():
        raise BadInput(f"--grid={file}: no such file; it is a config with sweep(h), or a table of candidates")
    trials = load_trials(file, {}) if file.endswith(".py") else {}
    if trials and grid_columns:
        raise BadInput(f"{GRID_OPTION} names columns of a table, and --grid={file} is a config: leave it out")
    names, candidates, notes = (
        (list(trials), candidate_columns(trials, convention), ())
        if trials
        else _read_grid(fitted, file, columns or {}, grid_columns or {}, n_convention)
    )
    plan = propose(fitted, candidates, next_runs, budget_flops, determine, held=target_values)
    chosen = [names[proposed.row] for proposed in plan.runs]
    titles = {name: _title(run) for name, run in zip(chosen, plan.runs, strict=True) if trials}
    files = write_forks(configs_out, file, {name: trials[name] for name in chosen}, titles) if trials else []
    return Proposed(plan, chosen, files, notes)


def _title(run: ProposedRun) -> str:
    return f"Proposed by a fit: N = {run.columns['N']:.4g}, D = {run.columns['D']:.4g} tokens, {run.flops:.3g} FLOPs."


def _read_grid(
    fitted: Fitted, grid: str, columns: Mapping[str, str], grid_columns: Mapping[str, str], n_convention: str | None
) -> tuple[list[str], Any, tuple[str, ...]]:
    """Read a table of candidates: (names, columns [G] with N, D and the law's other fields, notes on the reading).

    Columns are named by `grid_columns`, else by `columns` if the table has them, else by the usual names.
    """
    header = column_names(grid)
    named = {field: name for field, name in columns.items() if split_conversion(name, header)[0] in header}
    named.pop(fitted.law.target, None)
    named |= grid_columns
    table = read_sources([grid], fitted.law, named, n_convention, with_target=False, option=GRID_OPTION)
    convention = n_convention or default_convention(table.rows)
    return [row["name"] for row in table.rows], numeric_columns(table.rows, convention), table.notes


@check_arguments(figures=FOLDER)
def draw_fit(result: object, figures: Path, target_values: Mapping[str, float] | None = None) -> list[str]:
    """Draw a `fit`, `read_best_settings`, `fit_approach` (2) or `predict_curves` into a folder (`fit --figures`)."""
    folder = pathlib.Path(figures)
    if isinstance(result, Fitted):
        from scalelab.report.figures.fitplots import write_fit_figures

        return [*map(str, write_fit_figures(folder, result, target_values or {}))]
    if isinstance(result, ReadSettings):
        from scalelab.report.figures.lrplots import write_settings_figures

        return [*map(str, write_settings_figures(folder, result.best, result.table))]
    if isinstance(result, CurveStudy):
        from scalelab.report.figures.scheduleplot import write_curve_figure

        return [*map(str, write_curve_figure(folder, result.fitted, result.predictions))]
    if isinstance(result, ApproachFit) and isinstance(result.fit, IsoFlop):
        from scalelab.report.figures.fitplots import write_isoflop_figure

        return [*map(str, write_isoflop_figure(folder, result.fit, *result.columns, "N"))]
    raise BadInput(f"result={str(result)[:60]!r} is not a fit that has figures")
