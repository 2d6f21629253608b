"""Try a verdict's knob: train the first steps again as they were and with the knob turned, in a folder that is deleted.

Both arms are the run's own program from its own seed, logged at every step, under the schedule of the whole run.
"""

import math
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab import config as config_lib
from scalelab.diagnose.checks import knobs
from scalelab.diagnose.evidence import Evidence, gather_evidence
from scalelab.diagnose.rank import diagnose
from scalelab.diagnose.verdict import Verdict
from scalelab.errors import BadInput, WorkFailed
from scalelab.train.single import train_single

LEAST_STEPS, MOST_STEPS = 60, 300  # steps of a trial
AFTER = 40  # steps after the first that shows the cause
TAIL = 0.25  # share of the steps whose losses are compared
SIGMAS = 6.0  # standard errors of the difference of both means
LEAST_GAIN = 0.02  # nats
DISPATCH = 20  # steps that are sent at once
# A trial logs every step, saves and evaluates nothing, and no tracker hears of it.
QUIET = {
    "log.every_steps": 1, "train.steps_per_dispatch": DISPATCH, "train.branch_from": "", "log.wandb": "",
    "log.tensorboard": False, "log.sinks": "", "checkpoint.every_steps": 2**31 - 1, "eval.every_steps": 2**31 - 1,
    "eval.patience": 0, "eval.tasks": "", "sweep.pack": "auto",
}  # fmt: skip
Progress = Callable[[dict[str, Any]], None]


class Trial(NamedTuple):
    """What a knob did in `steps` steps. `before`, `after`: mean losses of the last of them, as it was and with it."""

    changes: Mapping[str, str]
    steps: int
    before: float
    after: float
    cures: bool
    text: str


def try_knobs(evidence: Evidence, verdicts: Sequence[Verdict], progress: Progress = lambda _: None) -> dict[str, Trial]:
    """Try the knobs of `verdicts`: {cause: trial}, of those whose knob is a value of the config."""
    asked = {each.cause: knobs.changes_of(each.knob, evidence.values) for each in verdicts}
    trials: dict[str, Trial] = {}
    original: dict[int, Evidence] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, verdict in enumerate(verdicts):
            changes = asked[verdict.cause]
            if not changes:
                continue
            steps = _count_steps(evidence, verdict)
            try:
                if steps not in original:
                    original[steps] = _train(evidence, {}, steps, pathlib.Path(folder) / f"as_it_was_{steps}", progress)
                turned = _train(evidence, changes, steps, pathlib.Path(folder) / f"turned_{number}", progress)
            except (BadInput, WorkFailed) as refusal:
                trials[verdict.cause] = Trial(changes, 0, math.nan, math.nan, False, f"could not be tried: {refusal}")
                continue
            trials[verdict.cause] = judge_trial(verdict, changes, original[steps], turned)
    return trials


def _count_steps(evidence: Evidence, verdict: Verdict) -> int:
    """The steps of a trial: until some after the first that shows the cause, in whole dispatches."""
    shows = verdict.steps[0] if verdict.steps else 0
    wanted = min(max(shows + AFTER, LEAST_STEPS), MOST_STEPS)
    return min(-(-wanted // DISPATCH) * DISPATCH, evidence.steps)


def _train(
    evidence: Evidence, changes: Mapping[str, str], steps: int, folder: pathlib.Path, progress: Progress
) -> Evidence:
    """Train the first `steps` of the run with `changes`, and gather the evidence on them."""
    progress({"note": f"{steps} steps {' '.join(f'{k}={v}' for k, v in changes.items()) or 'as they were'}"})
    config = config_lib.resolve(config_lib.override(evidence.config, {**QUIET, **changes}), stored=True)
    dispatches = iter(range(DISPATCH, 2**62, DISPATCH))
    train_single(config, folder, stop=lambda: next(dispatches) >= steps)
    return gather_evidence(folder)


def judge_trial(verdict: Verdict, changes: Mapping[str, str], original: Evidence, turned: Evidence) -> Trial:
    """Compare both arms: the cause is gone, or the loss is lower beyond the noise of its steps."""
    steps = int(turned.rows[-1]["step"])
    (before, noise_before), (after, noise_after) = (_tail(each) for each in (original, turned))
    margin = max(SIGMAS * math.hypot(noise_before, noise_after), LEAST_GAIN)
    lower, higher = after < before - margin, not after <= before + margin
    was_named, is_named = (verdict.cause in _causes(each) for each in (original, turned))
    cures = not is_named and not higher and (lower or was_named)
    listed = ", ".join(f"{key}={value}" for key, value in changes.items())
    text = f"the first {steps} steps again with {listed}: the loss at their end is {after:.4g}, {before:.4g} as it was"
    if cures:
        text += "; it cures" if was_named else "; it is better (as it was, these steps do not show the cause yet)"
    elif is_named:
        text += f"; {verdict.cause} is still found, so it does not cure"
    else:
        text += "; no cure is shown" + ("" if was_named else ": these steps do not show the cause as it was either")
    return Trial(dict(changes), steps, before, after, cures, text)


def _tail(evidence: Evidence) -> tuple[float, float]:
    """(the mean loss of the last steps, its standard error); infinite where a loss is not finite."""
    losses = evidence.series("train_loss").values
    last = losses[-max(int(TAIL * len(losses)), 2) :]
    if not np.isfinite(last).all():
        return math.inf, 0.0
    return float(np.mean(last)), float(np.std(last, ddof=1) / len(last) ** 0.5)


def _causes(evidence: Evidence) -> list[str]:
    return [verdict.cause for verdict in diagnose(evidence).verdicts]
