"""Judge the peak learning rate: against the optimizer's own, by what it does to weights and loss; and the warm-up."""

import math

import numpy as np

from scalelab.config.optimizer_defaults import FAR_FACTOR, OPTIM_DEFAULTS, default_optim_values
from scalelab.diagnose.checks.settings.siblings import best_sibling_lr, find_siblings, judge_siblings
from scalelab.diagnose.checks.state.optimizer import CODED
from scalelab.diagnose.evidence import SHORT_PATH, Evidence, Series, path_length, update_ratio
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict
from scalelab.optim.registry import find_optimizer

# Update norm over parameter norm. 0.1: stability.md 2.7. Healthy runs of checks/diagnosis/diagnose stay below 0.03.
HIGH_RATIO = 0.1
GOOD_RATIO = 0.02  # what a lower LR is chosen by, where the optimizer has none of its own
HIGH_LINES = 8  # lines above the threshold (stability.md 2.7); fewer, at the start of a run, are a missing warm-up
CALM_RATIO = 0.05
SHORT_WARMUP = 0.01  # share of the run; Wen et al. 2025: 2,000 steps of some 20,000 and up; ours: 5 %
LOSS_ABOVE_CEILING = 0.5  # nats above ln V: diverged (stability.md 2.4)
LEAST_STEPS = 50  # least steps of a run that must have learned something
# Sum of update / weight norms over the run, which bounds how far the weights have moved from their start; on
# configs/tiny 2.7 at the good LR, 0.2 at a thirtieth of it, which costs 0.9 nats.
SHORTER_PATH = 0.35
SLOW_FACTOR = 5.0  # LR below the optimizer's own by which a path below SHORTER_PATH is a verdict
RESTARTING = ("cosine_restarts", "wsd_s")  # schedules whose LR rises again
LASTING = ("diverged", "persistent", "growing")  # signals of the guard
SUDDEN = ("large_updates", "early")
ABOVE_LINES = 2  # lines above a uniform guess that are more than one bad batch
GAIN_SIGMAS, LEAST_GAIN = 6.0, 0.02  # of the loss after a few steps at 3 and 10 times the LR; errors of paired windows
# Gain at 10 times over that at 3 times the LR: 4.5 in proportion to the LR; configs/tiny has 4.2 at 3e-4, 2.6 at 1e-3,
# and no sure gain from 3e-3 on.
GAIN_GROWTH = 2.25
LR_QUESTION = "LR against the optimizer's own, and by what it does"


def own_rate(evidence: Evidence) -> float | None:
    """The optimizer's own peak LR; None for a user's optimizer."""
    name = evidence.values["optim.name"]
    if name not in OPTIM_DEFAULTS:
        return None
    return float(default_optim_values(name, evidence.values["optim.scale"])["peak_lr"][0])


def check_lr(evidence: Evidence) -> Findings:
    """Judge a peak LR on both sides: by siblings, by the optimizer's own, by the updates' sizes and the loss."""
    siblings, own = find_siblings(evidence), own_rate(evidence) if "optim.name" in evidence.values else None
    findings = [*judge_siblings(evidence, siblings, own)]
    ratio, lr = update_ratio(evidence), float(evidence.values["optim.peak_lr"] or 0.0)
    if not len(ratio.steps):
        return [*findings, Gap("lr_too_high", "no line with update_norm and param_norm", "log.every_steps=10")]
    findings.append(Judged(LR_QUESTION))
    knob = f"optim.peak_lr={_better_rate(evidence, ratio, best_sibling_lr(siblings)):.3g}"
    warmup = float(evidence.values["schedule.warmup_steps"] or 0)
    high = ratio.values > HIGH_RATIO
    short = warmup < SHORT_WARMUP * evidence.steps
    early = ratio.steps <= max(0.02 * evidence.steps, HIGH_LINES)
    late = ratio.values[~early]
    calm = not len(late) or bool(np.quantile(late, 0.9) < CALM_RATIO)
    passed = short and bool(high[early].any()) and calm
    if passed and len(late) and not _lasting_signs(evidence):  # at whatever LR, only its first steps were too large
        return [*findings, _short_warmup(evidence, ratio, warmup)]
    if far := _far_above(evidence, ratio, lr, knob):
        return [*findings, far]
    if passed:
        return [*findings, _short_warmup(evidence, ratio, warmup)]
    diverged = _divergence(evidence, knob)
    lines_needed = min(HIGH_LINES, max(1, len(high) // 4))
    is_coded = evidence.values["optim.name"] in CODED  # then large updates alone say nothing of the LR
    if (high.sum() >= lines_needed and not is_coded) or (diverged and high.any()):
        return [*findings, _lr_too_high(evidence, ratio, diverged, knob)]
    return [
        *findings,
        *([diverged] if diverged else []),
        *(_slow_by_test(evidence, lr) or _too_low(evidence, ratio, lr)),
    ]


def _better_rate(evidence: Evidence, ratio: Series, sibling: float | None) -> float:
    """A lower LR near a good one: the best sibling's, the optimizer's own, or one that makes updates a usual size.

    A sibling's that is itself far above the optimizer's own would be judged too high in its turn.
    """
    lr, own = float(evidence.values["optim.peak_lr"] or 0.0), own_rate(evidence)
    if sibling is not None and sibling < lr / 2 and (own is None or sibling < FAR_FACTOR * own):
        return sibling
    if own is not None and own <= lr / 3 and find_optimizer(evidence.values["optim.name"]).like != "sgd":
        return own
    if own is not None and own <= lr / FAR_FACTOR:
        return own
    largest = float(ratio.values.max()) if len(ratio.values) else HIGH_RATIO
    return lr * min(1 / 3, max(GOOD_RATIO / max(largest, GOOD_RATIO), 1e-3))


def _far_above(evidence: Evidence, ratio: Series, lr: float, knob: str) -> Verdict | None:
    """Judge an LR that `train` itself warns of, where something of what it does shows."""
    own = own_rate(evidence)
    if own is None or lr < FAR_FACTOR * own:
        return None
    signs = _lasting_signs(evidence)
    if find_optimizer(evidence.values["optim.name"]).like != "sgd":  # whose LR is not the size of its updates
        signs += _sudden_signs(evidence, ratio)
    if not signs:
        return None
    times = lr / own
    name = evidence.values["optim.name"]
    text = f"optim.peak_lr={lr:g} is {times:,.3g} times {name}'s own {own:g}; {'; '.join(signs)}"
    return make_verdict("lr_too_high", "test", times, text, knob, _sweep(evidence, lr))


def _lasting_signs(evidence: Evidence) -> list[str]:
    """Describe signs of a run that the LR has thrown out for good."""
    loss, signs = evidence.series("train_loss"), []
    above = ~(loss.values < evidence.ceiling + LOSS_ABOVE_CEILING)
    if above.sum() >= min(ABOVE_LINES, len(above)) and len(above):
        worst = np.nanmax(np.where(np.isfinite(loss.values), loss.values, np.nan)) if above.any() else math.inf
        signs.append(
            f"the loss reaches {worst:.4g} nats, where a uniform guess has {evidence.ceiling:.3g}, at "
            f"{above.sum()} of {len(above)} lines"
        )
    for event in evidence.kinds("guard"):
        if event.get("signal") in LASTING and event.get("action") != "rewind":
            signs.append(f"the guard saw an incident, {event['signal']}, at step {event['step']}")
            break
    bad = [event for event in evidence.kinds("skip") if event.get("signal") == "bad"]
    if len(bad) >= 3 or evidence.record.get("status") == "diverged":
        signs.append("the run ended diverged" if evidence.record.get("status") == "diverged" else f"{len(bad)} skips")
    return signs


def _sudden_signs(evidence: Evidence, ratio: Series) -> list[str]:
    """Describe updates or first losses that are too large."""
    signs = []
    if (largest := float(ratio.values.max())) > HIGH_RATIO:
        signs.append(f"update/weight norm reaches {largest:.2g} (usual: 0.001 to 0.03)")
    for event in evidence.kinds("guard"):
        if event.get("signal") in SUDDEN:
            signs.append(f"the guard at step {event['step']}: {str(event.get('text', '')).partition(';')[0]}")
            break
    return signs


def _sweep(evidence: Evidence, lr: float) -> str:
    own = own_rate(evidence) or lr / 10
    middle = math.sqrt(own * lr)
    return f"scalelab sweep over optim.peak_lr={own:.2g}, {middle:.2g}, {lr:.2g}"


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


def _lr_too_high(evidence: Evidence, ratio: Series, diverged: Verdict | None, knob: str) -> Verdict:
    steps = ratio.steps[ratio.values > HIGH_RATIO]
    lr, largest = float(evidence.values["optim.peak_lr"]), float(ratio.values.max())
    text = f"update/weight norm is above {HIGH_RATIO} at {len(steps)} logged steps, at most {largest:.2g}"
    text += f"; {diverged.evidence}" if diverged else ""
    where = int(steps[0]), int(steps[-1])
    confirm = f"{_sweep(evidence, lr)}; or scalelab proxy"
    return make_verdict("lr_too_high", "signature", largest / HIGH_RATIO, text, knob, confirm, where)


def _divergence(evidence: Evidence, knob: str) -> Verdict | None:
    """Judge a loss far above that of a uniform guess, after it had been near or below it."""
    loss = evidence.series("train_loss")
    bad = ~(loss.values < evidence.ceiling + LOSS_ABOVE_CEILING)
    good_before = np.minimum.accumulate(np.where(np.isfinite(loss.values), loss.values, np.inf)) < evidence.ceiling + 1
    bad &= good_before
    if not len(loss.steps) or bad.sum() < max(3, 0.02 * len(bad)):
        return None
    first, worst = int(loss.steps[bad][0]), loss.values[bad].max()
    text = f"the loss reaches {worst:.3g} from step {first} on; a uniform guess has {evidence.ceiling:.2f}"
    where, over = (first, int(loss.steps[bad][-1])), float(worst) / evidence.ceiling
    confirm = _sweep(evidence, float(evidence.values["optim.peak_lr"]))
    return make_verdict("lr_too_high", "symptom", over, text, knob, confirm, where)


def _too_low(evidence: Evidence, ratio: Series, lr: float) -> Findings:
    """Judge an LR below the optimizer's own whose updates can't have moved the weights far in the whole run."""
    own = own_rate(evidence)
    if own is None or evidence.values["train.init_from"] or ratio.steps[-1] < LEAST_STEPS or lr <= 0:
        return []
    slower = own / lr
    path, limit = path_length(ratio), SHORT_PATH if slower > FAR_FACTOR else SHORTER_PATH
    if slower < SLOW_FACTOR or path >= limit:
        return []
    loss = evidence.series("train_loss").finite()
    text = f"optim.peak_lr={lr:g} is 1/{slower:.3g} of {evidence.values['optim.name']}'s own {own:g}, and all updates "
    text += f"of {ratio.steps[-1]} steps together are at most {path:.2g} times the weights' norm: they have hardly "
    text += "left their start"
    text += f"; the loss was {loss.values[-1]:.4g} and still falling" if _falls(loss) else ""
    confirm = f"scalelab diagnose {evidence.quoted} --live trains some steps at 3 and 10 times the LR"
    return [make_verdict("lr_too_low", "signature", limit / path, text, f"optim.peak_lr={own:g}", confirm)]


def _slow_by_test(evidence: Evidence, lr: float) -> Findings:
    """Judge steps trained at several LRs from a saved state: what they gain still grows with the LR, nearly in line."""
    p, own = evidence.probes, own_rate(evidence)
    gains = [float(p.get(f"rate_gain/{factor}", 0.0)) for factor in (3, 10)]
    errors = [float(p.get(f"rate_se/{factor}", math.inf)) for factor in (3, 10)]
    sure = all(gain > GAIN_SIGMAS * error for gain, error in zip(gains, errors, strict=True))
    if not sure or gains[1] < max(GAIN_GROWTH * gains[0], LEAST_GAIN):
        return []
    text = (
        f"{p['rate_steps']:.0f} steps from the saved step {p['rate_from']:.0f} on end {gains[0]:.2g} nats lower at 3 "
    )
    text += f"times the LR, and {gains[1]:.2g} at 10 times: the loss falls nearly in proportion to the LR"
    knob = f"optim.peak_lr={own if own is not None and own > 2 * lr else 10 * lr:.3g}"
    return [make_verdict("lr_too_low", "test", gains[1] / LEAST_GAIN, text, knob, _sweep(evidence, lr))]


def _falls(loss: Series) -> bool:
    """Whether the loss of the last third is below that of the third before."""
    third = len(loss.values) // 3
    return third > 0 and float(np.mean(loss.values[-third:])) < float(np.mean(loss.values[-2 * third : -third]))


CHECKS = (check_lr,)
