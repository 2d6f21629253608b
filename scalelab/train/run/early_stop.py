"""Runs that end early because a judge, such as a sweep's rule, finds them hopeless."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from scalelab.parallel.processes import broadcast_from_first
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
