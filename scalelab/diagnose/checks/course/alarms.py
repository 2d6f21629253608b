"""Judge the guard's alarms in the logbook: it sees every step, also those between two logged lines.

`incidents` are the stretches of flagged losses; `checks/course/spikes.py` names their cause. The other alarms
are judged here.
"""

from typing import NamedTuple

from scalelab.diagnose.checks.settings.rates import SHORT_WARMUP
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.statistics import SIGMAS
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict
from scalelab.precision.policy import POLICIES

LASTING = ("persistent", "growing", "new_level")  # shapes of a lasting incident (train/step/incident.py)
PASSED = ("benign", "slow")
ENDED = (*PASSED, "new_level")  # shapes after which the next flag begins an incident
BAD_STEPS = 3  # least number of steps skipped for numbers that are not finite; fewer are judged by their effects

NO_GUARD = [Gap("guard_alarms", "guard.policy=off", "guard.policy=watch")]


class Incident(NamedTuple):
    """Steps `first` to `last` whose losses the guard flagged; `over`: the highest, in thresholds; `shape`: "" if open.

    `text`: the guard's words on the highest.
    """

    first: int
    last: int
    over: float
    shape: str
    text: str


def incidents(evidence: Evidence) -> list[Incident]:
    """Find stretches of steps with a flagged loss, until the guard saw them pass; large gradients alone make none."""
    closed: list[Incident] = []
    current: Incident | None = None
    for event in evidence.kinds("guard"):
        signal, step = event.get("signal"), int(event.get("step") or 0)
        if signal == "loss":
            over, last = float(event.get("sigmas") or 0.0) / SIGMAS, int(event.get("to") or step)
            text = str(event.get("text", "")).partition(";")[0]
            if current is None:
                current = Incident(step, last, max(over, 1.0), "", text)
            else:
                higher = over > current.over
                current = current._replace(
                    last=last, over=max(over, current.over), text=text if higher else current.text
                )
        elif signal in (*LASTING, *PASSED) and current is not None:
            current = current._replace(shape=str(signal), last=max(current.last, step))
            if signal in ENDED:
                closed, current = [*closed, current], None
    return [*closed, *([current] if current else [])]


@asks("the guard's alarms of the first steps")
def check_start(evidence: Evidence) -> Findings | None:
    """Judge updates or losses too large in the first steps: a missing warm-up, or an LR that is too high."""
    if _unguarded(evidence):
        return NO_GUARD
    findings: list[Verdict] = []
    for event in _first_of_each(evidence, "large_updates", "early"):
        step, short = int(event["step"]), float(evidence.values["schedule.warmup_steps"] or 0)
        no_warmup = short < SHORT_WARMUP * evidence.steps
        over = float(event.get("value") or 0.0) / max(float(event.get("threshold") or 0.0), 1e-30)
        lr = float(evidence.values["optim.peak_lr"])
        knob = "schedule.warmup_steps: 2 to 5 % of the run" if no_warmup else f"optim.peak_lr={lr / 3:.2g}"
        confirm = "scalelab train … with it, and compare the first steps"
        cause = "warmup_too_short" if no_warmup else "lr_too_high"
        kind = "signature" if event["signal"] == "large_updates" else "symptom"
        steps = step, int(event.get("to") or step)
        findings.append(make_verdict(cause, kind, over, _words(event), knob, confirm, steps))
    return findings


@asks("the guard's lasting alarms")
def check_lasting(evidence: Evidence) -> Findings | None:
    """Judge a loss that rose for good, a gradient norm that climbs, and a run that the guard gave up."""
    if _unguarded(evidence):
        return NO_GUARD
    findings: list[Verdict] = []
    causes = {
        "risen": ("spike_growing", "symptom", "a lower LR or optim.clip_norm, model.qk_norm"),
        "climbing": ("climbing", "signature", "a lower LR, more weight decay, model.qk_norm"),
        "diverged": ("lr_too_high", "symptom", f"optim.peak_lr={float(evidence.values['optim.peak_lr']) / 3:.2g}"),
    }
    for event in _first_of_each(evidence, *causes):
        cause, kind, knob = causes[event["signal"]]
        over = float(event.get("value") or 2.0) / max(float(event.get("threshold") or 1.0), 1e-30)
        step = int(event["step"])
        confirm = f"scalelab replay {evidence.quoted}@{max(step - 32, 1)}..{step} --what-if='lr*=.3,1'"
        findings.append(make_verdict(cause, kind, over, _words(event), knob, confirm, (step, step)))
    return findings


@asks("steps that are not finite")
def check_bad(evidence: Evidence) -> Findings | None:
    """Judge steps skipped for a number that was not finite, in a format that does not overflow by itself."""
    policy = POLICIES[evidence.values["precision.name"]]
    skipped = [event for event in evidence.kinds("skip", "guard") if event.get("signal") == "bad"]
    if policy.scaled_loss or "float16" in (policy.compute, policy.backward):
        return None
    if len(skipped) < BAD_STEPS:
        return []
    first, last = int(skipped[0]["step"]), int(skipped[-1]["step"])
    text = f"{len(skipped)} steps were skipped or lost a micro-batch, the first at step {first}: "
    text += str(skipped[0].get("text", ""))
    streaks = evidence.series("streak").finite().values
    text += f"; the longest streak logged is {streaks.max():.0f}" if len(streaks) and streaks.max() > 1 else ""
    knob = "a lower LR; the loss's own term or data"
    confirm = f"scalelab diagnose {evidence.quoted} --batch={first}"
    return [make_verdict("not_finite", "symptom", len(skipped) / BAD_STEPS, text, knob, confirm, (first, last))]


def _unguarded(evidence: Evidence) -> bool:
    """Whether no guard watched the run."""
    return str(evidence.values["guard.policy"]) == "off"


def _first_of_each(evidence: Evidence, *signals: str) -> list[dict]:
    """Find the first event of each signal, with its text; rewinds are left out: another event has their signal."""
    first: dict[str, dict] = {}
    for event in evidence.kinds("guard"):
        if event.get("signal") in signals and event.get("action") != "rewind":
            first.setdefault(event["signal"], dict(event))
    return list(first.values())


def _words(event: dict) -> str:
    return f"the guard at step {event['step']}: {str(event.get('text', '')).partition(';')[0]}"


CHECKS = (check_start, check_lasting, check_bad)
