"""Spikes of the loss, by their shape: a batch, an instability that passes or grows, a climb of the gradient norm."""

import numpy as np

from scalelab.diagnose.checks.rates import RESTARTING
from scalelab.diagnose.evidence import Evidence, Series
from scalelab.diagnose.statistics import MAD_TO_SIGMA, SIGMAS, flag_above, safe_log, slope, smooth, spans
from scalelab.diagnose.verdict import Findings, Verdict, make_verdict

RECOVERY = 32  # lines in which a benign spike is over (stability.md 2.9)
ORDINARY_UPDATE = 2.0  # last update norm before a jump / its median: below, the weights did not cause the jump
PLATEAU = 8  # flagged lines in a row that make a plateau rather than a spike
SHARP = 0.5  # share of a plateau's height that its first and its last step have
CLIMB_STEPS, CLIMB_FACTOR = 2000, 2.0  # stability.md 2.5
CLIMB_LINES = 100  # fewer give no slope
BLOCK = 32  # lines whose median is compared (stability.md 2.3)
MEDIAN_ERROR = 1.2533  # standard error of a median / of a mean, of normal values
LEAST_FOR_GOOD = 0.05  # in ln loss
SETTLED = 0.1  # share of a run whose loss falls too fast to be compared with its past


def check_spikes(evidence: Evidence) -> Findings:
    """Losses far above their past: at one batch, over a stretch of batches, or rising by themselves."""
    loss = evidence.series("train_loss").after(max(SETTLED * evidence.steps, evidence.values["schedule.warmup_steps"]))
    if len(loss.steps) < RECOVERY:
        return []
    flags = flag_above(safe_log(loss.values))
    verdicts = [_judge(evidence, loss, first, last, flags.over) for first, last in spans(flags.flagged)]
    return sorted(verdicts, key=lambda verdict: -verdict.score)[:1] if verdicts else []


def _judge(evidence: Evidence, loss: Series, first: int, last: int, over: np.ndarray) -> Verdict:
    """The verdict on one stretch of flagged lines `first` to `last` of `loss`."""
    before = float(np.median(loss.values[max(0, first - RECOVERY) : first]))
    peak, height = float(np.nanmax(loss.values[first : last + 1])), float(over[first : last + 1].max())
    where = int(loss.steps[first]), int(loss.steps[last])
    text = (
        f"the loss is {peak:.3g} in steps {where[0]} to {where[1]}, after {before:.3g}: {height:.3g} thresholds above"
    )
    every = int(evidence.values["log.every_steps"])
    cause = _caused_by_batch(evidence, loss, first, last, before) if every == 1 else ""
    if cause:
        return make_verdict(
            "data_outlier", "signature", height, f"{text}; {cause}", "train --skip-batches, or filter",
            f"scalelab diagnose {evidence.folder} --batch={where[0]}", where,
        )  # fmt: skip
    over_at_end = last >= len(loss.steps) - 3
    slow = loss.steps[last] - loss.steps[first] > RECOVERY * every
    growing = over_at_end or slow
    return make_verdict(
        "spike_growing" if growing else "spike_benign", "symptom", height,
        f"{text}; {'it does not come back' if growing else f'back after {last - first + 1} lines'}",
        "a lower LR or optim.clip_norm, model.qk_norm" if growing else "none: watch whether the next ones are higher",
        f"scalelab diagnose {evidence.folder} --batch={where[0]}", where,
    )  # fmt: skip


def _caused_by_batch(evidence: Evidence, loss: Series, first: int, last: int, before: float) -> str:
    """Why the batches and not the weights made a jump; "" if they did not.

    The loss of a step is that of the weights before its update. So a jump right after an update of ordinary size comes
    from the batch; and losses that rise and fall in one step each follow what is read, not the weights.
    """
    updates = evidence.series("update_norm").finite()
    earlier = updates.until(loss.steps[first] - 1)
    if len(earlier.steps) < RECOVERY:
        return ""
    usual = float(np.median(earlier.values[-RECOVERY:]))
    last_update = float(earlier.values[-1]) / max(usual, 1e-30)
    inside = loss.values[first : last + 1]
    after = loss.values[last + 1 : last + 6]
    if last_update > ORDINARY_UPDATE or not len(after):
        return ""
    height = float(np.median(inside)) - before
    sharp = inside[0] - before > SHARP * height and float(np.median(after)) - before < (1 - SHARP) * height
    if not sharp or PLATEAU > len(inside) > 2:
        return ""
    return f"the update before it was ordinary ({last_update:.2g} of the median), and the loss is back in one step"


def check_risen(evidence: Evidence) -> Findings:
    """A loss that rose for good, too slowly for a spike: medians of blocks of lines (stability.md 2.3)."""
    v = evidence.values
    known = v["schedule.name"] in RESTARTING or ";" in v["data.mixture"] or v["schedule.seq_warmup_tokens"]
    loss = evidence.series("train_loss").finite().after(max(SETTLED * evidence.steps, v["schedule.warmup_steps"]))
    blocks = len(loss.steps) // BLOCK
    if known or blocks < 3:
        return []
    parts = safe_log(loss.values[len(loss.values) - blocks * BLOCK :]).reshape(blocks, BLOCK)
    medians = np.median(parts, axis=1)
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(parts - medians[:, None])))
    lowest = int(np.argmin(medians[:-1]))
    error = MEDIAN_ERROR * sigma * (2 / BLOCK) ** 0.5
    over = float(medians[-1] - medians[lowest]) / max(SIGMAS * error, LEAST_FOR_GOOD)
    if over <= 1:
        return []
    first = int(loss.steps[len(loss.steps) - blocks * BLOCK + (lowest + 1) * BLOCK - 1])
    text = f"the loss was {np.exp(medians[lowest]):.4g} up to step {first} and is {np.exp(medians[-1]):.4g} at the end"
    return [
        make_verdict("spike_growing", "symptom", over, text, "a lower LR or optim.clip_norm, model.qk_norm",
                     f"scalelab diagnose {evidence.folder} --live", (first, int(loss.steps[-1])))
    ]  # fmt: skip


def check_climb(evidence: Evidence) -> Findings:
    """A gradient norm that grows slowly for thousands of steps while the loss does not rise."""
    norms, loss = (evidence.series(name).finite() for name in ("grad_norm", "train_loss"))
    if not len(norms.steps) or norms.steps[-1] < CLIMB_STEPS * 1.2:
        return []
    recent, recent_loss = (each.after(norms.steps[-1] - CLIMB_STEPS) for each in (norms, loss))
    if len(recent.steps) < CLIMB_LINES:
        return []
    rate = slope(recent.steps.astype(float), safe_log(recent.values))
    factor, rises = float(np.exp(rate * CLIMB_STEPS)), slope(recent_loss.steps.astype(float), recent_loss.values) > 0
    if factor < CLIMB_FACTOR or rises:
        return []
    ends = smooth(recent.values)[[0, -1]]
    where = int(recent.steps[0]), int(recent.steps[-1])
    text = f"the gradient norm climbs {factor:.3g}-fold in {CLIMB_STEPS} steps, from {ends[0]:.3g} to {ends[1]:.3g}"
    return [
        make_verdict("climbing", "signature", factor / CLIMB_FACTOR, f"{text}; the loss does not rise",
                     "a lower LR, more weight decay, model.qk_norm", "log.layers_every=10 shows which layers", where)
    ]  # fmt: skip


CHECKS = (check_spikes, check_risen, check_climb)
