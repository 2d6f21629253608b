"""Try a verdict's knob: train some steps again as they were and with the knob turned, in a folder that is deleted.

Both arms are the run's own program, logged at every step, under the schedule of the whole run. They begin at the newest
healthy checkpoint before what the verdict shows, as `train --back-to` would; at step 0 where none is kept, or the knob
may not change on the way (a shape, the initialisation).
"""

import math
import os
import pathlib
import shutil
import stat
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
from scalelab.train.resume import rewind
from scalelab.train.resume.by_hand import ByHand
from scalelab.train.single import train_single

LEAST_STEPS, MOST_STEPS = 60, 300  # steps of a trial
AFTER = 40  # steps after the first that shows the cause
BEFORE = 100  # steps before it, where a checkpoint is kept: what shows begins earlier (as a rewind's margin)
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
    """What a knob did in `steps` steps after step `begin`. `before`, `after`: mean losses of the last of them, as it
    was and with it.
    """

    changes: Mapping[str, str]
    steps: int
    before: float
    after: float
    cures: bool
    text: str
    begin: int = 0


class Stretch(NamedTuple):
    """The steps of a trial: `steps` of them after step `begin`."""

    begin: int
    steps: int


def try_knobs(evidence: Evidence, verdicts: Sequence[Verdict], progress: Progress = lambda _: None) -> dict[str, Trial]:
    """Try the knobs of `verdicts`: {cause: trial}, of those whose knob is a value of the config."""
    asked = {each.cause: knobs.changes_of(each.knob, evidence.values) for each in verdicts}
    trials: dict[str, Trial] = {}
    original: dict[Stretch, Evidence] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, verdict in enumerate(verdicts):
            changes = asked[verdict.cause]
            if not changes:
                continue
            for stretch in choose_stretches(evidence, verdict):
                arms = [
                    pathlib.Path(folder) / f"{name}_{stretch.begin}"
                    for name in (f"as_it_was_{stretch.steps}", f"turned_{number}")
                ]
                try:
                    turned = _train(evidence, changes, stretch, arms[1], progress)
                    if stretch not in original:
                        original[stretch] = _train(evidence, {}, stretch, arms[0], progress)
                except (BadInput, WorkFailed) as refusal:
                    text = f"could not be tried: {refusal}"
                    trials[verdict.cause] = Trial(changes, 0, math.nan, math.nan, False, text)
                    continue
                trials[verdict.cause] = judge_trial(verdict, changes, original[stretch], turned, stretch.begin)
                break
    return trials


def choose_stretches(evidence: Evidence, verdict: Verdict) -> list[Stretch]:
    """The steps of a trial, until some after the first that shows the cause, in whole dispatches; and those from step
    0, where the others can't be taken.
    """
    shows = verdict.steps[0] if verdict.steps else 0
    healthy = [step for step in _healthy_steps(evidence.folder) if 0 < step < min(shows, evidence.steps)]
    early = [step for step in healthy if step <= shows - BEFORE]
    far = [step for step in healthy if shows > BEFORE]  # nearer than that, where none is far enough
    begins = [max(early or far)] if early or far else []
    return [Stretch(begin, _count_steps(evidence, shows, begin)) for begin in (*begins, 0)]


def _healthy_steps(folder: pathlib.Path) -> list[int]:
    """The run's own healthy checkpoints: a trial of a pack has none that it could go back to."""
    checkpoints = folder / "checkpoints"
    return rewind.healthy_steps(checkpoints, "run", rewind.read_decisions(folder)) if checkpoints.is_dir() else []


def _count_steps(evidence: Evidence, shows: int, begin: int) -> int:
    wanted = min(max(shows - begin + AFTER, LEAST_STEPS), MOST_STEPS)
    return min(-(-wanted // DISPATCH) * DISPATCH, evidence.steps - begin)


def _train(
    evidence: Evidence, changes: Mapping[str, str], stretch: Stretch, folder: pathlib.Path, progress: Progress
) -> Evidence:
    """Train the stretch with `changes`, and gather the evidence on the run up to its end."""
    words = " ".join(f"{k}={v}" for k, v in changes.items()) or "as they were"
    progress({"note": f"{stretch.steps} steps from step {stretch.begin} on, {words}"})
    config = config_lib.resolve(config_lib.override(evidence.config, {**QUIET, **changes}), stored=True)
    change = None
    if stretch.begin:
        _copy_run(evidence.folder, folder, stretch.begin)
        change = ByHand(back_to=stretch.begin)
    dispatches = iter(range(DISPATCH, 2**62, DISPATCH))
    train_single(config, folder, stop=lambda: next(dispatches) >= stretch.steps, change=change)
    return gather_evidence(folder)


def _copy_run(run: pathlib.Path, folder: pathlib.Path, step: int) -> None:
    """Copy a run's record and logs, and of its checkpoints that of `step`; links and pipes are left out."""
    folder.mkdir(parents=True)
    for path in run.iterdir():
        if stat.S_ISREG(path.lstat().st_mode):
            shutil.copy(path, folder)
    step_folder = pathlib.Path("checkpoints") / str(step)
    shutil.copytree(run / step_folder, folder / step_folder, ignore=_name_special)


def _name_special(folder: str, names: Sequence[str]) -> set[str]:
    """Those of the names in a folder that are neither files nor folders, such as links."""
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return {name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))}


def judge_trial(
    verdict: Verdict, changes: Mapping[str, str], original: Evidence, turned: Evidence, begin: int = 0
) -> Trial:
    """Compare both arms after step `begin`: the cause is gone, or the loss is lower beyond the noise of its steps."""
    steps = int(turned.rows[-1]["step"]) - begin
    (before, noise_before), (after, noise_after) = (_tail(each, begin) for each in (original, turned))
    margin = max(SIGMAS * math.hypot(noise_before, noise_after), LEAST_GAIN)
    lower, higher = after < before - margin, not after <= before + margin
    was_named, is_named = (verdict.cause in _causes(each, begin) for each in (original, turned))
    cures = not is_named and not higher and (lower or was_named)
    listed = ", ".join(f"{key}={value}" for key, value in changes.items())
    which = f"{steps} steps from the healthy step {begin}" if begin else f"the first {steps} steps"
    text = f"{which} again with {listed}: the loss at their end is {after:.4g}, {before:.4g} as it was"
    if cures:
        text += "; it cures" if was_named else "; it is better (as it was, these steps do not show the cause yet)"
    elif is_named:
        text += f"; {verdict.cause} is still found, so it does not cure"
    else:
        text += "; no cure is shown" + ("" if was_named else ": these steps do not show the cause as it was either")
    return Trial(dict(changes), steps, before, after, cures, text, begin)


def _tail(evidence: Evidence, begin: int) -> tuple[float, float]:
    """(the mean loss of the last steps, its standard error); infinite where a loss is not finite."""
    losses = evidence.series("train_loss").after(begin).values
    last = losses[-max(int(TAIL * len(losses)), 2) :]
    if not np.isfinite(last).all():
        return math.inf, 0.0
    return float(np.mean(last)), float(np.std(last, ddof=1) / len(last) ** 0.5)


def _causes(evidence: Evidence, begin: int) -> list[str]:
    """The causes found; of a trial that begins later only those that its own steps show."""
    verdicts = diagnose(evidence).verdicts
    return [each.cause for each in verdicts if not begin or each.steps is None or each.steps[1] > begin]
