"""`scalelab fit RUN… --law=annealing`: fit a law of the loss within a run, and predict other schedules' curves."""

import pathlib
from typing import Any

from scalelab.api.laws import curves as curves_lib
from scalelab.commands.fit.curves import text
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.curves.curve import Curve
from scalelab.laws.curves.fit import MOST_RESAMPLES, FittedCurves, Prediction, fit_curves
from scalelab.laws.read.columns import parse_columns


def run_curve_fit(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit and predict: (lines for a person, the JSON object). BadInput if sources or options contradict."""
    columns = parse_columns(options.columns, curves_lib.FIELDS)
    curves, notes = curves_lib.read_curves(options.sources, columns)
    fitted_curves, held_out = _split(curves, options.predict_run, columns)
    schedules = [_schedule(config) for config in options.schedule_of]
    fitted = fit_curves(
        fitted_curves, options.law, objective=options.objective or "huber_log", delta=options.delta,
        bootstrap=min(options.bootstrap, MOST_RESAMPLES), seed=options.seed, level=options.level or 0.9,
    )  # fmt: skip
    predictions = [fitted.predict(curve, i) for i, curve in enumerate([*held_out, *schedules])]
    lines = [*notes, *text.describe_curves(fitted)]
    lines += [line for prediction in predictions for line in text.describe_prediction(prediction, fitted)]
    result = _to_json(fitted) | {"sources": options.sources, "notes": notes}
    result["predictions"] = [_prediction_json(prediction) for prediction in predictions]
    if options.figures:
        from scalelab.report.figures.scheduleplot import write_curve_figure

        result["figures"] = write_curve_figure(options.figures, fitted, predictions)
        lines += ["", *(f"wrote {path}" for path in result["figures"])]
    return lines, result


def _split(curves: list[Curve], names: list[str], columns: dict[str, str]) -> tuple[list[Curve], list[Curve]]:
    """(curves to fit, curves to predict): a run of the sources that is predicted is not fitted."""
    held_out = []
    for name in names:
        inside = [curve for curve in curves if curve.name == name or _same_folder(curve.name, name)]
        if inside:
            held_out += inside
        elif pathlib.Path(name).exists():
            held_out.append(curves_lib.read_curve(name, columns))
        else:
            hint = nearest_hint(name, [curve.name for curve in curves])
            raise BadInput(f"--predict-run={name}: no such folder, and no run of the sources{hint}")
    rest = [curve for curve in curves if curve not in held_out]
    if not rest:
        raise BadInput("--predict-run holds out every run of the sources, and none is left to fit")
    return rest, held_out


def _same_folder(one: str, other: str) -> bool:
    return pathlib.Path(other).is_dir() and pathlib.Path(one).resolve() == pathlib.Path(other).resolve()


def _schedule(config: str) -> Curve:
    try:
        return curves_lib.schedule_of(config)
    except BadInput as mistake:
        raise BadInput(f"--schedule-of={config}: {mistake}") from None


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


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    arrays = {name: getattr(prediction, name) for name in ("steps", "loss", "low", "high", "baseline", "measured")}
    curve = {name: values.tolist() for name, values in arrays.items() if values is not None}
    return {"name": prediction.name, "final": list(prediction.final), "scores": prediction.scores, "curve": curve}
