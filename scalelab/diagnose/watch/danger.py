"""Estimate the chance that a run diverges before its end, from early signs.

Its log odds are a sum: an intercept, and a weight for each sign that is seen. The weights are those of a logistic
regression on the 88 choosing runs of `checks.diagnosis.danger`; `checks/results/danger.md` scores them on 88 others.
The signs' thresholds are those of the guard (OLMo-core's and PaLM's among them).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.diagnose.watch.curve import Curve

RECENT_LINES = 32  # beside the 64 before
RECENT_SHARE = 0.1  # share of the steps so far, the latest ones, in which events count
MAD_TO_SIGMA = 1.4826
INTERCEPT = -3.34  # log odds without a sign: a chance of 3.4 % if a quarter of all runs diverge
WEIGHTS = {  # weight 0: too rare in those runs, but still shown
    "blown_up": 7.35, "no_better": 1.01, "rising": 0.00, "climbing": 0.00,
    "large_updates": 0.29, "skips": 0.43, "alarms": 0.56,
}  # fmt: skip
EXPERT_SIGNALS = ("dead_expert", "router_collapsed", "experts_back")  # of the guard (`train/expert_alarms.py`)
BLOWN_UP = 100  # multiple of ln V from which no choosing run came back; one at 52 did
UPDATE_SHARE = 0.1  # update norm / weights' norm of a step: far beyond the 1e-3 to 1e-2 of healthy runs


class Danger(NamedTuple):
    """The chance of divergence before the end, and the signs behind it."""

    chance: float
    signs: tuple[str, ...]


def judge_danger(run: Curve) -> Danger:
    """Judge a run by its loss against ln V, trends of loss and norms, skipped steps and alarms of the guard."""
    if run.status == "diverged":
        return Danger(1.0, ("diverged",))
    if run.val_loss is not None:
        return Danger(0.0, ())
    signs = find_signs(run)
    odds = math.exp(INTERCEPT + sum(WEIGHTS.get(name, 0.0) for name, _ in signs))
    return Danger(odds / (1 + odds), tuple(text for _, text in signs))


def find_signs(run: Curve) -> list[tuple[str, str]]:
    """Find the run's signs of divergence, each as (a key of WEIGHTS, a description); `experts` is shown alone."""
    return [sign for sign in (_peak_sign(run), _loss_sign(run), *_norm_signs(run), *_event_signs(run)) if sign]


def _peak_sign(run: Curve) -> tuple[str, str] | None:
    peak = float(np.max(run.losses, initial=0.0, where=~np.isnan(run.losses)))
    if peak > BLOWN_UP * run.ceiling:
        return "blown_up", f"loss has been {peak / run.ceiling:.0f} times that of a uniform guess"
    return None


def _loss_sign(run: Curve) -> tuple[str, str] | None:
    late = run.losses[run.steps > run.warmup]
    recent, before = late[-RECENT_LINES:], late[-3 * RECENT_LINES : -RECENT_LINES]
    if len(recent) >= 8 and not np.nanmedian(recent) < run.ceiling:
        loss = float(np.nanmedian(recent))
        return "no_better", f"loss {loss:.3g} is no better than a uniform guess, ln V = {run.ceiling:.3g}"
    if len(before) < RECENT_LINES:
        return None
    rise, noise = _rise(np.log(np.maximum(recent, 1e-9)), np.log(np.maximum(before, 1e-9)))
    if rise > 6 * noise and rise > 0.02:
        return "rising", f"loss rose by {math.expm1(rise):.1%} over the last {3 * RECENT_LINES} lines"
    return None


def _rise(recent: np.ndarray, before: np.ndarray) -> tuple[float, float]:
    """Estimate (rise of the median, its standard error): the guard's test of a lasting rise, on logged lines."""
    middle = float(np.nanmedian(before))
    spread = MAD_TO_SIGMA * float(np.nanmedian(np.abs(before - middle)))
    error = 1.2533 * spread * math.sqrt(1 / len(recent) + 1 / len(before))
    return float(np.nanmedian(recent)) - middle, max(error, 1e-6)


def _norm_signs(run: Curve) -> list[tuple[str, str]]:
    late = run.steps > run.warmup
    signs = []
    grad = run.signals["grad_norm"][late]
    if len(grad) >= 2 * RECENT_LINES:
        before = float(np.nanmedian(grad[-3 * RECENT_LINES : -RECENT_LINES]))
        factor = float(np.nanmedian(grad[-RECENT_LINES:])) / before if before > 0 else 1.0  # 0: a dead network
        if factor > 2:
            signs.append(("climbing", f"gradient norm x {factor:.1f} over the last {3 * RECENT_LINES} lines"))
    shares = (run.signals["update_norm"] / run.signals["param_norm"])[late][-8:]
    if len(shares) == 8 and np.isfinite(shares).any() and np.nanmedian(shares) > UPDATE_SHARE:
        signs.append(("large_updates", f"updates of {float(np.nanmedian(shares)):.0%} of the weights in one step"))
    return signs


def _event_signs(run: Curve) -> list[tuple[str, str]]:
    since = (1 - RECENT_SHARE) * run.step
    kinds: Sequence[str] = [e["kind"] for e in run.events if e["step"] is not None and since < e["step"] <= run.step]
    skips, alarms = kinds.count("skip"), kinds.count("guard") - len(_expert_alarms(run, since))
    signs = [("skips", f"{skips} steps skipped since step {since:.0f}")] if skips else []
    signs += [("alarms", f"{alarms} alarms of the guard since step {since:.0f}")] if alarms else []
    texts = [str(event.get("text", "")).partition(";")[0] for event in _expert_alarms(run, 0)[-1:]]
    return signs + [("experts", f"last alarm on experts: {text}") for text in texts]


def _expert_alarms(run: Curve, since: float) -> list[Mapping[str, Any]]:
    """The guard's alarms on experts after step `since`; experts are no sign of divergence."""
    chosen = [event for event in run.events if event["kind"] == "guard" and event.get("signal") in EXPERT_SIGNALS]
    return [event for event in chosen if event["step"] is not None and since < event["step"] <= run.step]
