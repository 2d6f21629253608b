"""A fitted law of curves and what it predicts, as lines for a person."""

import pathlib
import shlex
from collections.abc import Iterator

from scalelab.cli.parser import align_columns
from scalelab.laws.curves.best_schedule import BestSchedule
from scalelab.laws.curves.fit import FittedCurves, Prediction


def describe_curves(fitted: FittedCurves) -> list[str]:
    """Law, parameters with intervals by run, the certificate, and what is known about the errors."""
    certificate, rows = fitted.best.certificate, sum(len(curve.steps) for curve in fitted.curves)
    intervals, uncertain = fitted.intervals(), fitted.undetermined()
    cells = [
        [
            name,
            f"{value:.4g}",
            f"{intervals[name][0]:.4g} to {intervals[name][1]:.4g}",
            "not determined" if name in uncertain else "",
        ]
        for name, value in fitted.best.params.items()
    ]
    runs = len(fitted.curves)
    lines = [
        f"law {fitted.law.name}: {fitted.law.equation}",
        f"{rows} rows of {runs} run{'s' * (runs > 1)} after the warm-up (means in windows, at most 50 a run)",
        f"optimum: {certificate.agree} of {certificate.starts} starts agree, "
        f"{certificate.starts - certificate.starts_converged} did not converge",
        "",
        *align_columns([["parameter", "value", f"{fitted.level:.0%} interval by run", ""], *cells]),
    ]
    if fitted.law.name == "annealing":
        lines.append(f"lambda = 1 - 1/memory = {1 - 1 / fitted.best.params['memory']:.4f}")
    lines += [f"WARNING: {name} is at its bound" for name in certificate.at_bounds]
    return [*lines, "", *_errors(fitted)]


def _errors(fitted: FittedCurves) -> Iterator[str]:
    errors = fitted.errors
    yield (
        f"errors: {errors.row_sd:.2%} a row, correlated by {errors.correlation:.2f} with the next: "
        f"{len(fitted.problem.target)} rows count as {len(fitted.problem.target) * errors.effective_share:.0f}"
    )
    if errors.runs == 1:
        yield "WARNING: one run: how runs differ can't be told, and no interval holds it; add seeds and schedules"
    else:
        yield f"between runs: {errors.run_sd:.2%}, from {errors.dof:.1f} degrees of freedom"
    if fitted.widening is None:
        yield "WARNING: fewer than three schedules: none can be left out; intervals hold only if the law's form does"
        return
    for each in fitted.left_out:
        names = ", ".join(pathlib.Path(run).name for run in each.runs)
        yield f"left out {names}: missed by {each.mae:.2%}, {each.ratio:.2f} times what intervals expect"
    yield f"intervals of predicted curves are {fitted.widening:.2f} times as wide for it"


def describe_prediction(prediction: Prediction, fitted: FittedCurves) -> list[str]:
    """Loss at the end with its interval, and the scores of a curve that was measured."""
    loss, low, high = prediction.final
    lines = [
        "",
        f"{prediction.name}: loss {loss:.4f} at step {prediction.steps[-1]:.0f}, "
        f"{fitted.level:.0%} interval {low:.4f} to {high:.4f}",
    ]
    if not prediction.scores:
        return [*lines, f"  not trained; a power law in steps alone says {prediction.baseline[-1]:.4f}"]
    scores = prediction.scores
    verdict = "inside" if scores["final_inside"] else "OUTSIDE"
    return [
        *lines,
        f"  measured {scores['final_measured']:.4f}: {verdict}; a power law in steps alone says "
        f"{scores['baseline_final']:.4f}",
        f"  whole curve: MAE {scores['mae']:.4f} nats (power law in steps: {scores['baseline_mae']:.4f}), "
        f"R2 {scores['r2']:.4f}, {scores['inside']} of {scores['rows']} rows inside (they hang together)",
    ]


def describe_best(best: BestSchedule, fitted: FittedCurves, file: str) -> list[str]:
    """Where the best schedule falls, what it gains over the fitted ones by the law, and how it is trained."""
    places, shares = best.knots
    steps, first = len(best.curve.lr), best.curve.warmup
    falls = [(share, first + places[shares <= share][:1] * (steps - 1 - first)) for share in (0.9, 0.5, 0.1)]
    bends = ", ".join(f"{share:g} of the peak at step {at[0]:.0f}" for share, at in falls if len(at))
    lines = [
        f"  {steps} steps, {first + 1} of them warm-up, peak {best.curve.lr.max():g}, as the runs; then the LR never "
        f"rises: {bends or 'no fall'}, {shares[-1]:.3g} at the end",
        f"  searched where runs were: not below {best.lowest:.3g} of the peak, at most {best.fastest:.2g} of it a step",
    ]
    for name, (nats, low, high) in best.gains.items():
        lines.append(
            f"  by the law {pathlib.Path(name).name} ends {nats:+.4f} nats from it ({low:+.4f} to {high:+.4f}; "
            "what the law's form gets wrong is not in it)"
        )
    module = pathlib.Path(file).stem
    return [*lines, f"  written: {file}; train with --config.schedule.name={shlex.quote(module + ':lr')} beside it"]
