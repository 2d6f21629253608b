"""Judge spikes of the loss by shape: a batch, an instability that passes or grows, a climb of the gradient norm."""

import numpy as np

from scalelab.diagnose.checks.course import alarms
from scalelab.diagnose.checks.read import outliers
from scalelab.diagnose.checks.settings.rates import RESTARTING
from scalelab.diagnose.evidence import Evidence, Series
from scalelab.diagnose.statistics import (
    MAD_TO_SIGMA,
    SIGMAS,
    fit_slope,
    flag_above,
    join_spans,
    safe_log,
    smooth_values,
)
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict

RECOVERY = 32  # lines after which a benign spike is over (stability.md 2.9)
ORDINARY_UPDATE = 2.0  # last update norm before a jump / its median, below which the weights did not cause the jump
SHARP = 0.5  # share of a rise, or of its fall, that comes in one step if a batch makes it
CLIMB_STEPS, CLIMB_FACTOR = 2000, 2.0  # stability.md 2.5
CLIMB_LINES = 100  # fewer give no slope
BLOCK = 32  # number of lines whose medians are compared (stability.md 2.3)
MEDIAN_ERROR = 1.2533  # standard error of a median / of a mean, of normal values
LEAST_FOR_GOOD = 0.05  # in ln loss
SETTLED = 0.1  # share of a run whose loss falls too fast to be compared with its past


@asks("spikes of the loss")
def check_spikes(evidence: Evidence) -> Findings | None:
    """Judge losses far above their past, in logged lines and in the guard's alarms between them."""
    loss = evidence.series("train_loss").after(max(SETTLED * evidence.steps, evidence.values["schedule.warmup_steps"]))
    verdicts: list[Verdict] = []
    if len(loss.steps) >= RECOVERY:
        flags = flag_above(safe_log(loss.values))
        stretches = _without_aftermath(join_spans(flags.flagged), flags.over)
        verdicts = [_judge(evidence, loss, first, last, flags.over) for first, last in stretches]
    if int(evidence.values["log.every_steps"]) > 1:
        seen = [verdict.steps for verdict in verdicts if verdict.steps]
        verdicts += [
            _judge_incident(evidence, incident)
            for incident in alarms.incidents(evidence)
            if not any(first <= incident.last and incident.first <= last for first, last in seen)
        ]
    if not verdicts and len(loss.steps) < RECOVERY and evidence.values["guard.policy"] == "off":
        return [Gap("spike_benign", f"fewer than {RECOVERY} lines, and no guard", "log.every_steps=1")]
    return sorted(verdicts, key=lambda verdict: -verdict.score)[:1]


def _without_aftermath(stretches: list[tuple[int, int]], over: np.ndarray) -> list[tuple[int, int]]:
    """Drop stretches of flagged lines that follow a higher one within RECOVERY lines: they are its aftermath."""
    left: list[tuple[int, int]] = []
    end, height = -RECOVERY - 1, 0.0
    for first, last in stretches:
        own = float(over[first : last + 1].max())
        if first - end > RECOVERY or own > height:
            left.append((first, last))
            height = own
        end = last
    return left


def _judge(evidence: Evidence, loss: Series, first: int, last: int, over: np.ndarray) -> Verdict:
    """Judge one stretch of flagged lines `first` to `last` of `loss`."""
    before = float(np.median(loss.values[max(0, first - RECOVERY) : first]))
    peak = float(np.max(np.nan_to_num(loss.values[first : last + 1], nan=np.inf)))
    height = float(over[first : last + 1].max())
    where = int(loss.steps[first]), int(loss.steps[last])
    text = (
        f"the loss is {peak:.3g} in steps {where[0]} to {where[1]}, after {before:.3g}: {height:.3g} thresholds above"
    )
    guarded = evidence.series("loss_sigmas").finite().after(where[0] - 1).until(where[1]).values
    text += f", by the guard {guarded.max():.3g} standard deviations" if len(guarded) and guarded.max() > SIGMAS else ""
    every = int(evidence.values["log.every_steps"])
    if odd := outliers.describe_odd_batches(evidence, where[0] - every + 1, where[1]):
        return _by_batches(evidence, "test", height, f"{text}; {odd}", where)
    if every == 1 and (why := _caused_by_batch(evidence, loss, first, last, before)):
        return _by_batches(evidence, "signature", height, f"{text}; {why}", where)
    growing = last >= len(loss.steps) - 3 or loss.steps[last] - loss.steps[first] > RECOVERY * every
    end = "it does not come back" if growing else f"back after {last - first + 1} lines"
    return _by_weights(evidence, growing, height, f"{text}; {end}", where)


def _judge_incident(evidence: Evidence, incident: alarms.Incident) -> Verdict:
    """Judge an incident that only the guard has seen."""
    where = incident.first, incident.last
    text = f"the guard flagged steps {where[0]} to {where[1]}, between logged lines: {incident.text}"
    if odd := outliers.describe_odd_batches(evidence, *where):
        return _by_batches(evidence, "test", incident.over, f"{text}; {odd}", where)
    text += f"; the incident is {incident.shape}" if incident.shape else ""
    return _by_weights(evidence, incident.shape in alarms.LASTING, incident.over, text, where)


def _by_batches(evidence: Evidence, kind: str, height: float, text: str, where: tuple[int, int]) -> Verdict:
    knob = "train --skip-batches, or filter"
    confirm = f"scalelab diagnose {evidence.quoted} --batch={where[0]}"
    return make_verdict("data_outlier", kind, height, text, knob, confirm, where)


def _by_weights(evidence: Evidence, growing: bool, height: float, text: str, where: tuple[int, int]) -> Verdict:
    return make_verdict(
        "spike_growing" if growing else "spike_benign",
        "symptom",
        height,
        text,
        "a lower LR or optim.clip_norm, model.qk_norm" if growing else "none: watch whether the next ones are higher",
        f"scalelab diagnose {evidence.quoted} --batch={where[0]}",
        where,
    )


def _caused_by_batch(evidence: Evidence, loss: Series, first: int, last: int, before: float) -> str:
    """Explain why batches, not weights, made a jump; "" if they did not.

    The loss of a step is that of the weights before its update. If most of a rise comes in the one step after an update
    of ordinary size, the batch made it. If it also falls in one step, the loss follows the data. The effect of many
    such batches has to be unlearnt, so a slow return proves nothing.
    """
    updates = evidence.series("update_norm").finite()
    earlier = updates.until(loss.steps[first] - 1)
    if len(earlier.steps) < RECOVERY:
        return ""
    usual = float(np.median(earlier.values[-RECOVERY:]))
    last_update = float(earlier.values[-1]) / max(usual, 1e-30)
    inside, after = loss.values[first : last + 1], loss.values[last + 1 : last + 6]
    height = float(np.max(np.nan_to_num(inside, nan=np.inf))) - before
    if last_update > ORDINARY_UPDATE or not inside[0] - before > SHARP * height:
        return ""
    at_once = len(after) > 0 and float(inside[-1] - np.median(after)) > SHARP * height
    end = "the loss is back in one step" if at_once else "the weights that learnt from them come back slowly"
    text = f"the update before it was ordinary ({last_update:.2g} of the median)"
    text += f", {(inside[0] - before) / height:.0%} of the rise came in one step, and {end}"
    return text


@asks("a loss that rises for good")
def check_risen(evidence: Evidence) -> Findings | None:
    """Judge a loss that rose for good, too slowly for a spike, by medians of blocks of lines (stability.md 2.3)."""
    v = evidence.values
    stages = ";" in str(v.get("data.mixture", ""))
    known = v.get("schedule.name") in RESTARTING or stages or v.get("schedule.seq_warmup_tokens")
    loss = evidence.series("train_loss").finite().after(max(SETTLED * evidence.steps, v["schedule.warmup_steps"]))
    blocks = len(loss.steps) // BLOCK
    if known:
        return None
    if blocks < 3:
        return [Gap("spike_growing", f"fewer than {3 * BLOCK} lines after the first tenth", "log.every_steps=1")]
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
    knob = "a lower LR or optim.clip_norm, model.qk_norm"
    confirm = f"scalelab diagnose {evidence.quoted} --live"
    return [make_verdict("spike_growing", "symptom", over, text, knob, confirm, (first, int(loss.steps[-1])))]


@asks("a gradient norm that climbs")
def check_climb(evidence: Evidence) -> Findings | None:
    """Judge a gradient norm that grows slowly for thousands of steps while the loss does not rise."""
    norms, loss = (evidence.series(name).finite() for name in ("grad_norm", "train_loss"))
    if not len(norms.steps) or norms.steps[-1] < CLIMB_STEPS * 1.2:
        return None  # asked of long runs
    recent, recent_loss = (each.after(norms.steps[-1] - CLIMB_STEPS) for each in (norms, loss))
    if len(recent.steps) < CLIMB_LINES:
        return [Gap("climbing", f"fewer than {CLIMB_LINES} lines in {CLIMB_STEPS} steps", "log.every_steps=10")]
    rate = fit_slope(recent.steps.astype(float), safe_log(recent.values))
    factor = float(np.exp(rate * CLIMB_STEPS))
    rises = fit_slope(recent_loss.steps.astype(float), recent_loss.values) > 0
    if factor < CLIMB_FACTOR or rises:
        return []
    ends = smooth_values(recent.values)[[0, -1]]
    where = int(recent.steps[0]), int(recent.steps[-1])
    text = f"the gradient norm climbs {factor:.3g}-fold in {CLIMB_STEPS} steps, from {ends[0]:.3g} to {ends[1]:.3g}"
    knob = "a lower LR, more weight decay, model.qk_norm"
    confirm = "log.layers_every=10 shows which layers"
    return [
        make_verdict(
            "climbing", "signature", factor / CLIMB_FACTOR, f"{text}; the loss does not rise", knob, confirm, where
        )
    ]


CHECKS = (check_spikes, check_risen, check_climb)
