"""Approach 3 of `scalelab fit`: fit a law to all rows, and compute the other parts that options ask for."""

import dataclasses
from typing import Any

from scalelab import api
from scalelab.api.defaults import HOLDOUT_DIVISOR
from scalelab.cli.progress import WorkProgress
from scalelab.commands.fit import next_runs, text, trust_text
from scalelab.commands.fit.options import finished_words
from scalelab.errors import BadInput
from scalelab.laws.fits.fitted import INTERVAL_LEVEL, Fitted
from scalelab.laws.read import units
from scalelab.laws.read.columns import known_fields, parse_columns
from scalelab.laws.read.table import Table


def run_law_fit(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit a law and what follows from it: (lines for a person, the JSON object). BadInput if options contradict."""
    if options.target_flops and not options.bootstrap:
        raise BadInput("--target-flops prints intervals, and --bootstrap=0 gives none: ask for resamples")
    if options.next_runs is not None and not (options.grid and options.budget_flops):
        raise BadInput("--next-runs needs --grid=FILE (what can be run) and --budget-flops=C (what it may cost)")
    if options.weights and (options.tournament or options.next_runs is not None):
        other = "--tournament" if options.tournament else "--next-runs"
        raise BadInput(f"--weights has no effect with {other}: leave one out")
    law = api.load_law(options.law or "chinchilla", options.hold, options.size)
    table = api.read_table(
        options.sources,
        law,
        columns=parse_columns(options.columns, known_fields(law)),
        n_convention=options.n_convention,
        where=options.where,
        finished=finished_words(options),
    )
    with WorkProgress() as bars, text.tell_reading(table.notes):
        fitted = api.fit(
            table,
            law,
            n_convention=options.n_convention,
            drop_top_loss=options.drop_top_loss,
            cluster=options.cluster or "auto",
            checkpoints=options.checkpoints or "auto",
            objective=options.objective or law.objective,
            delta=options.delta,
            weights=options.weights,
            bootstrap=options.bootstrap,
            seed=options.seed,
            target_flops=() if law.columns == ("C",) else options.target_flops,
            holdout=options.holdout or 0,
            level=options.level or INTERVAL_LEVEL,
            target_values=options.target_values,
            progress=bars.update,
        )
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
        parts["next"] = next_runs.propose_next_runs(options, fitted)
    if options.figures:
        paths = api.draw_fit(fitted, options.figures, options.target_values)
        parts["figures"] = (["", *(f"wrote {path}" for path in paths)], paths)
    return parts


def _predictions(options: Any, fitted: Fitted) -> tuple[list[str], Any]:
    """Predict the loss of a run at each budget by a law of C alone, which can't split a budget into N and D."""
    if not all(0 < C < float("inf") for C in options.target_flops):
        raise BadInput(f"--target-flops={options.target_flops}: a budget is a positive number of FLOPs")
    predictions = {f"{C:g}": each for C, each in api.predict(fitted, options.target_flops).items()}
    block = {C: dataclasses.asdict(prediction) for C, prediction in predictions.items()}
    return text.describe_predictions(predictions, fitted), block


def _tournament(options: Any, fitted: Fitted) -> tuple[list[str], Any]:
    count = options.holdout or max(1, len(fitted.kept) // HOLDOUT_DIVISOR)
    with WorkProgress() as bars:
        entries = api.tournament(
            fitted,
            count,
            objective=options.objective or fitted.law.objective,
            delta=options.delta,
            bootstrap=options.bootstrap,
            n_convention=options.n_convention,
            progress=bars.update,
        )
    return trust_text.describe_tournament(entries, count), [entry.to_json() for entry in entries]
