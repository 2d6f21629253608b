"""Approach 3 of `scalelab fit`: fit a law to all rows, and compute what the options ask for from it."""

import dataclasses
from typing import Any

from scalelab.api.laws.fit_rows import numeric_columns, read_sources
from scalelab.cli.progress import WorkProgress
from scalelab.commands.fit import text, trust_text
from scalelab.errors import BadInput
from scalelab.laws.fits.fitted import INTERVAL_LEVEL, Fitted
from scalelab.laws.fits.study import fit_study
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.names import LAWS, load_law
from scalelab.laws.read import units
from scalelab.laws.read.columns import known_fields, parse_columns
from scalelab.laws.read.table import Table
from scalelab.laws.trust.uncertainty import predict_run

HOLDOUT_DIVISOR = 5  # a tournament without --holdout holds out a fifth of the rows


def run_law_fit(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit a law and what follows from it: (lines for a person, the JSON object). BadInput if options contradict."""
    if options.target_flops and not options.bootstrap:
        raise BadInput("--target-flops prints intervals, and --bootstrap=0 gives none: ask for resamples")
    if options.next_runs is not None and not (options.grid and options.budget_flops):
        raise BadInput("--next-runs needs --grid=FILE (what can be run) and --budget-flops=C (what it may cost)")
    law = law_lib.hold_params(load_law(options.law or "chinchilla"), **(options.hold or {}))
    columns = parse_columns(options.columns, known_fields(law))
    table = read_sources(options.sources, law, columns, options.n_convention, options.where)
    with WorkProgress() as bars, text.tell_reading(table.notes):
        fitted = fit_study(
            table.rows, law, options.n_convention or "total", options.drop_top_loss, options.cluster or "auto",
            objective=options.objective or "huber_log", delta=options.delta, bootstrap=options.bootstrap,
            seed=options.seed, target_flops=() if law.columns == ("C",) else options.target_flops,
            holdout=options.holdout or 0, level=options.level or INTERVAL_LEVEL, held=options.target_values,
            progress=bars.update,
        )  # fmt: skip
    findings = (*units.question_labels(table.columns), *fitted.design)
    fitted = dataclasses.replace(fitted, n_convention=table.n_convention, design=findings)
    lines = text.describe_fit(fitted, table, options.where)
    facts = {"sources": options.sources, "derived": table.derived, "left_out_by_where": table.left_out}
    facts |= {"columns": dict(table.columns), "read_as": list(table.notes)}
    # The `rows` of design and holdout are indices into these names.
    names = {"row_names": [str(row.get("name", "")) for row in fitted.kept]}
    result = facts | fitted.to_json() | names
    for part, (part_lines, block) in _more(options, fitted, table).items():
        lines += part_lines
        result[part] = block
    return lines, result


def _more(options: Any, fitted: Fitted, table: Table) -> dict[str, tuple[list[str], Any]]:
    """Compute the parts asked for beyond the fit: {JSON key: (lines, block)}."""
    parts = {}
    if options.target_flops and fitted.law.columns == ("C",):
        parts["predictions"] = _predictions(options, fitted)
    if options.tournament:
        parts["tournament"] = _tournament(options, fitted)
    if options.next_runs is not None:
        from scalelab.commands.fit import next_runs  # here: it brings the model, a fifth of a second

        parts["next"] = next_runs.propose_next_runs(options, fitted)
    if options.figures:
        from scalelab.report.figures.fitplots import write_fit_figures

        paths = write_fit_figures(options.figures, fitted, options.target_values or {})
        parts["figures"] = (["", *(f"wrote {path}" for path in paths)], paths)
    return parts


def _predictions(options: Any, fitted: Fitted) -> tuple[list[str], Any]:
    """Predict what a run of each budget reaches, by a law of C alone (which can't split a budget into N and D)."""
    if not all(0 < C < float("inf") for C in options.target_flops):
        raise BadInput(f"--target-flops={options.target_flops}: a budget is a positive number of FLOPs")
    assert fitted.bootstrap  # run_law_fit has refused targets without resamples
    predictions = {
        f"{C:g}": predict_run(fitted.problem, fitted.best, fitted.bootstrap, {"C": C}, fitted.level)
        for C in options.target_flops
    }
    block = {C: dataclasses.asdict(prediction) for C, prediction in predictions.items()}
    return text.describe_predictions(predictions, fitted), block


def _tournament(options: Any, fitted: Fitted) -> tuple[list[str], Any]:
    from scalelab.laws.trust.holdout import SCORE_RESAMPLES
    from scalelab.laws.trust.tournament import run_tournament

    table = numeric_columns(fitted.kept, options.n_convention or "total")
    columns = set(table) | ({"C", "M"} if {"N", "D"} <= set(table) else set())
    laws = [law for law in LAWS.values() if law.target == fitted.law.target and set(law.columns) <= columns]
    laws += [fitted.law] if fitted.law not in laws else []
    count = options.holdout or max(1, len(fitted.kept) // HOLDOUT_DIVISOR)
    with WorkProgress() as bars:
        entries = run_tournament(
            table, laws, count, options.objective or "huber_log", options.delta,
            fitted.dependence.labels if fitted.dependence else None, min(options.bootstrap, SCORE_RESAMPLES),
            fitted.level, bars.update,
        )  # fmt: skip
    return trust_text.describe_tournament(entries, count), [entry.to_json() for entry in entries]
