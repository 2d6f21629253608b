"""`scalelab fit … --next=K`: which runs of a grid to do next, and their config files."""

import pathlib
from typing import Any

from scalelab.commands import fittext
from scalelab.errors import BadInput
from scalelab.laws.fit import Fitted
from scalelab.laws.nextruns import Plan, propose
from scalelab.laws.sources import numeric_columns, read_sources
from scalelab.laws.table import fields_of, parse_columns


def run(arguments: Any, fitted: Fitted) -> tuple[list[str], Any]:
    """(lines, JSON block); proposals from a config's sweep are written to --forks as config files."""
    names, columns = _candidates(arguments, fitted)
    plan = propose(
        fitted, columns, arguments.next, arguments.budget_flops, arguments.target, held=arguments.at,
    )  # fmt: skip
    files = _write(arguments, plan) if arguments.grid.endswith(".py") else []
    chosen = [names[proposed.row] for proposed in plan.runs]
    return _lines(plan, chosen) + [f"wrote {path}" for path in files], plan.to_json() | {
        "names": chosen,
        "forks": files,
    }


def _candidates(arguments: Any, fitted: Fitted) -> tuple[list[str], Any]:
    """(names, columns [G]) of the grid: a config's sweep, or a table of N, D and what else the law needs."""
    convention = arguments.n or "total"
    if not pathlib.Path(arguments.grid).is_file():
        raise BadInput(f"--grid={arguments.grid}: no such file; it is a config with sweep(h), or a table of candidates")
    if arguments.grid.endswith(".py"):
        from scalelab.sweep.forks import candidates

        return candidates(arguments.grid, convention)
    named = parse_columns(arguments.columns, fields_of(fitted.law))
    wanted = {field: column for field, column in named.items() if field != fitted.law.target}
    table = read_sources([arguments.grid], fitted.law, wanted, arguments.n, with_target=False)
    return [row["name"] for row in table.rows], numeric_columns(table.rows, convention)


def _write(arguments: Any, plan: Plan) -> list[str]:
    from scalelab.sweep.forks import write

    return write(arguments.forks, arguments.grid, {run.row: _why(plan, i) for i, run in enumerate(plan.runs)})


def _why(plan: Plan, place: int) -> str:
    run = plan.runs[place]
    size = ", ".join(f"{name} = {run.columns[name]:.4g}" for name in ("N", "D") if name in run.columns)
    before = plan.runs[place - 1].sd_after if place else plan.sd_before
    return (
        f"Proposed run {place + 1} of {len(plan.runs)}: {size}, {run.flops:.3g} FLOPs.\n\n"
        f"With it the standard deviation of {_target(plan)} falls from {before:.3g} to {run.sd_after:.3g} (linearised)."
    )


def _target(plan: Plan) -> str:
    kind = {"N": "log of the best N", "loss": "log of the best loss"}.get(plan.target, plan.target)
    return kind + (f" at {plan.at_flops:.3g} FLOPs" if plan.at_flops else "")


def _lines(plan: Plan, names: list[str]) -> list[str]:
    rows = [["", "N", "D", "FLOPs", "sd after"]]
    for name, run in zip(names, plan.runs, strict=True):
        sizes = [f"{run.columns[column]:.4g}" if column in run.columns else "-" for column in ("N", "D")]
        rows.append([name, *sizes, f"{run.flops:.3g}", f"{run.sd_after:.4g}"])
    head = f"next, for the {_target(plan)}: standard deviation {plan.sd_before:.4g} now (linearised)"
    cost = f"together {plan.flops:.3g} FLOPs; the interval shrinks by {1 - plan.sd_after / plan.sd_before:.0%}"
    return ["", head, *fittext.aligned(rows), cost]
