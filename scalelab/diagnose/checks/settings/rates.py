"""Judge learning rate, warm-up and schedule: too high, too short, unlike the config, never decayed, not finite."""

import numpy as np

from scalelab.diagnose.evidence import Evidence, Series, update_ratio
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict
from scalelab.errors import BadInput, quote_path

# Update norm over parameter norm. 0.1: stability.md 2.7. Healthy runs of checks/diagnosis/diagnose stay below 0.03.
HIGH_RATIO = 0.1
HIGH_LINES = 8  # lines above the threshold (stability.md 2.7); fewer, at the start of a run, are a missing warm-up
CALM_RATIO = 0.05
SHORT_WARMUP = 0.01  # share of the run; Wen et al. 2025: 2,000 steps of some 20,000 and up; ours: 5 %
LOSS_ABOVE_CEILING = 0.5  # nats above ln V: diverged (stability.md 2.4)
SAME_LR = 0.02  # relative difference between the LR logged and scheduled; fp32 rounds to 1e-7
DECAYED = 0.5  # last LR / largest, below which the LR has decayed (cosine and linear to 0.1 and WSD end far below)
SHORT_RUN = 50  # least steps of a run; in fewer the last step's LR is not near the schedule's end
FLOOR_SHARE = 0.3  # share of a run after warm-up at the schedule's lowest LR, from which on a horizon is too short
CONSTANT = ("constant", "inverse_sqrt", "power", "cosine_restarts", "wsd_s")  # need not end low
RESTARTING = ("cosine_restarts", "wsd_s")


@asks("updates against weights; divergence")
def check_lr(evidence: Evidence) -> Findings | None:
    """Judge updates too large for their weights: in the first steps without a warm-up, or anywhere."""
    ratio, warmup = update_ratio(evidence), float(evidence.values["schedule.warmup_steps"] or 0)
    if not len(ratio.steps):
        return [Gap("lr_too_high", "no line with update_norm and param_norm", "log.every_steps=10")]
    high = ratio.values > HIGH_RATIO
    short = warmup < SHORT_WARMUP * evidence.steps
    early = ratio.steps <= max(0.02 * evidence.steps, HIGH_LINES)
    late = ratio.values[~early]
    if short and high[early].any() and (not len(late) or np.quantile(late, 0.9) < CALM_RATIO):
        return [_short_warmup(evidence, ratio, warmup)]
    diverged = _divergence(evidence)
    lines_needed = min(HIGH_LINES, max(1, len(high) // 4))
    if high.sum() >= lines_needed or (diverged and high.any()):
        return [_lr_too_high(evidence, ratio, diverged)]
    return [diverged] if diverged else []


def _short_warmup(evidence: Evidence, ratio: Series, warmup: float) -> Verdict:
    first, largest = ratio.steps[ratio.values > HIGH_RATIO], float(ratio.values.max())
    later = float(np.median(ratio.values[ratio.values <= HIGH_RATIO]))
    text = (
        f"update/weight norm is {largest:.2g} at steps {first[0]} to {first[-1]} and {later:.2g} after them, with a "
        f"warm-up of {warmup:.0f} of {evidence.steps} steps"
    )
    knob = f"schedule.warmup_steps={max(10, round(0.05 * evidence.steps))} (2 to 5 % of the run)"
    confirm = f"scalelab train --config.{knob.partition(' ')[0]} and compare the first {int(first[-1]) + 1} steps"
    return make_verdict(
        "warmup_too_short", "signature", largest / HIGH_RATIO, text, knob, confirm, (int(first[0]), int(first[-1]))
    )


def _lr_too_high(evidence: Evidence, ratio: Series, diverged: Verdict | None) -> Verdict:
    steps = ratio.steps[ratio.values > HIGH_RATIO]
    lr, largest = float(evidence.values["optim.peak_lr"]), float(ratio.values.max())
    text = f"update/weight norm is above {HIGH_RATIO} at {len(steps)} logged steps, at most {largest:.2g}"
    text += f"; {diverged.evidence}" if diverged else ""
    return make_verdict(
        "lr_too_high",
        "signature",
        largest / HIGH_RATIO,
        text,
        f"optim.peak_lr={lr / 3:.2g}",
        f"scalelab sweep over optim.peak_lr={lr / 10:.2g}, {lr / 3:.2g}, {lr:.2g}; or scalelab proxy",
        (int(steps[0]), int(steps[-1])),
    )


def _divergence(evidence: Evidence) -> Verdict | None:
    """Judge a loss far above that of a uniform guess, after it had been near or below it."""
    loss = evidence.series("train_loss")
    bad = ~(loss.values < evidence.ceiling + LOSS_ABOVE_CEILING)
    good_before = np.minimum.accumulate(np.where(np.isfinite(loss.values), loss.values, np.inf)) < evidence.ceiling + 1
    bad &= good_before
    if not len(loss.steps) or bad.sum() < max(3, 0.02 * len(bad)):
        return None
    first, worst = int(loss.steps[bad][0]), loss.values[bad].max()
    text = f"the loss reaches {worst:.3g} from step {first} on; a uniform guess has {evidence.ceiling:.2f}"
    lr = float(evidence.values["optim.peak_lr"])
    return make_verdict(
        "lr_too_high",
        "symptom",
        float(worst) / evidence.ceiling,
        text,
        f"optim.peak_lr={lr / 3:.2g}",
        f"scalelab sweep over optim.peak_lr={lr / 10:.2g}, {lr / 3:.2g}, {lr:.2g}",
        (first, int(loss.steps[bad][-1])),
    )


@asks("the LR against its schedule, and the schedule's end")
def check_schedule(evidence: Evidence) -> Findings | None:
    """Judge the logged LR against the config's schedule, and the schedule's end."""
    lr = evidence.series("lr")
    if not len(lr.steps):
        return [Gap("schedule_wrong", "no line with an LR", "log.every_steps=10")]
    bad = ~(np.isfinite(lr.values) & (lr.values >= 0))
    if bad.any():
        text = (
            f"the LR is {lr.values[bad][0]} at step {lr.steps[bad][0]}, and not a positive number at {bad.sum()} steps"
        )
        knob = f"schedule.name={evidence.values['schedule.name']!r}: finite and at least 0 at every step"
        where = int(lr.steps[bad][0]), int(lr.steps[bad][-1])
        return [make_verdict("schedule_invalid", "test", np.inf, text, knob, "scalelab schedule --config=…", where)]
    return [*_unlike_config(evidence, lr), *_restart(evidence, lr), *_end(evidence, lr)]


def _unlike_config(evidence: Evidence, lr: Series) -> Findings:
    if any(event.get("action") == "rewind" for event in evidence.kinds("guard")):
        return []  # the guard lowers the LR on purpose, and its events say so
    try:
        planned = evidence.scheduled_lr.values
    except BadInput as error:
        return [Gap("schedule_wrong", f"the schedule can't be computed ({error})", "--trust=PKG.MOD:FN")]
    peak = max(float(np.max(planned)), 1e-30)
    differs = np.abs(lr.values - planned) > SAME_LR * peak
    if not differs.any():
        return []
    i = int(np.flatnonzero(differs)[0])
    text = (
        f"the LR logged at {differs.sum()} of {len(differs)} steps is not the one of the config: "
        f"{lr.values[i]:.3g} at step {lr.steps[i]}, where its schedule has {planned[i]:.3g}"
    )
    over = float(np.max(np.abs(lr.values - planned)) / peak / SAME_LR)
    where = int(lr.steps[differs][0]), int(lr.steps[differs][-1])
    changes = [event.get("text", "") for event in evidence.kinds("config_change")]
    text += f" (changed: {'; '.join(changes)})" if changes else ""
    knob = "schedule and train.steps as in the steps before"
    confirm = f"scalelab schedule --config={quote_path(evidence.folder / 'config.json')}"
    return [make_verdict("schedule_wrong", "test", over, text, knob, confirm, where)]


def _restart(evidence: Evidence, lr: Series) -> Findings:
    """Judge an LR that rises again after a fall, under a schedule without restarts."""
    if evidence.values["schedule.name"] in RESTARTING:
        return []
    top = int(np.argmax(lr.values[: max(1, len(lr.values) // 4)]))
    lowest = np.minimum.accumulate(lr.values[top:])
    rise = lr.values[top:] / np.maximum(lowest, 1e-30)
    i = int(np.argmax(rise))
    if rise[i] < 2 or lowest[i] <= 0 or lowest[i] > 0.9 * lr.values[top]:
        return []
    step, low = int(lr.steps[top:][i]), int(lr.steps[top:][np.argmin(lr.values[top : top + i + 1])])
    text = f"the LR rises {rise[i]:.3g}-fold again from step {low} to {step}, after it had fallen"
    knob = "a schedule without a restart, or one that says so"
    confirm = "scalelab schedule --config=…"
    return [make_verdict("schedule_wrong", "signature", rise[i] / 2, text, knob, confirm, (low, step))]


def _end(evidence: Evidence, lr: Series) -> Findings:
    """Judge a decaying schedule that has not decayed at the run's end, or reached its end long before."""
    name, largest = evidence.values["schedule.name"], float(lr.values.max())
    ended = (
        evidence.record.get("status") == "done"
        and lr.steps[-1] >= evidence.steps - 2 * evidence.values["log.every_steps"]
    )
    if not ended or name in CONSTANT or largest <= 0 or evidence.steps < SHORT_RUN:
        return []
    knob = "schedule.fall_share=1, schedule.decay_share=0.2: the horizon is train.steps"
    confirm = "scalelab schedule --config=… (the LR at the last step)"
    share = float(lr.values[-1]) / largest
    if share > DECAYED:
        text = f"{name} is a schedule that decays, and the LR at the end is {share:.0%} of its peak"
        return [make_verdict("schedule_wrong", "test", share / DECAYED, text, knob, confirm, (int(lr.steps[-1]),) * 2)]
    lowest = float(lr.values[lr.steps > evidence.values["schedule.warmup_steps"]].min(initial=largest))
    floor = np.mean(lr.values[lr.steps > evidence.steps / 20] <= lowest * 1.001)
    if floor <= FLOOR_SHARE:
        return []
    first = int(lr.steps[(lr.values <= lowest * 1.001) & (lr.steps > evidence.steps / 20)][0])
    text = f"the LR is at its lowest, {lowest:.2g}, from step {first} on: for {floor:.0%} of the run"
    return [
        make_verdict("schedule_wrong", "test", float(floor) / FLOOR_SHARE, text, knob, confirm, (first, evidence.steps))
    ]


CHECKS = (check_lr, check_schedule)
