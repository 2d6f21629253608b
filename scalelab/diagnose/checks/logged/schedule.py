"""Judge the logged LR against the declared schedule at each logged step, and the schedule's end."""

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.diagnose.checks.logged import formulas
from scalelab.diagnose.checks.logged.patterns import SAME_LR, name_pattern
from scalelab.diagnose.evidence import CHANGED_KEY, Evidence, Series
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict
from scalelab.errors import BadInput, quote_path
from scalelab.optim import schedules
from scalelab.precision.loss_scale import INTERVAL
from scalelab.train.lineage.changes import list_changes, lr_factors

DECAYED = 0.5  # last LR / largest, below which the LR has decayed (cosine and linear to 0.1 and WSD end far below)
SHORT_RUN = 50  # least steps of a run; in fewer the last step's LR is not near the schedule's end
REACHED = 0.3  # of the declared peak, that a schedule comes to somewhere
FLOOR_SHARE = 0.3  # share of a run after warm-up at the schedule's lowest LR, from which on a horizon is too short
LONG_FLOOR = 0.5  # the same of a floor at which a run still learns, IDLE of the peak or more
IDLE = 0.01
CONSTANT = ("constant", "inverse_sqrt", "power", "cosine_restarts", "wsd_s")  # need not end low
RESTARTS = ("resume", "branch", "fallback", "moved")
CURVE_KEYS = ("schedule.", "optim.peak_lr", "train.steps", "train.global_batch", "train.accumulate")
SLOWED = "LR and clip x"  # of an event of the guard in the first steps, which lowers both in the step itself
EDGES, EDGE_SHARE = 2, 0.02  # lines that may differ from a formula, and their share
QUESTION = "LR follows the declared schedule at each logged step"


def check_schedule(evidence: Evidence) -> Findings:
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
    return [*_unlike_config(evidence, lr), *_end(evidence, lr), *_height(evidence, lr)]


def _height(evidence: Evidence, lr: Series) -> Findings:
    """Judge a declared schedule that never comes near its declared peak: a factor of its own is in another unit."""
    name, peak = str(evidence.values["schedule.name"]), float(evidence.values["optim.peak_lr"] or 0.0)
    if ":" in name or not peak > 0 or lr.steps[-1] <= float(evidence.values["schedule.warmup_steps"] or 0):
        return []
    share = float(np.max(evidence.scheduled_lr.values)) / peak
    if not 0 < share < REACHED:
        return []
    text = f"schedule.name={name!r} is at most {share:.2g} of its declared peak {peak:g} at the {len(lr.steps)} logged "
    text += "steps, and the warm-up is over: what it multiplies the peak with is small from the start"
    factors = sorted(key for key in evidence.values if key.startswith("schedule.") and key.endswith("_scale"))
    factors = [f"{key}={evidence.values[key]}" for key in factors if name in key]
    text += f" ({', '.join(factors)})" if factors else ""
    knob = f"the factors of schedule.name={name!r}" + (f": {', '.join(factors)} in its own unit" if factors else "")
    confirm = f"scalelab schedule --config={quote_path(evidence.folder / 'config.json')}"
    where = int(lr.steps[0]), int(lr.steps[-1])
    return [make_verdict("schedule_wrong", "signature", 2 * REACHED / share, text, knob, confirm, where)]


def _unlike_config(evidence: Evidence, lr: Series) -> Findings:
    try:
        planned, judged = declared_rates(evidence, lr)
    except BadInput as error:
        return [Gap("schedule_wrong", f"the schedule can't be computed ({error})", "--trust=PKG.MOD:FN")]
    if not judged.any():
        return [Gap("schedule_wrong", "the LR was changed on purpose before the first line", "log.every_steps=10")]
    peak = max(float(np.max(planned)), 1e-30)
    differs = judged & (np.abs(lr.values - planned) > SAME_LR * peak)
    if not differs.any():
        planned, differs = _unlike_formula(evidence, lr, judged)
    if not differs.any():
        return [Judged(QUESTION)]
    return [Judged(QUESTION), _unlike_verdict(evidence, lr, planned, differs, peak)]


def _unlike_formula(evidence: Evidence, lr: Series, judged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the LR by the schedule's formula, lines at which what the program computes is another).

    A line or two where a cycle ends may differ by the rounding of fp32.
    """
    has_config = (evidence.folder / "config.json").exists()
    right = formulas.compute_rates(evidence.values, lr.steps - 1) if has_config else None
    if right is None:
        return lr.values, np.zeros(len(judged), bool)
    differs = judged & (np.abs(evidence.scheduled_lr.values - right) > SAME_LR * max(float(np.max(right)), 1e-30))
    return right, differs & (differs.sum() > max(EDGES, EDGE_SHARE * len(differs)))


def _unlike_verdict(evidence: Evidence, lr: Series, planned: np.ndarray, differs: np.ndarray, peak: float) -> Verdict:
    i = int(np.flatnonzero(differs)[0])
    text = (
        f"the LR logged at {differs.sum()} of {len(differs)} steps is not the one of the config: "
        f"{lr.values[i]:.4g} at step {lr.steps[i]}, where its schedule has {planned[i]:.4g}"
    )
    over = float(np.max(np.abs(lr.values - planned)[differs]) / peak / SAME_LR)
    where = int(lr.steps[differs][0]), int(lr.steps[differs][-1])
    restarts = sorted({int(event["step"]) for event in evidence.kinds(*RESTARTS) if event.get("step")})
    pattern = name_pattern(evidence, lr.steps[differs], lr.values[differs], planned[differs], restarts)
    since = [step for step in restarts if i and lr.steps[i - 1] <= step < lr.steps[i]]
    text += f"; {pattern.text}" if pattern else ""
    text += f"; the first such line is the one after the restart of step {since[-1]}" if since else ""
    if not pattern and differs.sum() <= max(1, len(differs) // 20):
        text += "; all other lines follow it: was the file edited, or the LR set by hand there?"
    knob = pattern.knob if pattern else "the LR that the step takes: schedule and step as the config declares them"
    confirm = f"scalelab schedule --config={quote_path(evidence.folder / 'config.json')}"
    return make_verdict("schedule_wrong", "test", over, text, knob, confirm, where)


def declared_rates(evidence: Evidence, lr: Series) -> tuple[np.ndarray, np.ndarray]:
    """The declared LR at each line, and which lines it is known for.

    Lines before a change that the logbook notes have the LR of the config before it; what a rewind of the guard or a
    change by hand multiplied the LR with is in the record. Lines after one that the record lacks are not judged.
    BadInput as `Evidence.scheduled_lr`.
    """
    planned, judged = np.array(evidence.scheduled_lr.values, float), np.ones(len(lr.steps), bool)
    changed = {step for step, _, _ in list_changes(evidence.record)}
    for event in evidence.kinds("guard"):
        if event.get("action") == "rewind" and event.get("to") not in changed:
            judged &= lr.steps <= min(int(event.get("to") or 0), int(event.get("step") or 0))
        if event.get("signal") == "early" and SLOWED in str(event.get("text", "")):
            judged &= lr.steps <= int(event.get("step") or 0)
    config: ConfigDict | None = None
    for event in reversed(evidence.kinds("config_change")):
        text, step = str(event.get("text", "")), int(event.get("step") or 0)
        if text.startswith("by hand"):
            judged &= (lr.steps <= step) | (step in changed)
            continue
        before = lr.steps <= step
        changes = {key: value for key, value, _ in CHANGED_KEY.findall(text) if key.startswith(CURVE_KEYS)}
        if not changes or not before.any():
            continue
        try:
            config = _with_values(evidence.config if config is None else config, changes)
            planned[before] = schedules.schedule_curves(config, [int(s) - 1 for s in lr.steps[before]])["lr"]
        except (BadInput, ValueError, KeyError, TypeError):
            judged &= ~before
            break
    return planned * lr_factors(evidence.record, lr.steps), judged


def _with_values(config: ConfigDict, changes: dict[str, str]) -> ConfigDict:
    """The config with values as a logbook wrote them."""
    config = config.copy_and_resolve_references()
    kinds = config_lib.key_records()
    with config.unlocked(), config.ignore_type():
        for key, text in changes.items():
            group, name = key.split(".")
            config[group][name] = None if text == "None" else _read_value(kinds[key].kind, text)
    return config


def _read_value(kind: type, text: str) -> object:
    if kind is bool:
        return text == "True"
    return kind(text)


def _end(evidence: Evidence, lr: Series) -> Findings:
    """Judge a decaying schedule that has not decayed at the run's end, or reached its end long before."""
    name, largest = evidence.values["schedule.name"], float(lr.values.max())
    ended = (
        evidence.record.get("status") == "done"
        and lr.steps[-1] >= evidence.steps - 2 * evidence.values["log.every_steps"]
    )
    flat = name in CONSTANT or ":" in name or float(evidence.values["schedule.final_share"] or 0.0) > DECAYED
    if not ended or flat or largest <= 0 or evidence.steps < SHORT_RUN:
        return []
    knob = _horizon_knob(evidence)
    confirm = "scalelab schedule --config=… (the LR at the last step)"
    share = float(lr.values[-1]) / largest
    if share > DECAYED:
        text = f"{name} is a schedule that decays, and the LR at the end is {share:.0%} of its peak"
        return [make_verdict("schedule_wrong", "test", share / DECAYED, text, knob, confirm, (int(lr.steps[-1]),) * 2)]
    lowest = float(lr.values[lr.steps > evidence.values["schedule.warmup_steps"]].min(initial=largest))
    floor = np.mean(lr.values[lr.steps > evidence.steps / 20] <= lowest * 1.001)
    if floor <= (FLOOR_SHARE if lowest < IDLE * largest else LONG_FLOOR):
        return []
    first = int(lr.steps[(lr.values <= lowest * 1.001) & (lr.steps > evidence.steps / 20)][0])
    text = f"the LR is at its lowest, {lowest:.2g}, from step {first} on: for {floor:.0%} of the run"
    return [
        make_verdict("schedule_wrong", "test", float(floor) / FLOOR_SHARE, text, knob, confirm, (first, evidence.steps))
    ]


def check_loss_scale(evidence: Evidence) -> Findings:
    """Judge the loss scale between lines: halved by skipped steps alone, doubled after INTERVAL finite ones alone."""
    scale, skipped = evidence.series("loss_scale"), evidence.series("skipped")
    if evidence.values["guard.skip"] == "micro_batch" or len(scale.steps) < 2 or len(scale.steps) != len(skipped.steps):
        return []
    steps, falls = np.diff(scale.steps), np.diff(skipped.values)
    # A line has the scale of its own step: an overflow, which is counted there, lowers that of the next one.
    norms = evidence.series("grad_norm")
    overflowed = np.isin(scale.steps[:-1], norms.steps[~np.isfinite(norms.values)])
    falls = falls + overflowed
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.diff(np.log2(scale.values))
    bad = ~((octaves == np.round(octaves)) & (octaves >= -falls) & (octaves <= steps // INTERVAL + 1))
    bad |= (octaves > 0) & (scale.steps[1:] < INTERVAL)
    findings: list[Judged | Verdict] = [Judged("the loss scale follows its rule")]
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        text = (
            f"the loss scale goes from {scale.values[i]:g} at step {scale.steps[i]} to {scale.values[i + 1]:g} at step "
        )
        text += (
            f"{scale.steps[i + 1]}, with {falls[i]:.0f} skipped steps between; by its rule it halves once for each and "
        )
        text += f"doubles after {INTERVAL} finite steps; at {bad.sum()} of {len(bad)} lines"
        knob, where = (
            "precision/loss_scale.py, or your rule in its place",
            (int(scale.steps[i]), int(scale.steps[i + 1])),
        )
        confirm = "the lines named, in metrics.jsonl"
        findings.append(make_verdict("loss_scale_wrong", "test", np.inf, text, knob, confirm, where))
    return findings


def _horizon_knob(evidence: Evidence) -> str:
    if float(evidence.values["schedule.warmup_steps"] or 0) > evidence.steps / 2:
        return f"schedule.warmup_steps={max(1, round(0.05 * evidence.steps))}"
    if float(evidence.values["schedule.fall_share"]) != 1:
        return "schedule.fall_share=1"
    if evidence.values["schedule.name"] == "wsd" and not evidence.values["schedule.decay_steps"]:
        return f"schedule.decay_steps={round(0.2 * evidence.steps)}"
    return "a schedule whose horizon is train.steps"


CHECKS = (check_schedule, check_loss_scale)
