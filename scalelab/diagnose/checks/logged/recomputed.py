"""Judge logged losses against those that saved states give again (`--live`): validation, and the steps' own lines."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict

# Relative differences: sums in another order differ by some 1e-6 in fp32; other formats round to 2^-8 and less.
SAME, SAME_ROUNDED = 1e-4, 1e-2
EXACT = 1e-6
EXPLAINED = 0.1  # of the difference of the weights' norm, which another decay leaves
DECAY_FACTOR = 0.02  # imaginary part of a factor on the decay that is rounding
UPDATE = ("update_norm", "param_norm")
VALIDATION = "a validation loss is the checkpoint's (its weights, not their EMA)"
TRAINING = "the training loss logged is the one that the saved weights have on the step's batch"


def _tolerance(evidence: Evidence) -> float:
    return SAME if evidence.values["precision.name"] == "fp32" else SAME_ROUNDED


def _by_step(evidence: Evidence, name: str) -> dict[int, float]:
    """Probed values NAME/STEP by step."""
    return {
        int(key.partition("/")[2]): value for key, value in evidence.probes.items() if key.partition("/")[0] == name
    }


def _differ(a: float, b: float, close: float) -> bool:
    return not math.isclose(a, b, rel_tol=close) and not (math.isnan(a) and math.isnan(b))


def check_validation(evidence: Evidence) -> Findings:
    """Judge each validation loss that a saved step allows to compute again."""
    if "val_asked" not in evidence.probes:
        return []
    again = _by_step(evidence, "val")
    logged = {int(row["step"]): float(row["val_loss"]) for row in evidence.evaluations}
    if not again:
        every = evidence.values["eval.every_steps"]
        why = "no saved step has a validation loss in the log"
        return [Gap("val_loss_wrong", why, f"checkpoint.every_steps={every}, as eval.every_steps")]
    wrong = [step for step, loss in again.items() if _differ(logged[step], loss, _tolerance(evidence))]
    findings: list[Judged | Verdict] = [Judged(VALIDATION)]
    if wrong:
        step = wrong[0]
        text = f"the validation loss logged at step {step} is {logged[step]:.6g}; the weights saved there have "
        text += f"{again[step]:.6g} on the same windows"
        words, knob = _name_validation(evidence, step, logged, again)
        over = abs(logged[step] - again[step]) / max(abs(again[step]), 1e-9) / SAME
        confirm = f"scalelab eval {evidence.quoted}@{step}"
        text += f"; {words}" if words else ""
        findings.append(make_verdict("val_loss_wrong", "test", over, text, knob, confirm, (step, step)))
    return findings


def _name_validation(
    evidence: Evidence, step: int, logged: Mapping[int, float], again: Mapping[int, float]
) -> tuple[str, str]:
    """Name what the logged loss is, and what to do."""
    value, close = logged[step], _tolerance(evidence)
    ema, train = _by_step(evidence, "val_ema").get(step), _by_step(evidence, "val_train").get(step)
    if ema is not None and not _differ(value, ema, close):
        return f"it is that of their EMA ({ema:.6g})", "evaluate the weights, or log it under a name of its own"
    for other, loss in again.items():
        if other != step and not _differ(value, loss, close):
            return f"it is that of the weights of step {other}", "evaluate the state of the step that the line names"
    bits = value / again[step]
    if not _differ(bits, 1 / math.log(2), close):
        return "it is in bits", "log nats: leave out the division by ln 2"
    before = [other for other in logged if other < step and not _differ(logged[other], value, EXACT)]
    if before:
        return f"it repeats the line of step {before[-1]}", "evaluate anew at each line"
    if train is not None and abs(value - train) < 0.1 * abs(value - again[step]):
        return f"it is near their loss on training windows ({train:.4g})", "evaluate on the validation split"
    return "", "what your code evaluates: weights, windows, mean over tokens"


def check_lines(evidence: Evidence) -> Findings:
    """Judge a line's values against the step taken again, and its loss against eval's path."""
    lines = _by_step(evidence, "line")
    if not lines:
        return []
    rows = {int(row["step"]): row for row in evidence.rows}
    findings: list[Judged | Verdict] = [Judged(TRAINING)]
    for step in sorted(lines):
        if verdict := _judge_line(evidence, step, rows[step], lines[step]):
            return [*findings, verdict]
    return findings


def _judge_line(evidence: Evidence, step: int, row: Mapping[str, float], taken: object) -> Verdict | None:
    assert isinstance(taken, Mapping)
    close, by_eval = _tolerance(evidence), _by_step(evidence, "train_again").get(step)
    shared = [name for name in taken if row.get(name) is not None and np.isfinite([taken[name], row[name]]).all()]
    wrong = [name for name in shared if _differ(row[name], taken[name], close)]
    same = [name for name in ("train_loss", "grad_norm") if name in shared and name not in wrong]
    where, confirm = (step, step), f"scalelab replay {evidence.quoted}@{step}..{step}"
    if wrong and same:  # the same weights and batch: what differs was logged wrongly
        name = wrong[0]
        text = f"{name} is {row[name]:.6g} in the line of step {step}; taken again from the saved state the step has "
        text += f"{taken[name]:.6g}, and the same {' and '.join(same)}"
        text += _name_line(evidence, step, name, row, taken)
        knob = f"what your code logs as {name}"
        cause = "schedule_wrong" if name == "lr" else "log_wrong"
        if name in UPDATE and "param_norm" in shared and _differ(row["param_norm"], taken["param_norm"], EXACT):
            cause, knob = "update_wrong", "the LR and the decay that your optimizer applies: those of the config"
            text += ", and another norm of the weights after it: the update was another one"
            if (decay := _find_decay(evidence, step, row, taken)) is not None:
                cause, knob = "decay_wrong", "the decay that your optimizer applies: that of the config"
                text += f", that of {decay:.3g} times the declared weight decay: both norms agree"
        return make_verdict(cause, "test", np.inf, text, knob, confirm, where)
    loss = row.get("train_loss")
    if by_eval is not None and loss is not None and not wrong and _differ(loss, by_eval, close):
        text = f"the training loss of step {step} is {loss:.6g}, by the log and by the step taken again; eval's path "
        text += f"gives {by_eval:.6g} on the same weights and batch: x {loss / by_eval:.5g}"
        knob = "your loss: the mean of -ln p over the targets, without other terms"
        return make_verdict("train_loss_wrong", "test", np.inf, text, knob, confirm, where)
    return None


def _find_decay(evidence: Evidence, step: int, row: Mapping[str, float], taken: Mapping[str, float]) -> float | None:
    """Find by how much the declared decay must be multiplied for the logged norms of update and weights; None: by none.

    The square of either norm is a quadratic in that factor, known from steps with 0, 1 and 2 times the decay.
    """
    norms: Any = evidence.probes.get(f"line_decay/{step}")
    if norms is None or not {*UPDATE} <= taken.keys():
        return None
    squares = np.square([norms[0], [taken[name] for name in UPDATE], norms[1]])
    update, weights = (np.polyfit((0.0, 1.0, 2.0), values, 2) for values in squares.T)
    update[2] -= row["update_norm"] ** 2
    for root in np.roots(update):
        factor = float(np.real(root))
        weight = math.sqrt(max(float(np.polyval(weights, factor)), 0.0))
        missed = abs(row["param_norm"] - taken["param_norm"])
        if abs(np.imag(root)) < DECAY_FACTOR and abs(row["param_norm"] - weight) < EXPLAINED * missed:
            return round(factor, 3) + 0.0
    return None


def _name_line(evidence: Evidence, step: int, name: str, row: Mapping[str, float], taken: Mapping[str, float]) -> str:
    ratio = row[name] / taken[name] if taken[name] else math.nan
    if name == "train_loss":
        logged = {int(line["step"]): line.get("train_loss") for line in evidence.rows}
        before = _by_step(evidence, "line_before").get(step, logged.get(step - 1))
        for loss, words in ((before, "before"), (_by_step(evidence, "line_after").get(step), "after")):
            if loss is not None and not _differ(row[name], loss, SAME):
                return f"; it is the loss of the step {words}"
    if name == "grad_norm" and not _differ(ratio, taken.get("clip_ratio", math.nan), SAME):
        return "; it is the norm after the clip"
    return f": x {ratio:.5g}"


CHECKS = (check_validation, check_lines)
