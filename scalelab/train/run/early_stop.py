"""Runs that end early: a judge, such as a sweep's rule, finds them hopeless, or `eval.patience` is spent."""

import functools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from scalelab.parallel.processes import broadcast_from_first
from scalelab.record import records
from scalelab.train.run.run import Run

Judge = Callable[[pathlib.Path], str]  # a run's folder -> why it ends now; "" to go on
LOOKS = 20  # times that a judge looks at a run, evenly over its steps


def is_look_due(before: int, step: int, steps: int) -> bool:
    """Whether one of the LOOKS over `steps` lies after step `before`, up to `step`."""
    return step * LOOKS // steps > before * LOOKS // steps


def end_hopeless(runs: Sequence[Run], step: int, judge: Judge, progress: Callable[[dict[str, Any]], None]) -> None:
    """Ask the judge, in the first process for all, about each run that goes on; lines up to `step` are on disk."""
    for run in runs:
        if run.status == "running" and (why := broadcast_from_first(functools.partial(judge, run.folder))):
            run.stop_early(step, why)
            progress({"note": f"{run.name} ends at step {step}: {why}"})


def end_impatient(runs: Sequence[Run], step: int, progress: Callable[[dict[str, Any]], None]) -> None:
    """End the runs whose validation loss, by the lines on disk, has not fallen for `eval.patience` evaluations.

    The decision follows from the run's metrics alone, so a resumed run takes the same one.
    """
    for run in runs:
        find = functools.partial(_spent_patience, run.folder, run.config.eval.patience)
        if run.status == "running" and (why := broadcast_from_first(find)):
            run.stop_early(step, why)
            progress({"note": f"{run.name} ends at step {step}: {why}"})


def _spent_patience(folder: pathlib.Path, patience: int) -> str:
    losses = {line["step"]: line["val_loss"] for line in records.read_metrics(folder) if "val_loss" in line}
    if find_stop([*losses.values()], patience) is None:
        return ""
    finite = {step: loss for step, loss in losses.items() if math.isfinite(loss)}
    best = min(finite, key=lambda step: finite[step], default=0)
    since = f" since {finite[best]:.4f} at step {best}" if finite else ""
    return f"no lower validation loss in {patience} evaluations{since} (eval.patience)"


def find_stop(losses: Sequence[float], patience: int) -> int | None:
    """The index of the evaluation after which to stop; None: go on.

    It is the first one that ends `patience` evaluations in a row without a loss below the lowest before them. A loss
    that is not a number is no improvement. `patience` 0: never.
    """
    best, waited = math.inf, 0
    for i, loss in enumerate(losses):
        best, waited = (loss, 0) if loss < best else (best, waited + 1)
        if patience and waited == patience:
            return i
    return None
