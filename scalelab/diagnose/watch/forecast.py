"""Forecast a run's final loss from its family if there is one, else from its own curve and a law."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.diagnose.watch import danger, worth
from scalelab.diagnose.watch.annealed import AnnealedFit, fit_annealed
from scalelab.diagnose.watch.curve import Curve
from scalelab.diagnose.watch.family import (
    Estimate,
    Law,
    choose_siblings,
    estimate_from_family,
    final_train_loss,
    fit_family_law,
    sigmas_off_law,
)
from scalelab.errors import BadInput

LEVEL = 0.9
LEAST_LINES = 5  # least lines of training for a forecast from the curve
# prior of ln validation - ln training loss: the quickstart's splits lie between -0.02 and 0.05.
UNKNOWN_GAP = Estimate(0.0, 0.04)
LAW_SD = 0.03  # scatter of ln loss about a law fitted to another family; the quickstart's own scatter is 0.012


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The final losses of a run as of `step`. `val`, `train`: estimates of ln loss; `method`: the source of `val`.

    `train` is None without a curve. `choices`: rows of `worth.weigh_choices`.
    """

    run: str
    step: int
    n_steps: int
    method: str
    val: Estimate
    train: Estimate | None
    sigmas_off_law: float | None
    danger: danger.Danger
    tokens_per_s: float | None
    seconds_left: float | None
    choices: Sequence[dict[str, Any]]
    n_siblings: int

    def as_json(self) -> dict[str, Any]:
        """Convert to the line of forecasts.jsonl and of --json."""
        low, high = self.val.interval(LEVEL)
        train = self.train and {"loss": math.exp(self.train.mean), "interval90": self.train.interval(LEVEL)}
        return {
            "time": time.time(), "run": self.run, "step": self.step, "steps": self.n_steps, "method": self.method,
            "val_loss": math.exp(self.val.mean), "interval90": [low, high], "train_loss": train,
            "siblings": self.n_siblings, "sigmas_off_law": self.sigmas_off_law,
            "p_diverges": self.danger.chance, "signs": list(self.danger.signs), "tokens_per_s": self.tokens_per_s,
            "seconds_left": self.seconds_left, "choices": list(self.choices),
        }  # fmt: skip


def forecast_run(
    run: Curve, others: Sequence[Curve] = (), law: Law | None = None, price: float | None = None
) -> Forecast:
    """Forecast a run from its curve, the `others` of its folder and a `law` (parameters, tokens) -> loss.

    `price`: of a device-hour. BadInput if there is neither a law nor a curve of LEAST_LINES lines.
    """
    siblings = choose_siblings(run, others)
    family_law = law or fit_family_law(siblings)
    fit = _fit_own(run)
    train, gap = _own_train(fit), find_gap(run, siblings, fit)
    val, method = _choose(run, siblings, family_law, law, train, gap)
    each = worth.seconds_a_step(run)
    rate = None if each is None else run.n_tokens / run.n_steps / each
    return Forecast(
        run.name,
        run.step,
        run.n_steps,
        method,
        val,
        estimate_from_family(run, siblings, family_law, "train_loss") or train,
        sigmas_off_law(run, siblings, family_law) or _curve_off_law(run, law, train, gap),
        danger.judge_danger(run),
        rate,
        None if each is None else (run.n_steps - run.step) * each,
        worth.weigh_choices(run, fit, gap, val, price),
        len(siblings),
    )


def _choose(
    run: Curve,
    siblings: Sequence[Curve],
    family_law: Law | None,
    law: Law | None,
    train: Estimate | None,
    gap: Estimate,
) -> tuple[Estimate, str]:
    """Choose (ln final validation loss, its source) from the best source available."""
    if family := estimate_from_family(run, siblings, family_law, "val_loss"):
        return family, f"{len(siblings)} finished siblings{' and their law' if family_law else ''}"
    own = train and Estimate(train.mean + gap.mean, math.hypot(train.sd, gap.sd))
    by_law = law and Estimate(math.log(law(run.n_params, run.n_tokens)), LAW_SD)
    if own and by_law:
        return _combine(own, by_law), "its own curve and the law"
    if own or by_law:
        return (own, "its own curve") if own else (by_law, "the law alone")  # type: ignore[return-value]
    raise BadInput(
        f"{run.name} has {len(run.steps)} lines of training, and no law: a forecast needs {LEAST_LINES} "
        f"(log.every_steps writes them), finished siblings, or --law=FILE"
    )


def _curve_off_law(run: Curve, law: Law | None, train: Estimate | None, gap: Estimate) -> float | None:
    """Distance of the run's extrapolated end from a given law, in the sigmas of both."""
    if law is None or train is None:
        return None
    return (train.mean + gap.mean - math.log(law(run.n_params, run.n_tokens))) / math.hypot(train.sd, gap.sd, LAW_SD)


def _combine(a: Estimate, b: Estimate) -> Estimate:
    """Combine two independent estimates by their precision; the sd covers their disagreement too."""
    weights = np.array([a.sd**-2, b.sd**-2])
    mean = float(weights @ [a.mean, b.mean] / weights.sum())
    apart = abs(a.mean - b.mean) / math.hypot(a.sd, b.sd)
    return Estimate(mean, float(weights.sum() ** -0.5) * max(1.0, apart))


def _fit_own(run: Curve) -> AnnealedFit | None:
    if np.isfinite(run.losses).sum() < LEAST_LINES or not run.lr.any():
        return None
    scale = len(run.lr) / run.n_steps
    return fit_annealed(run.steps * scale, run.losses, run.lr, round(run.warmup * scale))


def _own_train(fit: AnnealedFit | None) -> Estimate | None:
    return None if fit is None else Estimate(*fit.predict(1.0, float(fit.s2[-1])))


def find_gap(run: Curve, siblings: Sequence[Curve], fit: AnnealedFit | None) -> Estimate:
    """Estimate ln validation - ln training loss from the run's own evaluations, else siblings, else the prior."""
    pairs = [
        math.log(loss) - run.mean_log_loss(0.8 * step / run.n_steps, step / run.n_steps)
        for step, loss in run.evaluations
        if loss > 0 and step > run.warmup
    ]
    own = [pair for pair in pairs if math.isfinite(pair)][-5:]
    theirs = [math.log(other.val_loss or 1) - final_train_loss(other) for other in siblings]
    theirs = [pair for pair in theirs if math.isfinite(pair)]
    if own:
        # Error of each mean of training lines: some percent of noise, and the fall of the loss over its window.
        return Estimate(float(np.mean(own)), max(0.01, 0.02 / len(own) ** 0.5))
    if len(theirs) >= 2:
        return Estimate(float(np.mean(theirs)), max(0.01, float(np.std(theirs, ddof=1))))
    return UNKNOWN_GAP
