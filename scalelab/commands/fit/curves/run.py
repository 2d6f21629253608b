"""`scalelab fit RUN… --law=annealing`: fit a law of the loss within a run, and predict other schedules' curves."""

from typing import Any

from scalelab import api
from scalelab.api.laws import curves as curves_lib
from scalelab.commands.fit.curves import text
from scalelab.laws.curves.best_schedule import BestSchedule
from scalelab.laws.curves.fit import FittedCurves, Prediction
from scalelab.laws.read.columns import parse_columns


def run_curve_fit(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit and predict: (lines for a person, the JSON object). BadInput if sources or options contradict."""
    columns = parse_columns(options.columns, curves_lib.FIELDS)
    study = api.predict_curves(
        options.sources,
        options.law,
        columns=columns,
        predict_run=options.predict_run,
        schedule_of=options.schedule_of,
        best_schedule=options.best_schedule,
        objective=options.objective or "huber_log",
        delta=options.delta,
        bootstrap=options.bootstrap,
        seed=options.seed,
        level=options.level or 0.9,
    )
    fitted, predictions, notes = study.fitted, study.predictions, study.notes
    lines = [*notes, *text.describe_curves(fitted)]
    lines += [line for prediction in predictions for line in text.describe_prediction(prediction, fitted)]
    result = _to_json(fitted) | {"sources": options.sources, "notes": notes}
    result["predictions"] = [_prediction_json(prediction) for prediction in predictions]
    if study.best:
        lines += text.describe_best(study.best, fitted, options.best_schedule)
        result["best_schedule"] = _best_json(study.best) | {"file": options.best_schedule}
    if options.figures:
        result["figures"] = api.draw_fit(study, options.figures)
        lines += ["", *(f"wrote {path}" for path in result["figures"])]
    return lines, result


def _to_json(fitted: FittedCurves) -> dict[str, Any]:
    errors = fitted.errors
    return {
        "law": fitted.law.name,
        "equation": fitted.law.equation,
        "runs": [{"name": curve.name, "rows": len(curve.steps), "warmup": curve.warmup} for curve in fitted.curves],
        "params": fitted.best.params,
        "intervals": {name: list(ends) for name, ends in fitted.intervals().items()},
        "undetermined": fitted.undetermined(),
        "interval_level": fitted.level,
        "objective": fitted.problem.objective.to_json(fitted.best.value),
        "certificate": fitted.best.certificate.to_json(),
        "resamples": len(next(iter(fitted.samples.values()))),
        "errors": {
            "run_sd": errors.run_sd, "run_dof": errors.dof, "row_sd": errors.row_sd, "correlation": errors.correlation,
        },
        "left_out": [{"runs": list(each.runs), "mae": each.mae, "ratio": each.ratio} for each in fitted.left_out],
        "widening": fitted.widening,
        "baseline": fitted.baseline.params,
    }  # fmt: skip


def _best_json(best: BestSchedule) -> dict[str, Any]:
    places, shares = best.knots
    gains = {name: {"nats": nats, "interval": [low, high]} for name, (nats, low, high) in best.gains.items()}
    return {"places": places.tolist(), "shares": shares.tolist(), "lowest": best.lowest, "fastest": best.fastest,
            "gains": gains}  # fmt: skip


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    arrays = {name: getattr(prediction, name) for name in ("steps", "loss", "low", "high", "baseline", "measured")}
    curve = {name: values.tolist() for name, values in arrays.items() if values is not None}
    return {"name": prediction.name, "final": list(prediction.final), "scores": prediction.scores, "curve": curve}
