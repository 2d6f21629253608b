"""Ask the trained program and the reference for loss and gradient of a batch; where they differ, look for the owner."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.reference import compare
from scalelab.diagnose.probes.reference.compare import Difference, Question, difference, gradient_differences
from scalelab.diagnose.probes.reference.evaluate import Answer, evaluate, make_forward
from scalelab.diagnose.probes.reference.inside import first_difference
from scalelab.diagnose.probes.reference.trained import (
    exact_precision,
    mesh_answer,
    own_precision,
    trained_answer,
    trained_token_losses,
)
from scalelab.diagnose.probes.reference.variants import find_variant
from scalelab.diagnose.probes.subject import Subject
from scalelab.errors import BadInput
from scalelab.precision.policy import FP32, POLICIES, TF32, Policy

MOST_NATS = 2.0**14  # a loss beyond it is made of logits whose rounding in fp32 changes probabilities by 1e-3
VANISHED = 2.0**-24  # of the whole gradient's norm
NARROW = 2.0**-6  # of a leaf's own norm, under formats of 8 to 11 bits: beside NOISE times their rounding


class Sides(NamedTuple):
    """One comparison: mean losses, tokens counted, and the differences of loss, token losses and gradients by name."""

    trained: Answer
    exact: Answer
    loss: Difference
    tokens: Difference
    leaves: Mapping[str, Difference]

    @property
    def differing(self) -> dict[str, Difference]:
        """Parameters whose gradients differ by more than rounding."""
        return {name: d for name, d in self.leaves.items() if d.over > 1}

    @property
    def saturated(self) -> list[str]:
        """Queries and keys whose gradient differs and vanishes: rounding makes it all where attention is saturated."""
        names = [name for name in self.differing if name.endswith(("attention.q.w", "attention.k.w"))]
        return [name for name in names if self.leaves[name].exact <= VANISHED * self.exact.norm]

    @property
    def agree(self) -> bool:
        """Whether rounding explains all differences."""
        same = self.trained.counted == self.exact.counted
        return same and self.loss.over <= 1 and self.tokens.over <= 1 and not self.differing


class Comparison(NamedTuple):
    """What was compared at `step`: in fp32 (`sides`), and under the run's own precision policy (`own`).

    `refused`: why not. `part`: (name, words) of the part that differs first. `fault`: (cause, what, mend) whose
    exchange restores equality. `user_code`: functions whose own mathematics the reference took as they are.
    """

    step: int
    refused: str = ""
    sides: Sides | None = None
    part: tuple[str, str] = ("", "")
    fault: tuple[str, str, str] | None = None
    own: Sides | None = None
    own_refused: str = ""
    user_code: tuple[str, ...] = ()
    layers_updated: bool = False
    rounded: Answer | None = None  # the reference in fp32
    mesh: Sides | None = None  # the program on the run's mesh, in fp32
    mesh_refused: str = ""
    blown_up: bool = False  # the weights are too large for the reference's loss and gradient in fp32


def probe_reference(subject: Subject) -> dict[str, Any]:
    """`reference`: a Comparison."""
    try:
        return {"reference": compare_with_reference(subject)}
    except (NotImplementedError, BadInput, TypeError) as error:
        # a user's function may not run in the reference's dtype or with its parts
        return {"reference": Comparison(subject.step, f"the reference can't run: {str(error).splitlines()[0]}")}


def probe_mesh(evidence: Evidence, subject: Subject, comparison: Comparison) -> dict[str, Any]:
    """`reference` with the program on the run's mesh beside the reference; {} where one device already differs."""
    sides, rounded = comparison.sides, comparison.rounded
    if sides is None or rounded is None or not sides.agree:
        return {}
    answer, refused = mesh_answer(evidence, subject)
    on_mesh = None if answer is None else _sides(answer, sides.exact, rounded)
    return {"reference": comparison._replace(mesh=on_mesh, mesh_refused=refused)}


def compare_with_reference(subject: Subject) -> Comparison:
    """Compare in fp32, then under the run's own policy; look for the owner of a difference in fp32."""
    question, refused = compare.pose(subject)
    user_code = tuple(name for name in (subject.static.model.block, subject.static.own_loss) if ":" in name)
    if question is None:
        return Comparison(subject.step, refused, user_code=user_code)
    exact, rounded = compare.ask(question), compare.ask(question, np.float32)
    if refused := _beyond_fp32(exact, rounded):
        return Comparison(subject.step, refused, user_code=user_code, blown_up=True)
    static, state = exact_precision(subject)
    trained = trained_answer(static, state, subject)
    token_nll = np.where(question.reading.targets >= 0, trained_token_losses(subject), 0.0)
    trained = trained._replace(token_nll=token_nll)
    sides = _sides(trained, exact, rounded)
    if not sides.agree:
        rounded = compare.widest_rounding(question, exact, rounded)
        sides = _sides(trained, exact, rounded)
    result = Comparison(
        subject.step, sides=sides, user_code=user_code, layers_updated=not trained.gradient, rounded=rounded
    )
    if sides.tokens.over > 1 and (fault := _left_out(question, sides)):
        return result._replace(fault=fault)
    if sides.tokens.over > 1:
        run = make_forward(question.written, question.params, question.variables, question.reading)
        limit = sides.tokens.limit
        variant, _ = find_variant(run, token_nll, question.written.shape, question.reading, limit)
        fault = None if variant is None else (variant.cause, variant.what, variant.mend)
        return result._replace(fault=fault, part=first_difference(subject, question))
    if not sides.agree:
        return result._replace(fault=_gradient_fault(subject, question, sides, rounded))
    own, own_refused = _under_own_policy(subject, question, exact)
    return result._replace(own=own, own_refused=own_refused)


def _beyond_fp32(exact: Answer, rounded: Answer) -> str:
    """Why fp32 can't hold the model at these weights, as after a blow-up; "" where it can."""
    if not (np.isfinite(exact.norm) and np.isfinite(rounded.norm)):
        return "the reference's loss or gradient is not finite"
    same = abs(rounded.loss - exact.loss) <= abs(exact.loss) and rounded.norm <= 2 * exact.norm <= 4 * rounded.norm
    if same and exact.loss <= MOST_NATS:
        return ""
    losses = f"the reference has loss {rounded.loss:.3g} and gradient norm {rounded.norm:.3g}"
    return f"weights too large for fp32: {losses}, in float64 {exact.loss:.3g} and {exact.norm:.3g}"


def _left_out(question: Question, sides: Sides) -> tuple[str, str, str] | None:
    """(cause, what, mend) where the program differs in nothing but targets that it does not count."""
    targets, trained, exact = question.reading.targets, sides.trained.token_nll, sides.exact.token_nll
    left = (targets >= 0) & (trained == 0) & (exact != 0)
    if not left.any() or np.linalg.norm(np.where(left, 0.0, trained - exact)) > sides.tokens.limit:
        return None
    ids = np.unique(targets[left])
    what = f"{left.sum()} of {sides.exact.counted} targets left out"
    if len(ids) == 1 and left.sum() == np.sum(targets == ids[0]):
        what += f", all that are token {ids[0]}"
    return "code_targets", what, "leave out padding alone: each token that stands in a document is a target"


def _sides(trained: Answer, exact: Answer, rounded: Answer, share: float = compare.SHARE) -> Sides:
    number = lambda x: np.asarray([x])  # noqa: E731
    loss = difference(number(trained.loss), number(exact.loss), number(rounded.loss), share=share)
    # One number's rounding may cancel by luck; that of all tokens does not.
    noise = float(np.linalg.norm(rounded.token_nll - exact.token_nll)) / np.sqrt(max(exact.counted, 1))
    loss = loss._replace(limit=loss.limit + compare.NOISE * noise)
    tokens = Difference(0.0, 1.0, 0.0, 1.0)
    if trained.token_nll.size:
        floor = 2.0**-21 * np.sqrt(exact.counted)
        tokens = difference(trained.token_nll, exact.token_nll, rounded.token_nll, floor=floor, share=share / 8)
    return Sides(trained, exact, loss, tokens, gradient_differences(trained, exact, rounded, share))


def _gradient_fault(subject: Subject, question: Question, sides: Sides, rounded: Answer) -> tuple[str, str, str] | None:
    """(cause, what, mend) of a loss or gradient that differs though each token's loss is right; None: not known."""
    trained, exact, k = sides.trained, sides.exact, subject.static.accumulate
    if trained.counted != exact.counted:
        what = f"the step counts {trained.counted} predicted tokens, the batch has {exact.counted}"
        return "code_targets", what, "count each target that is not padding once"
    if not sides.differing:
        return None  # the gradient is right, what is reported is not

    def equal(other: Answer) -> bool:
        return all(d.over <= 1 for d in gradient_differences(trained, other, _shifted(rounded, exact, other)).values())

    if (factor := common_factor(sides)) is not None and equal(_times(exact, factor)):
        what = f"the gradient is {factor:.6g} times that of the mean loss, in every parameter"
        if k > 1 and min(abs(factor - k), abs(factor - 1 / k)) < 1e-3 * factor:
            return "missing_1_over_K", f"{what}, with train.accumulate={k}", "divide by all predicted tokens"
        return "code_scale", what, "divide the loss by the targets of the batch, once"
    if k > 1 and equal(_mean_of_means(question, k)):
        what = f"the gradient is the mean of {k} micro-batches' means, whatever their numbers of targets"
        return "code_micro_batch_weights", what, "divide the sum of all micro-batches by the targets in all of them"
    if question.z_weight and equal(evaluate(*question[:4], 0.0)):
        return "code_z_loss", "the gradient is that of a loss without its z-loss", "add train.z_loss to the objective"
    if question.written.term is not None:
        without = dataclasses.replace(question.written, term=None)
        if equal(evaluate(without, *question[1:])):
            return "code_loss_term", "the gradient lacks train.loss", "add train.loss to what is differentiated"
    return _between_micro_batches(subject, sides, rounded) if k > 1 else None


def _between_micro_batches(subject: Subject, sides: Sides, rounded: Answer) -> tuple[str, str, str] | None:
    """Whether the program is right on one batch, and wrong where it adds up micro-batches."""
    static, state = exact_precision(subject)
    whole = trained_answer(dataclasses.replace(static, accumulate=1), state, subject)
    if static.batch_ramp or any(d.over > 1 for d in gradient_differences(whole, sides.exact, rounded).values()):
        return None
    off = max(sides.differing.values(), key=lambda d: d.over)
    what = f"the gradient of {static.accumulate} micro-batches is off by {off.size / max(off.exact, 1e-300):.3g} of a "
    what += "parameter's norm, that of the same rows as one batch is right: what is added up is changed between them"
    mend = "what is done to gradients between micro-batches (a clip, a factor): they are added up, and divided once"
    return "code_gradient", what, mend


def common_factor(sides: Sides) -> float | None:
    """The factor of all gradients; None if they have none in common."""
    ratios = np.array([d.ratio for d in sides.leaves.values() if d.exact > 1e-6 * sides.exact.norm])
    if not len(ratios) or not np.all(np.isfinite(ratios)):
        return None
    middle = float(np.median(ratios))
    return middle if middle > 0 and np.ptp(ratios) < 1e-3 * middle and abs(middle - 1) > 1e-4 else None


def _times(answer: Answer, factor: float) -> Answer:
    return answer._replace(gradient={name: g * factor for name, g in answer.gradient.items()})


def _shifted(rounded: Answer, exact: Answer, other: Answer) -> Answer:
    """`other` with the rounding of `rounded`, grown as the gradient is."""
    grown = max(1.0, other.norm / max(exact.norm, 1e-300))
    moved = {name: g + grown * (rounded.gradient[name] - exact.gradient[name]) for name, g in other.gradient.items()}
    return other._replace(gradient=moved)


def _micro_batches(question: Question, k: int) -> list[Answer]:
    """The reference's answer on each micro-batch: every k-th row."""
    written = dataclasses.replace(question.written, micro_batches=1)
    parts = [question._replace(written=written, reading=question.reading.rows(slice(i, None, k))) for i in range(k)]
    return [compare.ask(part) for part in parts if part.reading.counted]


def _mean_of_means(question: Question, k: int) -> Answer:
    parts = _micro_batches(question, k)
    mean = {name: np.mean([part.gradient[name] for part in parts], axis=0) for name in parts[0].gradient}
    return parts[0]._replace(gradient=mean)


def _under_own_policy(subject: Subject, question: Question, exact: Answer) -> tuple[Sides | None, str]:
    """(the comparison under the run's policy, ""), or (None, why not); (None, "") under fp32."""
    policy = POLICIES[subject.static.precision]
    if policy.name == FP32.name:
        return None, ""
    if policy.scaling:
        return None, f"rounding to fp8 (precision.name={policy.name}) has no bound to compare with"
    factor = float(subject.state.precision.scale) if policy.scaled_loss else 1.0
    scale = factor / max(exact.counted, 1)
    imitation = dataclasses.replace(question.written, round=_rounding(policy))
    rounded = evaluate(imitation, *question[1:], np.float32, scale)
    if not np.isfinite(rounded.norm):
        return None, f"the reference's gradient is not finite in {policy.compute}"
    trained = trained_answer(*own_precision(subject), subject)
    if not np.isfinite(trained.norm) and policy.compute == "float16":
        return None, "the gradient overflows fp16 at this loss scale, which the step skips"
    return _sides(trained, exact, rounded, NARROW), ""


def _rounding(policy: Policy) -> Any:
    bits = {TF32: (8, 10), "bfloat16": (8, 7), "float16": (5, 10)}[policy.compute]  # exponent, mantissa
    return lambda x: jax.lax.reduce_precision(x, *bits)  # not a cast, which compilers drop
