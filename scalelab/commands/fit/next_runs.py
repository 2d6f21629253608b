"""`scalelab fit … --next-runs=K`: propose which runs of a grid to do next, and write their config files."""

import pathlib
from typing import Any

import numpy as np

from scalelab.api.laws.fit_rows import numeric_columns, read_sources
from scalelab.cli.parser import align_columns
from scalelab.errors import BadInput
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.next_runs import NextRuns, ProposedRun, propose_runs
from scalelab.laws.read.columns import known_fields, parse_columns, split_conversion
from scalelab.laws.read.readers import column_names
from scalelab.sweep.forks import candidate_columns, write_forks
from scalelab.sweep.trials import load_trials

GRID_OPTION = "--grid-columns"


def propose_next_runs(options: Any, fitted: Fitted) -> tuple[list[str], Any]:
    """Propose runs: (lines, JSON block). Runs of a config's sweep are written to --configs-out as config files."""
    grid, held, convention = options.grid, options.target_values, options.n_convention or "total"
    if not pathlib.Path(grid).is_file():
        raise BadInput(f"--grid={grid}: no such file; it is a config with sweep(h), or a table of candidates")
    trials = load_trials(grid, {}) if grid.endswith(".py") else {}
    if trials and options.grid_columns:
        raise BadInput(f"{GRID_OPTION} names columns of a table, and --grid={grid} is a config: leave it out")
    names, columns, notes = (
        (list(trials), candidate_columns(trials, convention), ()) if trials else _table(options, fitted)
    )
    plan = propose_runs(fitted, columns, options.next_runs, options.budget_flops, options.determine, held=held)
    chosen = [names[proposed.row] for proposed in plan.runs]
    titles = dict(zip(chosen, map(_title, plan.runs), strict=True))
    files = write_forks(options.configs_out, grid, {name: trials[name] for name in chosen}, titles) if trials else []
    block = plan.to_json() | {"names": chosen, "forks": list(map(str, files)), "read_as": list(notes)}
    lines = _lines(plan, chosen)
    return [*lines[:1], *notes, *lines[1:]] + [f"wrote {path}" for path in files], block


def _table(options: Any, fitted: Fitted) -> tuple[list[str], dict[str, np.ndarray], tuple[str, ...]]:
    """Read a table of candidates: (names, columns [G] with N, D and the law's other fields, notes on the reading).

    Its columns are those of --grid-columns, then those of --columns that it has, then those of usual names.
    """
    fields, header = known_fields(fitted.law), column_names(options.grid)
    shared = parse_columns(options.columns, fields)
    named = {field: name for field, name in shared.items() if split_conversion(name, header)[0] in header}
    named.pop(fitted.law.target, None)
    named |= parse_columns(options.grid_columns, fields, GRID_OPTION)
    table = read_sources([options.grid], fitted.law, named, options.n_convention, with_target=False, option=GRID_OPTION)
    names = [row["name"] for row in table.rows]
    return names, numeric_columns(table.rows, options.n_convention or "total"), table.notes


def _title(run: ProposedRun) -> str:
    return f"Proposed by a fit: N = {run.columns['N']:.4g}, D = {run.columns['D']:.4g} tokens, {run.flops:.3g} FLOPs."


def _target(plan: NextRuns) -> str:
    kind = {"N": "log of the best N", "loss": "log of the best loss"}.get(plan.target, plan.target)
    return kind + (f" at {plan.at_flops:.3g} FLOPs" if plan.at_flops else "")


def _lines(plan: NextRuns, names: list[str]) -> list[str]:
    rows = [["", "N", "D", "FLOPs", "sd after"]]
    for name, run in zip(names, plan.runs, strict=True):
        sizes = [f"{run.columns[column]:.4g}" if column in run.columns else "-" for column in ("N", "D")]
        rows.append([name, *sizes, f"{run.flops:.3g}", f"{run.sd_after:.4g}"])
    head = f"next, for the {_target(plan)}: standard deviation {plan.sd_before:.4g} now (linearised)"
    cost = f"together {plan.flops:.3g} FLOPs; the interval shrinks by {1 - plan.sd_after / plan.sd_before:.0%}"
    return ["", head, *align_columns(rows), cost]
