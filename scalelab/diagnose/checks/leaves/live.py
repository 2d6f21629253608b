"""Judge one step of the trained program, leaf by leaf (`--live`): gradients, changes, heads, rows, layers' effects."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.config.checks.validate import parse_group_multipliers
from scalelab.diagnose.checks.leaves.moved import (
    HALF_ULP,
    SLOW,
    VANISHED,
    Moved,
    declared_frozen,
    find_stuck,
    gap_of_faint_gradients,
    join_names,
)
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict
from scalelab.precision.policy import POLICIES

GRADIENTS = "gradient and change of each leaf, head and row of the embedding are above zero"
EFFECTS = "each layer adds something: without it the loss changes"
OPTIMIZER = "a step's moments and changes are those of the optimizer, by hand"
STEP_ROUNDING = 8 * HALF_ULP  # relative error of a weight after one step
BLOWN_UP, SOUND = "the weights are too large for fp32, in which gradients overflow or vanish", "a checkpoint before it"
LEAST_EFFECT = 1e-5  # nats of a token, RMS; fp32 leaves some 1e-6 at losses of 10 nats, a layer that is trained 1e-3
OFF = 1e-3  # relative error of moments and changes in fp32; healthy: at most 1e-5
OFF_HALF = 3e-2  # under formats of fewer bits, whose gradients another compiled program rounds differently


def by_name(evidence: Evidence, prefix: str) -> dict[str, Any]:
    """The measurements below a name, by the rest of theirs."""
    return {key[len(prefix) + 1 :]: x for key, x in evidence.probes.items() if key.startswith(f"{prefix}/")}


def _to_dots(part: str) -> str:
    """The parameter's name of a layer's part: `layers/3/attention/q/w` -> `blocks.attention.q.w`."""
    names = part.split("/")
    return ".".join(["blocks", *names[2:]] if names[0] == "layers" else names)


def check_gradients(evidence: Evidence) -> Findings:
    """Judge gradients of zero, and changes that are nothing but decay where there is a gradient."""
    gradients, where = by_name(evidence, "leaf_gradient"), (int(evidence.probes.get("leaf_step", 0)),) * 2
    if not gradients:
        return []
    if _has_blown_up(evidence):
        return [Gap("leaf_stuck", BLOWN_UP, SOUND)]
    if _may_underflow(evidence):
        why = f"{evidence.values['precision.name']} turns small gradients to zero, whatever the leaf"
        return [Gap("leaf_stuck", why, "precision.name=fp16, bf16 or fp32")]
    open_parts = {part: size for part, size in gradients.items() if not declared_frozen(evidence, _to_dots(part))}
    if not evidence.probes["leaf_targets"]:
        return [Gap("leaf_stuck", f"the batches of step {where[0]} have nothing to predict", "another checkpoint")]
    zero = [part for part, size in open_parts.items() if size == 0.0]
    findings: list[Verdict | Gap | Judged] = [Judged(GRADIENTS)]
    if zero:
        text = f"{join_names(zero)}: the gradient is exactly 0 in {len(zero)} of {len(open_parts)} leaves, at step "
        knob = f"let the loss depend on {zero[0]} (a stop_gradient, or it is not used), or declare it frozen"
        findings.append(_test("leaf_stuck", text + str(where[0]), knob, where))
    heads = [
        h for h, size in by_name(evidence, "head_gradient").items() if size == 0 and h.partition("[")[0] not in zero
    ]
    heads = [head for head in heads if not declared_frozen(evidence, _to_dots(head.partition("[")[0]))]
    if heads:
        text = f"{join_names(heads)}: the gradient is exactly 0 at step {where[0]}"
        findings.append(_test("head_stuck", text, "let every head's output reach the residual stream", where))
    rows = evidence.probes.get("rows_without_gradient", [])
    if rows and "embed/w" not in zero and not declared_frozen(evidence, "embed.w"):
        tokens = ", ".join(map(str, rows[:4])) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")
        text = f"embed/w: tokens {tokens} occur, and the gradient of their rows is exactly 0, at step {where[0]}"
        findings.append(_test("rows_stuck", text, "let the gradient reach all rows of embed/w", where))
    return [*findings, *_unmoved(evidence, open_parts, zero, where)]


def _test(cause: str, text: str, knob: str, where: tuple[int, int], over: float = np.inf) -> Verdict:
    return make_verdict(cause, "test", over, text, knob, "measured on a step of the trained program", where)


def _has_blown_up(evidence: Evidence) -> bool:
    comparison = evidence.probes.get("reference")
    return comparison is not None and comparison.blown_up


def _may_underflow(evidence: Evidence) -> bool:
    policy = POLICIES[evidence.values["precision.name"]]
    return "float16" in (policy.compute, policy.backward) and not policy.scaled_loss


def _unmoved(
    evidence: Evidence, gradients: Mapping[str, float], zero: list[str], where: tuple[int, int]
) -> list[Verdict | Gap]:
    """Judge leaves that have a gradient and do not move, among leaves that do."""
    p, moved = evidence.probes, by_name(evidence, "leaf_moved")
    if p["leaf_skipped"] or not p["leaf_lr"] > 0 or POLICIES[evidence.values["precision.name"]].parameters != "float32":
        return []
    sizes = by_name(evidence, "leaf_size")
    leaves = [Moved(_to_dots(part), part, moved[part], sizes[part]) for part in gradients]
    if leaves and max(m.distance for m in leaves) <= SLOW * STEP_ROUNDING:
        why = f"the changes of step {where[0]} are as small as rounding, at an LR of {p['leaf_lr']:.3g}"
        return [Gap("leaf_stuck", why, "a checkpoint at a larger LR")]
    least = VANISHED * float(evidence.values["optim.eps"] or 0.0)
    stuck = [m.part for m in find_stuck(leaves, STEP_ROUNDING) if m.part not in zero]
    faint = {part: gradients[part] for part in stuck if gradients[part] < least}
    stuck = [part for part in stuck if part not in faint]
    gaps = [gap_of_faint_gradients(faint, f"at step {where[0]}")] if faint else []
    if not stuck:
        return [*gaps]
    usual = float(np.median([m.distance for m in leaves]))
    text = f"{join_names(stuck)}: has a gradient (norm {gradients[stuck[0]]:.3g}) and does not move but for decay at "
    text += f"step {where[0]}, whose LR is {p['leaf_lr']:.3g}; the median leaf moves by {usual:.2g} of its norm"
    knob = f"let the optimizer's update reach {stuck[0]} (a mask, or a factor of 0), or declare it frozen"
    return [_test("leaf_stuck", text, knob, where), *gaps]


def check_effects(evidence: Evidence) -> Findings:
    """Judge layers whose absence changes no token's loss."""
    effects, step = by_name(evidence, "layer_effect"), evidence.probes.get("step", 0)
    if not effects and "unasked/layer_adds_nothing" in evidence.probes:
        return []
    if not effects:
        return [Gap("layer_adds_nothing", "no layer was left out of the model", "--live")]
    if _has_blown_up(evidence):
        return [Gap("layer_adds_nothing", BLOWN_UP, SOUND)]
    idle = [layer for layer, effect in effects.items() if effect <= LEAST_EFFECT]
    if not idle:
        return [Judged(EFFECTS)]
    text = f"layer {', '.join(idle)}: without its branches the tokens' losses change by {effects[idle[0]]:.2g} nats "
    text += f"(RMS), at step {step}; the median layer changes them by {np.median(list(effects.values())):.2g}"
    knob = f"add what layer {idle[0]} computes to the residual stream, or take the layer out (model.n_layers)"
    return [_test("layer_adds_nothing", text, knob, (step, step)), Judged(EFFECTS)]


def check_optimizer(evidence: Evidence) -> Findings:
    """Judge a step's moments and changes by those computed by hand."""
    off, where = by_name(evidence, "off"), (int(evidence.probes.get("leaf_step", 0)),) * 2
    if "unasked/update_wrong" in evidence.probes:
        return []
    if "leaf_step" not in evidence.probes:
        return [Gap("update_wrong", "no step was taken again beside the optimizer by hand", "--live")]
    if not off:
        why = f"optim.name={evidence.values['optim.name']} with these settings has no step by hand here"
        return [Gap("update_wrong", why, "adamw, adam, nadamw, lion or sgd with optim.clip=global")]
    policy = POLICIES[evidence.values["precision.name"]]
    limit = OFF if {policy.compute, policy.forward, policy.moments, policy.parameters} == {"float32"} else OFF_HALF
    wrong = {name: error for name, error in off.items() if error > limit and _is_exact(policy, name)}
    findings: list[Verdict | Gap | Judged] = [Judged(OPTIMIZER)]
    moments = {name: error for name, error in wrong.items() if not name.startswith("change/")}
    if moments:
        worst = max(moments, key=lambda name: moments[name])
        text = f"after one more step from {where[0]} {join_names(list(moments))} are not the averages of the gradients "
        text += f"that the optimizer has: {worst} differs by {moments[worst]:.2g} of its norm"
        knob = "mend the average that the optimizer keeps (beta1, beta2, which gradient it takes)"
        findings.append(_test("moments_wrong", text, knob, where, moments[worst] / limit))
    changes = {name.partition("/")[2]: e for name, e in wrong.items() if name.startswith("change/")}
    if changes:
        findings.append(_wrong_change(evidence, changes, where, limit))
    return findings


def _is_exact(policy: Any, name: str) -> bool:
    """Whether a format holds what was computed: changes are judged where weights are stored in fp32."""
    return (policy.parameters if name.startswith("change/") else policy.moments) == "float32"


def _wrong_change(evidence: Evidence, changes: Mapping[str, float], where: tuple[int, int], limit: float) -> Verdict:
    factors = by_name(evidence, "off_factor")
    worst = max(changes, key=lambda name: changes[name])
    text = f"at step {where[0]} the change of {join_names(list(changes))} is not {evidence.values['optim.name']}'s: "
    text += (
        f"that of {worst} differs by {changes[worst]:.2g} of it, and is {factors.get(worst, 0.0):.4g} times as large"
    )
    knob = "mend the optimizer's chain (a factor, the decay, the bias correction)"
    if parse_group_multipliers(str(evidence.values["optim.groups"])):
        text += f" (optim.groups={evidence.values['optim.groups']} taken into account)"
    return _test("update_wrong", text, knob, where, changes[worst] / limit)


CHECKS = (check_gradients, check_effects, check_optimizer)
