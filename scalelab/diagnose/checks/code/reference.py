"""Judge loss and gradient of the trained program against those of the written-out reference (`--live`)."""

import numpy as np

from scalelab.diagnose.checks.code.live import check_model
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.reference.compare import Difference
from scalelab.diagnose.probes.reference.probe import Comparison, Sides, common_factor
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict

ASKED = "loss and gradient of the trained program against a plain reference"
ANSWERED = ("mask_leak", "label_shift", "missing_1_over_K")  # direct tests that explain a difference by themselves
SAME = 1e-5  # relative difference of a mean loss in fp32
NAMED = 3  # parameters that a line names


def check_reference(evidence: Evidence) -> Findings:
    """Judge the comparison with the reference in fp32, and under the run's own precision."""
    comparison: Comparison | None = evidence.probes.get("reference")
    if comparison is None:
        return []
    gaps = _gaps(comparison)
    if comparison.sides is None:
        return gaps
    answered = [v for v in check_model(evidence) if isinstance(v, Verdict) and v.cause in ANSWERED]
    micro_batches = int(evidence.values["train.accumulate"])
    verdict = _judge_exact(comparison, comparison.sides, micro_batches) or _judge_own_precision(evidence, comparison)
    verdict = verdict or _judge_mesh(evidence, comparison)
    return [Judged(ASKED), *gaps, *([verdict] if verdict and not answered else [])]


def _gaps(comparison: Comparison) -> list[Gap]:
    gaps = []
    if comparison.refused:
        gaps.append(Gap("code_differs", comparison.refused, "model keys that the reference covers"))
    for name in comparison.user_code if comparison.sides else ():
        text = f"the mathematics of {name} are taken as they are"
        gaps.append(
            Gap(f"code of {name}", text, "a test of its own, as scalelab.testing has", "all around it is compared")
        )
    if comparison.own_refused:
        gaps.append(
            Gap("code_precision", comparison.own_refused, "precision.name=bf16", "in fp32 the code is compared")
        )
    if comparison.mesh_refused:
        text = "a process with the run's devices, or XLA_FLAGS=--xla_force_host_platform_device_count on a CPU"
        gaps.append(Gap("code_mesh", comparison.mesh_refused, text, "on one device the code is compared"))
    if comparison.layers_updated:
        gaps.append(
            Gap(
                "code_gradient",
                "train.updates=per_layer holds no whole gradient",
                "train.updates=whole",
                "losses agree",
            )
        )
    sides = comparison.own or comparison.sides
    if saturated := sides.saturated if sides else []:
        why = f"attention is saturated: the gradient of {saturated[0]} vanishes, and rounding makes what is left of it"
        gaps.append(Gap("code_gradient", why, "a checkpoint before it", "losses agree"))
    return gaps


def _judge_exact(comparison: Comparison, sides: Sides, k: int) -> Verdict | None:
    """Name the fault in fp32, of a step of `k` micro-batches; None if both agree."""
    where = (comparison.step, comparison.step)
    (part, words), fault = comparison.part, comparison.fault
    if sides.tokens.over > 1:
        worst = float(np.max(np.abs(sides.trained.token_nll - sides.exact.token_nll)))
        text = f"in fp32, tokens' losses differ from a plain reference's by up to {worst:.3g} nats"
        text += f" ({_limit(sides.tokens)})"
        text += f"; the first part that differs is {words}" if words else ""
        cause, mend = (
            ("code_norm" if "norm" in part else "code_differs"),
            words or "the code of the model or of its loss",
        )
        if fault is not None:
            cause, mend = fault[0], fault[2]
            text += f"; a reference with {fault[1]} agrees"
        return _verdict(cause, sides.tokens.over, text, mend, where)
    differing = sides.differing
    if fault is not None:
        over = max([sides.loss.over, *(d.over for d in differing.values())])
        return _verdict(fault[0], over, f"each token's loss is right, but {fault[1]}", fault[2], where)
    if sides.loss.over > 1 and sides.leaves and not differing:
        text, mend = _describe_report(sides, k), "what the step reports as its loss: the sum over all micro-batches"
        return _verdict("train_loss_wrong", np.inf, text, mend, where)
    if sides.loss.over > 1:
        text = (
            f"each token's loss is right, but the step's loss is {sides.trained.loss:.6g}, not {sides.exact.loss:.6g}"
        )
        return _verdict("code_loss", sides.loss.over, text, "the sum of losses over tokens", where)
    if differing and not sides.saturated:
        text = f"losses are right, but gradients are not those of a plain reference: {_describe_leaves(differing)}"
        return _verdict(
            "code_gradient", max(d.over for d in differing.values()), text, "the backward of these parts", where
        )
    return None


def _judge_own_precision(evidence: Evidence, comparison: Comparison) -> Verdict | None:
    """Name a difference that only the run's own number formats have."""
    sides, name = comparison.own, evidence.values["precision.name"]
    if sides is None or not (sides.loss.over > 1 or (sides.differing and not sides.saturated)):
        return None
    over = max([sides.loss.over, *(d.over for d in sides.leaves.values())])
    text = f"in fp32 the program is right; under precision.name={name} "
    if (factor := common_factor(sides)) is not None and abs(factor - 1) > 0.1:
        text += f"the gradient is {factor:.6g} times the reference's"
    elif sides.differing:
        text += f"gradients differ by more than rounding explains: {_describe_leaves(sides.differing)}"
    else:
        text += f"the loss is {sides.trained.loss:.6g}, not {sides.exact.loss:.6g}"
    return _verdict("code_precision", over, text, "the casts and scales of this policy", (comparison.step,) * 2)


def _judge_mesh(evidence: Evidence, comparison: Comparison) -> Verdict | None:
    """Name a difference that only the run's mesh has."""
    sides, mesh = comparison.mesh, dict(evidence.record.get("mesh", {}))
    if sides is None:
        return None
    wrong = sides.trained.counted != sides.exact.counted
    if not (wrong or sides.loss.over > 1 or sides.differing):
        return None
    over = max([sides.loss.over, *(d.over for d in sides.leaves.values())])
    text, factor = f"on one device the program is right; on {mesh['devices']} devices ", common_factor(sides)
    where = (comparison.step, comparison.step)
    if factor is not None:
        text += f"the gradient is {factor:.6g} times the reference's, in every parameter"
        return _verdict(
            "code_rank_factors", over, text, "sum gradients over devices, divided by all targets once", where
        )
    if sides.loss.over > 1 or wrong:
        text += f"the loss is {sides.trained.loss:.6g} over {sides.trained.counted} targets, not "
        text += f"{sides.exact.loss:.6g} over {sides.exact.counted}"
    else:
        text += f"gradients differ: {_describe_leaves(sides.differing)}"
    return _verdict("code_mesh", over, text, "what this mesh sums or splits", where)


def _describe_report(sides: Sides, k: int) -> str:
    """Describe a reported loss that is not the one whose gradient is taken, and the rows that it is of."""
    text = "each token's loss and all gradients are right, but the training loss that the step reports is "
    text += f"{sides.trained.loss:.6g}, not {sides.exact.loss:.6g}: it is not the loss that is trained"
    parts = [sides.exact.token_nll[i::k] for i in range(k)]
    means = [float(part.sum()) / max(int(np.count_nonzero(part)), 1) for part in parts]
    same = [i for i, mean in enumerate(means) if k > 1 and abs(mean - sides.trained.loss) < SAME * mean]
    return f"{text}, but that of micro-batch {same[0] + 1} of {k} alone" if same else text


def _describe_leaves(differing: dict[str, Difference]) -> str:
    names = sorted(differing, key=lambda name: -differing[name].over)
    each = [f"{name} {_describe_leaf(differing[name])}" for name in names[:NAMED]]
    return ", ".join(each) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _describe_leaf(d: Difference) -> str:
    if abs(d.ratio) < 1e-6 and d.size <= 1.001 * d.exact:
        return "is zero"
    return f"is off by {d.size / max(d.exact, 1e-300):.3g} of its norm, {d.ratio:.4g} times along it"


def _limit(d: Difference) -> str:
    return f"{d.over:.3g} times what rounding explains"


def _verdict(cause: str, over: float, text: str, mend: str, where: tuple[int, int]) -> Verdict:
    return make_verdict(cause, "test", over, text, mend, "measured on the program itself; mend it and ask again", where)


CHECKS = (check_reference,)
