"""Judge number formats: state in too few bits, overflow, a collapsing loss scale, gradients that become zero."""

import numpy as np

from scalelab.diagnose.evidence import Evidence, update_ratio
from scalelab.diagnose.probes.leaves.saved import read_saved_steps
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, asks, make_verdict
from scalelab.precision.policy import POLICIES

HALF_ULP = {"bfloat16": 2.0**-9, "float16": 2.0**-12}  # relative change of a number below which it is rounded away
SCALE_FALL = 2.0**10  # first loss scale / lowest
SKIPPED = 0.05  # share of skipped steps; loss scaling by itself skips 1 of 2,000 (Micikevicius et al. 2018)
SAME_CODE, FEW_CODES = 0.5, 256  # share of a layer's stored integers that are equal; numbers below which none is judged
ZEROS = 0.2  # share of gradients that are zero after the cast (stability.md 4)
LOST = 0.05  # share of a gradient lost to the cast; fp16 with a loss scale: see checks/diagnosis/diagnose, 0.003


def check_codes(evidence: Evidence) -> Findings:
    """Judge a user's optimizer that keeps a state of the layers in integers, most of which are the same one.

    Squares of gradients span decades inside a tensor: where half of them have one code, the format holds the largest
    alone (Dettmers et al. 2022 store them by blocks, in steps that are not even).
    """
    saved, _ = read_saved_steps(evidence)
    if ":" not in str(evidence.values["optim.name"]) or not saved:
        return []
    shares, bits = dict[str, float](), dict[str, int]()
    for name, x in saved[-1].part("opt_state").items():
        if "blocks." in name and x.dtype.kind in "iu" and x.ndim > 1 and x.size >= FEW_CODES:
            shares[name] = float(np.unique(x, return_counts=True)[1].max() / x.size)
            bits[name] = 8 * x.dtype.itemsize
    same, judged = [name for name, share in shares.items() if share > SAME_CODE], Judged("states kept in integers")
    if 2 * len(same) <= len(shares):
        return [judged] if shares else []
    worst = max(same, key=lambda name: shares[name])
    text = (
        f"{len(same)} of {len(shares)} arrays of the layers in the optimizer's state are of {bits[worst]}-bit numbers "
    )
    text += (
        f"of which most are the same one ({worst}: {shares[worst]:.0%}): their steps are too wide for most gradients"
    )
    knob = f"keep moments in float32 in {str(evidence.values['optim.name']).partition(':')[2]}"
    over = float(np.median([shares[name] for name in same])) / SAME_CODE
    confirm = "a run beside it with fp32 moments"
    return [judged, make_verdict("low_precision_state", "test", 1 + over, text, knob, confirm)]


@asks("formats of weights and moments")
def check_state_formats(evidence: Evidence) -> Findings | None:
    """Judge weights or moments stored in formats that lose their updates."""
    dtypes, findings = evidence.record.get("dtypes", {}), []
    if not dtypes:
        return [Gap("low_precision_state", "the record has no formats", "the run's run.json")]
    weights, moments = (
        next((form for form in dtypes.get(name, []) if form in HALF_ULP), "") for name in ("parameters", "moments")
    )
    rounding = POLICIES[evidence.values["precision.name"]].rounding
    if weights in HALF_ULP and rounding == "nearest":  # stochastic rounding and Kahan's sums keep small updates
        ratio = update_ratio(evidence)
        lost = float(np.mean(ratio.values < HALF_ULP[weights])) if len(ratio.steps) else 1.0
        text = f"weights are stored in {weights}, which loses changes below {HALF_ULP[weights]:.2g} of a weight; "
        text += f"update/weight norm is below that at {lost:.0%} of the steps"
        findings.append(_low_precision(evidence, 1 + lost, text))
    if moments and ("float32" not in dtypes["moments"] or _stores_squares_as(evidence, moments)):
        moved = 1 - float(evidence.values["optim.beta2"] or 0.0)
        text = f"moments are stored in {moments}: a step of relative size 1 - beta2 = {moved:.2g} "
        text += f"{'is' if moved < 2 * HALF_ULP[moments] else 'is not yet'} lost by rounding (half an ulp: "
        text += f"{HALF_ULP[moments]:.2g})"
        findings.append(_low_precision(evidence, 1 + HALF_ULP[moments] / max(moved, 1e-9), text))
    return findings


def _stores_squares_as(evidence: Evidence, form: str) -> bool:
    """Whether saved means of squares are of this format: first moments forget sooner, and lose little to it."""
    saved, _ = read_saved_steps(evidence)
    arrays = saved[-1].part("opt_state").values() if saved else []
    return any(str(x.dtype) == form and x.ndim and bool((x.astype(np.float32) >= 0).all()) for x in arrays)


def _low_precision(evidence: Evidence, over: float, text: str) -> Verdict:
    optimizer, name = evidence.values["optim.name"], evidence.values["precision.name"]
    if ":" in optimizer and POLICIES[name].moments == POLICIES[name].parameters == "float32":
        knob = f"keep moments in float32 in {optimizer.partition(':')[2]}"
        return make_verdict("low_precision_state", "test", over, text, knob, "a run beside it with fp32 moments")
    knob = f"precision.name={'fp16' if name.startswith('fp16') else 'bf16'}: fp32 weights and moments"
    return make_verdict("low_precision_state", "test", over, text, knob, f"scalelab train … --config.{knob[:19]}")


@asks("overflow and the loss scale")
def check_overflow(evidence: Evidence) -> Findings | None:
    """Judge steps skipped under a format of few exponents, and a loss scale that only falls."""
    policy = POLICIES[evidence.values["precision.name"]]
    small_range = "float16" in (policy.compute, policy.forward) or policy.forward.startswith("float8")
    rows = evidence.rows
    if not rows or not small_range:
        return None
    skipped, step = int(rows[-1].get("skipped", 0)), int(rows[-1]["step"])
    scale = evidence.series("loss_scale").finite()
    if len(scale.steps) and scale.values[0] / max(scale.values.min(), 1e-30) >= SCALE_FALL:
        i = int(np.argmin(scale.values))
        text = f"the loss scale fell from {scale.values[0]:.3g} to {scale.values[i]:.3g} by step {scale.steps[i]}"
        text += f"; {skipped} steps were skipped"
        over = float(np.log2(scale.values[0] / scale.values[i])) / np.log2(SCALE_FALL)
        where = int(scale.steps[0]), int(scale.steps[i])
        return [
            make_verdict(
                "loss_scale_collapses",
                "signature",
                1 + over,
                text,
                "precision.name=bf16",
                "scalelab train … --config.precision.name=bf16",
                where,
            )
        ]
    if skipped <= SKIPPED * step:
        return []
    events = evidence.kinds("skip")
    first = events[0]["step"] if events else None
    text = f"{skipped} of {step} steps were skipped under {policy.name}"
    text += f", the first at step {first}: {events[0].get('text', '')}" if events else ""
    knob = "precision.name=bf16"
    confirm = "scalelab train … --config.precision.name=bf16"
    return [make_verdict("overflow", "signature", skipped / (SKIPPED * step), text, knob, confirm, (first or 0, step))]


def _by_parameter(evidence: Evidence, name: str) -> dict[str, float]:
    """Select {parameter: value} of `probes.probe_precision`; {} if it was not run."""
    return {key.partition("/")[2]: value for key, value in evidence.probes.items() if key.startswith(f"{name}/")}


@asks("gradients lost to the format")
def check_underflow(evidence: Evidence) -> Findings | None:
    """Judge gradients that are zero after the cast to the policy's format."""
    zeros, lost = _by_parameter(evidence, "zeros"), _by_parameter(evidence, "lost")
    if len((measured := evidence.layer_series("gradient_zeros").finite()).steps):
        by_layer = np.median(measured.values.reshape(len(measured.steps), -1), axis=0)
        zeros = {f"block {i}": float(share) for i, share in enumerate(by_layer)} | zeros
    policy = POLICIES[evidence.values["precision.name"]]
    if "float16" not in (policy.compute, policy.backward):
        return None
    if not zeros:
        return [
            Gap(
                "underflow",
                "the share of gradients that the format turns to zero was not measured",
                "--live",
                f"{policy.name} scales its loss" if policy.scaled_loss else f"{policy.name} does not scale its loss",
            )
        ]
    most, worst = (max(values, key=lambda name: values[name]) for values in (zeros, lost or zeros))
    over = max(zeros[most] / ZEROS, lost.get(worst, 0.0) / LOST)
    if over <= 1:
        return []
    text = f"{zeros[most]:.1%} of the gradients of {most} that fp32 has are zero under {policy.name}"
    text += f", and the gradient of {worst} differs from fp32's by {lost[worst]:.0%} of its norm" if lost else ""
    knob = "precision.name=fp16 (scales the loss), or bf16"
    confirm = "scalelab train … --config.precision.name=fp16"
    return [make_verdict("underflow", "test", over, text, knob, confirm)]


CHECKS = (check_state_formats, check_codes, check_overflow, check_underflow)
