"""`scalelab fit … --accuracy`: a ladder from N and D over a task's loss to its accuracy, with one joint interval."""

import dataclasses
from typing import Any

from scalelab import api
from scalelab.api.laws.ladder import LAST_CHECKPOINTS, READ_LAW, LadderTable
from scalelab.cli.parser import align_columns
from scalelab.commands.fit import text
from scalelab.commands.fit.options import finished_words
from scalelab.laws.read.columns import known_fields, parse_columns
from scalelab.laws.use.ladder import Ladder, LadderPrediction


def run_ladder(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit both steps, predict and score: (lines for a person, the JSON object). BadInput if options contradict."""
    study = api.fit_accuracy(
        options.sources,
        parse_columns(options.columns, known_fields(READ_LAW)),
        n_convention=options.n_convention,
        where=options.where,
        cluster=options.cluster or "auto",
        last_checkpoints=LAST_CHECKPOINTS if options.last_checkpoints is None else options.last_checkpoints,
        hold=options.hold,
        objective=options.objective or "huber_log",
        delta=options.delta,
        bootstrap=options.bootstrap,
        seed=options.seed,
        level=0.9 if options.level is None else options.level,
        target_values=options.target_values,
        holdout=options.holdout,
        finished=finished_words(options),
    )
    table, ladder, held, prediction = study.table, study.ladder, study.held_out, study.prediction
    lines = [*table.notes, *_describe(ladder, table)]
    if prediction:
        lines += ["", *_describe_prediction(prediction, ladder.level)]
    if held:
        lines += ["", *_describe_holdout(held, ladder.level)]
    result = _to_json(ladder) | {"sources": options.sources, "n_rows": table.n_rows, "read_as": list(table.notes)}
    result |= {"excluded": list(table.excluded), "holdout": [dataclasses.asdict(each) for each in held]}
    return lines, result | {"prediction": dataclasses.asdict(prediction) if prediction else None}


def _describe(ladder: Ladder, table: LadderTable) -> list[str]:
    intervals = ladder.intervals()
    cells = [
        [name, f"{value:.4g}", f"{intervals[name][0]:.4g} to {intervals[name][1]:.4g}"]
        for name, value in ladder.params().items()
    ]
    lines = [
        f"task loss: {ladder.problems[0].law.equation}",
        f"task accuracy: {ladder.problems[1].law.equation}",
        f"{len(ladder.runs.N)} runs from {table.n_rows} rows; accuracies {ladder.runs.accuracy.min():.3f} to "
        f"{ladder.runs.accuracy.max():.3f}",
        *(
            f"optimum of {step}: {best.certificate.agree} of {best.certificate.starts} starts agree"
            for step, best in zip(("task loss", "accuracy"), ladder.best, strict=True)
        ),
        "",
        *align_columns([["parameter", "value", f"{ladder.level:.0%} interval"], *cells]),
        "",
        f"noise of a run: {ladder.sds[0]:.2%} of the loss, {ladder.sds[1]:.4f} of accuracy at a given loss, correlated "
        f"by {ladder.correlation:.2f}; {len(ladder.noise)} tables simulated with both",
    ]
    if table.excluded:
        lines.append(text.describe_exclusions(table.excluded))
    return [*lines, *(f"WARNING: {doubt}" for doubt in ladder.doubts())]


def _describe_prediction(each: LadderPrediction, level: float) -> list[str]:
    return [
        f"a run of N = {each.N:.4g}, D = {each.D:.4g}:",
        f"  task loss {each.loss[0]:.4f}, {level:.0%} interval {each.loss[1]:.4f} to {each.loss[2]:.4f}",
        f"  accuracy {each.accuracy[0]:.4f}, {level:.0%} interval {each.accuracy[1]:.4f} to {each.accuracy[2]:.4f}, "
        "which holds both steps' errors",
    ]


def _describe_holdout(held: list[LadderPrediction], level: float) -> list[str]:
    rows, inside = [["N", "D", "loss", "predicted", "accuracy", "predicted", "interval", ""]], 0
    for each in held:
        loss, accuracy = each.measured or (float("nan"), float("nan"))
        hit = each.accuracy[1] <= accuracy <= each.accuracy[2]
        inside += hit
        rows.append([
            f"{each.N:.4g}", f"{each.D:.4g}", f"{loss:.4f}", f"{each.loss[0]:.4f}", f"{accuracy:.4f}",
            f"{each.accuracy[0]:.4f}", f"{each.accuracy[1]:.4f} to {each.accuracy[2]:.4f}",
            "inside" if hit else "OUTSIDE",
        ])  # fmt: skip
    summary = f"held out: accuracies of {inside} of {len(held)} runs inside, {level * len(held):.1f} expected"
    return [summary, *align_columns(rows)]


def _to_json(ladder: Ladder) -> dict[str, Any]:
    certificates = [best.certificate.to_json() for best in ladder.best]
    return {
        "laws": [problem.law.equation for problem in ladder.problems],
        "n_runs": len(ladder.runs.N),
        "params": ladder.params(),
        "fixed": {name: value for problem in ladder.problems for name, value in problem.law.held},
        "intervals": {name: list(ends) for name, ends in ladder.intervals().items()},
        "interval_level": ladder.level,
        "certificates": {"loss": certificates[0], "accuracy": certificates[1]},
        "noise": {"loss_sd": ladder.sds[0], "accuracy_sd": ladder.sds[1], "correlation": ladder.correlation},
        "checkpoint_sd": {
            "loss": [None if sd != sd else sd for sd in ladder.runs.loss_sd.tolist()],
            "accuracy": [None if sd != sd else sd for sd in ladder.runs.accuracy_sd.tolist()],
        },
        "resamples": len(ladder.noise),
        "doubts": ladder.doubts(),
    }
