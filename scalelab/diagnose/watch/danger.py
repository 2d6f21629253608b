"""The chance that a run diverges before its end, from the signals that announce it.

Each sign has a weight; the chance is that of independent causes, 1 - (1 - w1)(1 - w2)…. The weights are ours: none of
the runs they could be fitted to is large. The thresholds are those of the guard (OLMo-core's and PaLM's among them).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scalelab.diagnose.watch.curve import Curve

RECENT_LINES = 32  # beside the 64 before
RECENT_SHARE = 0.1  # of the steps so far, in which events count
BASE_RATE = 0.01  # of a whole run without any sign
MAD_TO_SIGMA = 1.4826
NO_BETTER, RISING, CLIMBING, LARGE_UPDATES, SKIPS, ALARMS = 0.9, 0.4, 0.15, 0.3, 0.3, 0.2  # weights of the signs
UPDATE_SHARE = 0.1  # of the weights' norm in one step: far beyond the 1e-3 to 1e-2 of healthy runs


class Danger(NamedTuple):
    """The chance of divergence before the end, and the signs that it comes from."""

    chance: float
    signs: tuple[str, ...]


def judge_danger(run: Curve) -> Danger:
    """Judge a run by its loss against ln V, trends of loss and norms, skipped steps and alarms of the guard."""
    if run.status == "diverged":
        return Danger(1.0, ("diverged",))
    if run.val_loss is not None:
        return Danger(0.0, ())
    signs = [sign for sign in (_loss_sign(run), *_norm_signs(run), *_event_signs(run)) if sign]
    safe = (1 - BASE_RATE * (1 - run.progress)) * math.prod(1 - weight for weight, _ in signs)
    return Danger(1 - safe, tuple(text for _, text in signs))


def _loss_sign(run: Curve) -> tuple[float, str] | None:
    late = run.losses[run.steps > run.warmup]
    recent, before = late[-RECENT_LINES:], late[-3 * RECENT_LINES : -RECENT_LINES]
    if len(recent) >= 8 and not np.nanmedian(recent) < run.ceiling:
        loss = float(np.nanmedian(recent))
        return NO_BETTER, f"loss {loss:.3g} is no better than a uniform guess, ln V = {run.ceiling:.3g}"
    if len(before) < RECENT_LINES:
        return None
    rise, noise = _rise(np.log(np.maximum(recent, 1e-9)), np.log(np.maximum(before, 1e-9)))
    if rise > 6 * noise and rise > 0.02:
        return RISING, f"loss rose by {math.expm1(rise):.1%} over the last {3 * RECENT_LINES} lines"
    return None


def _rise(recent: np.ndarray, before: np.ndarray) -> tuple[float, float]:
    """(rise of the median, its standard error): the guard's test of a lasting rise, on logged lines."""
    middle = float(np.nanmedian(before))
    spread = MAD_TO_SIGMA * float(np.nanmedian(np.abs(before - middle)))
    error = 1.2533 * spread * math.sqrt(1 / len(recent) + 1 / len(before))
    return float(np.nanmedian(recent)) - middle, max(error, 1e-6)


def _norm_signs(run: Curve) -> list[tuple[float, str]]:
    late = run.steps > run.warmup
    signs = []
    grad = run.signals["grad_norm"][late]
    if len(grad) >= 2 * RECENT_LINES:
        factor = float(np.nanmedian(grad[-RECENT_LINES:]) / np.nanmedian(grad[-3 * RECENT_LINES : -RECENT_LINES]))
        if factor > 2:
            signs.append((CLIMBING, f"gradient norm x {factor:.1f} over the last {3 * RECENT_LINES} lines"))
    shares = (run.signals["update_norm"] / run.signals["param_norm"])[late][-8:]
    if len(shares) == 8 and np.nanmedian(shares) > UPDATE_SHARE:
        signs.append((LARGE_UPDATES, f"updates of {float(np.nanmedian(shares)):.0%} of the weights in one step"))
    return signs


def _event_signs(run: Curve) -> list[tuple[float, str]]:
    since = (1 - RECENT_SHARE) * run.step
    kinds: Sequence[str] = [e["kind"] for e in run.events if e["step"] is not None and since < e["step"] <= run.step]
    skips, alarms = kinds.count("skip"), kinds.count("guard")
    signs = [(SKIPS, f"{skips} steps skipped since step {since:.0f}")] if skips else []
    return signs + ([(ALARMS, f"{alarms} alarms of the guard since step {since:.0f}")] if alarms else [])
