"""`scalelab fit … --next-runs=K`: propose which runs of a grid to do next, and write their config files."""

from typing import Any

from scalelab import api
from scalelab.api.defaults import GRID_OPTION
from scalelab.cli.parser import align_columns
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.next_runs import NextRuns
from scalelab.laws.read.columns import known_fields, parse_columns


def propose_next_runs(options: Any, fitted: Fitted) -> tuple[list[str], Any]:
    """Propose runs: (lines, JSON block). Runs of a config's sweep are written to --configs-out as config files."""
    fields = known_fields(fitted.law)
    proposed = api.propose_runs(
        fitted,
        options.next_runs,
        options.grid,
        options.budget_flops,
        determine=options.determine,
        target_values=options.target_values,
        n_convention=options.n_convention,
        columns=parse_columns(options.columns, fields),
        configs_out=options.configs_out,
        grid_columns=parse_columns(options.grid_columns, fields, GRID_OPTION),
    )
    plan, chosen, files, notes = proposed
    block = plan.to_json() | {"names": chosen, "forks": list(map(str, files)), "read_as": list(notes)}
    lines = _lines(plan, chosen)
    return [*lines[:1], *notes, *lines[1:]] + [f"wrote {path}" for path in files], block


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
