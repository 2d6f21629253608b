"""Approach 3 of `scalelab fit`: a law fitted to all rows, and everything that was asked to follow from it."""

import dataclasses
from typing import Any

from scalelab.commands.fit import next_runs, text
from scalelab.commands.fit.rows import numeric_columns, read_sources
from scalelab.errors import BadInput
from scalelab.laws.fit import INTERVAL_LEVEL, Fitted
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.names import LAWS, load_law
from scalelab.laws.read.study import fit_study
from scalelab.laws.read.table import Table, known_fields, parse_columns
from scalelab.laws.trust.uncertainty import predict_run

HOLDOUT_DIVISOR = 5  # a tournament without --holdout holds out a fifth of the rows


def run_law_fit(arguments: Any) -> tuple[list[str], dict[str, Any]]:
    """(lines for a person, the JSON object)."""
    if arguments.target_flops and not arguments.bootstrap:
        raise BadInput("--target-flops gives intervals, and --bootstrap=0 leaves none: ask for resamples")
    if arguments.next_runs is not None and not (arguments.grid and arguments.budget_flops):
        raise BadInput("--next-runs needs --grid=FILE (what can be run) and --budget-flops=C (what it may cost)")
    law = law_lib.hold_params(load_law(arguments.law or "chinchilla"), **(arguments.hold or {}))
    columns = parse_columns(arguments.columns, known_fields(law))
    table = read_sources(arguments.sources, law, columns, arguments.n, arguments.where)
    fitted = fit_study(
        table.rows, law, arguments.n or "total", arguments.drop_top_loss, arguments.cluster,
        objective=arguments.objective or "huber_log", delta=arguments.delta, bootstrap=arguments.bootstrap,
        seed=arguments.seed, target_flops=() if law.columns == ("C",) else arguments.target_flops, holdout=arguments.holdout or 0,
        level=arguments.level or INTERVAL_LEVEL, held=arguments.target_values,
    )  # fmt: skip
    fitted = dataclasses.replace(fitted, n_convention=table.n_convention)
    lines = text.describe_fit(fitted, table, arguments.where)
    read = {"sources": arguments.sources, "derived": table.derived, "left_out_by_where": table.left_out}
    # What `rows` of design and holdout count in.
    names = {"row_names": [str(row.get("name", "")) for row in fitted.kept]}
    result = read | fitted.to_json() | names
    for part, (said, block) in _more(arguments, fitted, table).items():
        lines += said
        result[part] = block
    return lines, result


def _more(arguments: Any, fitted: Fitted, table: Table) -> dict[str, tuple[list[str], Any]]:
    """What was asked for beyond the fit: {JSON key: (lines, block)}."""
    parts = {}
    if arguments.target_flops and fitted.law.columns == ("C",):
        parts["predictions"] = _predictions(arguments, fitted)
    if arguments.tournament:
        parts["tournament"] = _tournament(arguments, fitted)
    if arguments.next_runs is not None:
        parts["next"] = next_runs.propose_next_runs(arguments, fitted)
    if arguments.plot:
        from scalelab.report.figures.fitplots import write_fit_figures

        paths = write_fit_figures(arguments.plot, fitted, arguments.target_values or {})
        parts["figures"] = (["", *(f"wrote {path}" for path in paths)], paths)
    return parts


def _predictions(arguments: Any, fitted: Fitted) -> tuple[list[str], Any]:
    """A law of C alone splits no budget, but it says what a run of that budget reaches."""
    if not all(0 < C < float("inf") for C in arguments.target_flops):
        raise BadInput(f"--target-flops={arguments.target_flops}: a budget is a positive number of FLOPs")
    assert fitted.bootstrap  # run() has refused targets without resamples
    found = {
        f"{C:g}": predict_run(fitted.problem, fitted.best, fitted.bootstrap, {"C": C}, fitted.level)
        for C in arguments.target_flops
    }
    return text.describe_predictions(found, fitted), {C: dataclasses.asdict(each) for C, each in found.items()}


def _tournament(arguments: Any, fitted: Fitted) -> tuple[list[str], Any]:
    from scalelab.laws.trust.tournament import run_tournament

    table = numeric_columns(fitted.kept, arguments.n or "total")
    known = set(table) | ({"C", "M"} if {"N", "D"} <= set(table) else set())
    laws = [law for law in LAWS.values() if law.target == fitted.law.target and set(law.columns) <= known]
    laws += [fitted.law] if fitted.law not in laws else []
    count = arguments.holdout or max(1, len(fitted.kept) // HOLDOUT_DIVISOR)
    entries = run_tournament(table, laws, count, arguments.objective or "huber_log", arguments.delta)
    return text.describe_tournament(entries, count), [entry.to_json() for entry in entries]
