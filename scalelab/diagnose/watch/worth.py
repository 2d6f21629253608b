"""Weigh stopping now, decaying now, and going on: final loss, steps, hours and cost of each."""

import math
from typing import Any

import numpy as np

from scalelab.diagnose.watch.annealed import FORGETTING, AnnealedFit, sum_annealing
from scalelab.diagnose.watch.curve import Curve
from scalelab.diagnose.watch.family import Estimate

DECAY_SHARE = 0.3  # a decay's share of the steps of a run decayed now, as in the quickstart's schedule


def weigh_choices(
    run: Curve, fit: AnnealedFit | None, gap: Estimate, final: Estimate, price: float | None
) -> list[dict[str, Any]]:
    """Make a row for each choice: `loss` (validation, nats/token), `steps` to take, `hours`, `cost` (None: no price).

    The loss of a stop or of a decay now comes from the run's own curve, plus its gap to validation.
    """
    rows = []
    if fit is not None:
        now = fit.predict(*_place(run, fit))[0]
        ahead = max(1, round(run.step * DECAY_SHARE / (1 - DECAY_SHARE)))
        rows = [_row("stop now", now + gap.mean, 0, run, price)]
        if run.step + ahead < run.n_steps and _still_high(run):
            decayed = fit.predict(*_decayed(run, fit, ahead))[0]
            rows.append(_row("decay now", decayed + gap.mean, ahead, run, price))
    return [*rows, _row("go on", final.mean, run.n_steps - run.step, run, price)]


def seconds_a_step(run: Curve) -> float | None:
    """Median seconds of a step over the last lines, from tokens/s; None before the first, and without tokens."""
    rates = run.signals["tokens_per_s"][-20:]
    rates = rates[np.isfinite(rates) & (rates > 0)]
    return run.n_tokens / run.n_steps / float(np.median(rates)) if len(rates) and run.n_tokens else None


def _row(choice: str, log_loss: float, steps: int, run: Curve, price: float | None) -> dict[str, Any]:
    each = seconds_a_step(run)
    hours = None if each is None else steps * each / 3600
    cost = None if price is None or hours is None else hours * run.devices * price
    return {"choice": choice, "loss": math.exp(log_loss), "steps": steps, "hours": hours, "cost": cost}


def _place(run: Curve, fit: AnnealedFit) -> tuple[float, float]:
    index = min(len(fit.s1) - 1, max(0, round(run.progress * len(fit.s1)) - 1))
    return float(fit.s1[index]), float(fit.s2[index])


def _still_high(run: Curve) -> bool:
    """Whether the rate is above half its peak: a decay underway is not begun again."""
    index = min(len(run.lr) - 1, round(run.progress * len(run.lr)))
    return bool(run.lr[index] > 0.5 * run.lr.max())


def _decayed(run: Curve, fit: AnnealedFit, ahead: int) -> tuple[float, float]:
    """Compute (s1, s2) at the end of a linear decay to zero over `ahead` steps from here, on the fit's scale."""
    points = len(run.lr)
    seen = run.lr[: max(1, round(run.progress * points))]
    fall = seen[-1] * np.linspace(1, 0, max(2, round(ahead / run.n_steps * points)))
    changed = np.concatenate([seen, fall])
    return float(changed.sum() / run.lr.sum()), float(sum_annealing(changed, FORGETTING * points)[-1])
