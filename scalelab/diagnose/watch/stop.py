"""End hopeless trials of a sweep by a rule over the forecast, such as `p_worse_than_best > 0.95`."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.diagnose.watch.curve import Curve, read_curve
from scalelab.diagnose.watch.family import Law
from scalelab.diagnose.watch.forecast import Forecast, forecast_run
from scalelab.diagnose.watch.rivals import find_rivals, p_worse_than_best
from scalelab.errors import BadInput
from scalelab.laws.read.where import filter_rows

# Names that a rule may use: shares and probabilities from 0 to 1, nats/token, sigmas, steps.
NAMES = (
    "p_worse_than_best",
    "p_diverges",
    "progress",
    "step",
    "val_loss",
    "low",
    "high",
    "train_loss",
    "sigmas_off_law",
)
EARLIEST = 0.1  # share of the steps before which no trial is ended


def check_rule(rule: str) -> str:
    """Return the rule; BadInput if it is not a true-or-false expression over NAMES. It is parsed, never run."""
    filter_rows([dict.fromkeys(NAMES, 0.5)], [rule], "--stop-if")
    return rule


def describe_facts(
    run: Curve, forecast: Forecast, others: Sequence[Curve], forecasts: Mapping[str, Forecast]
) -> dict[str, Any]:
    """Compute the values of NAMES for a run; a rule does not hold if it needs an unknown one (None)."""
    low, high = forecast.val.interval(0.9)
    return {
        "p_worse_than_best": p_worse_than_best(forecast, find_rivals(run, others), forecasts),
        "p_diverges": forecast.danger.chance, "progress": run.progress, "step": run.step,
        "val_loss": float(np.exp(forecast.val.mean)), "low": low, "high": high,
        "train_loss": forecast.train and float(np.exp(forecast.train.mean)),
        "sigmas_off_law": forecast.sigmas_off_law,
    }  # fmt: skip


def judge_run(run: Curve, others: Sequence[Curve], rule: str, law: Law | None = None) -> str:
    """Explain why the rule ends this run now; "" if it does not, or if nothing can be forecast yet."""
    if run.progress < EARLIEST or run.step <= run.warmup or run.val_loss is not None:
        return ""
    rivals = [rival for rival in find_rivals(run, others) if rival.status == "running" and rival.step > rival.warmup]
    try:
        forecast = forecast_run(run, others, law)
        forecasts = {rival.name: forecast_run(rival, others, law) for rival in rivals if len(rival.lr)}
    except BadInput:
        return ""
    facts = describe_facts(run, forecast, others, forecasts)
    if not filter_rows([facts], [rule], "--stop-if"):
        return ""
    named = ", ".join(f"{name} {facts[name]:.4g}" for name in NAMES if name in rule and facts[name] is not None)
    return f"stopped early by {rule}: {named}; {forecast.method}"


@dataclasses.dataclass
class StopJudge:
    """Judges trials by the files of their sweep, in the process that trains them: (run folder) -> reason or ""."""

    rule: str
    schedules: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # {folder: LR to the end}, read once

    def __call__(self, folder: pathlib.Path) -> str:
        """Explain why the trial in `folder` ends now; "" if it goes on."""
        run = self._read(folder)
        others = [self._read(place) for place in sorted(folder.parent.iterdir()) if place != folder]
        return judge_run(run, [other for other in others if other is not None], self.rule) if run else ""

    def _read(self, folder: pathlib.Path) -> Curve | None:
        try:
            known = self.schedules.get(folder.name)
            curve = read_curve(folder, ahead=known is None)
        except BadInput:  # not started, or partly written
            return None
        lr = self.schedules.setdefault(folder.name, curve.lr if known is None else known)
        return dataclasses.replace(curve, lr=lr)
