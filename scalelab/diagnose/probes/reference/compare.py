"""Compare loss and gradient of the trained program with the reference's; limits follow from number formats.

A limit is NOISE times what the reference itself loses by computing in the format, plus some units in the last place.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from scalelab.diagnose.probes.reference.batch import Reading, read_batch
from scalelab.diagnose.probes.reference.evaluate import Answer, evaluate
from scalelab.diagnose.probes.reference.loss import Written, make_stacks, unread_names
from scalelab.diagnose.probes.reference.model import unknown_choice
from scalelab.diagnose.probes.subject import Subject
from scalelab.model.declare import named_leaves
from scalelab.optim import schedules
from scalelab.train.step import hooks
from scalelab.train.step import state as state_lib
from scalelab.user_code import user_function

NOISE = 16.0  # rounding errors of two programs differ; over the recipes and sizes of tests/diagnose by at most 4
SHARE = 2.0**-17  # of a leaf's own norm: 128 units in the last place of fp32
FLOOR = 2.0**-21  # of the whole gradient's norm: leaves whose gradient cancels to zero


class Difference(NamedTuple):
    """`size`: norm of trained - reference; `limit`: what rounding explains; `exact`: norm of the reference.

    `ratio`: the trained one's share along the reference, 1 if equal.
    """

    size: float
    limit: float
    exact: float
    ratio: float

    @property
    def over(self) -> float:
        """How many times the limit; inf if not finite."""
        return self.size / self.limit if np.isfinite(self.size) else float("inf")


class Question(NamedTuple):
    """What the reference computes: the model in writing, its arrays, and the batch."""

    written: Written
    params: Any
    variables: Any
    reading: Reading
    z_weight: float


def pose(subject: Subject) -> tuple[Question | None, str]:
    """(the question, ""), or (None, why the reference can't be asked)."""
    static, shape = subject.static, subject.static.model
    if unknown := unknown_choice(shape):
        return None, f"the reference has no {unknown}"
    written = Written(
        shape, make_stacks(shape.block, shape.n_layers), _own_term(subject), micro_batches=static.accumulate
    )
    if unknown := next(
        (s.kind for s in written.stacks if ":" not in s.kind and s.kind not in ("sequential", "parallel")), ""
    ):
        return None, f"the reference has no model.block={unknown}"
    if others := sorted(unread_names(written, named_leaves(subject.params))):
        return None, f"the reference does not know the parameters {', '.join(others[:3])}"
    separator = int(subject.h.dataset.separator) if static.masks_documents else None
    step = jnp.int32(subject.step)
    length = int(schedules.scheduled_seq_len(static, step, subject.h)) if static.seq_warmup else None
    taken = int(schedules.traced_micro_batches(static, step)) if static.batch_ramp else static.accumulate
    rows = np.arange(len(subject.tokens)) % static.accumulate < taken
    reading = read_batch(np.asarray(subject.tokens), separator, length, rows)
    if not reading.counted:
        return None, f"the batch of step {subject.step + 1} has no target"
    variables = state_lib.model_variables(subject.state)
    return Question(written, subject.params, variables, reading, float(subject.h.train.z_loss)), ""


def _own_term(subject: Subject) -> Any:
    if not (name := subject.static.own_loss):
        return None
    function = user_function(name, "train.loss", "a function (arrays) -> nats a token")
    softcap = subject.static.model.logit_softcap
    return lambda params, inputs, targets, hidden, head: function(
        hooks.LossArrays(params, inputs, targets, hidden, head, softcap)
    )


def ask(question: Question, dtype: Any = np.float64) -> Answer:
    """The reference's answer."""
    return evaluate(*question, dtype)


def difference(trained: Any, exact: Any, rounded: Any, floor: float = 0.0, share: float = SHARE) -> Difference:
    """The difference of two arrays, where `rounded` is the exact one with its program's rounding."""
    size, noise = float(np.linalg.norm(trained - exact)), float(np.linalg.norm(rounded - exact))
    norm = float(np.linalg.norm(exact))
    ratio = float(np.sum(trained * exact)) / norm**2 if norm else 1.0
    return Difference(size, NOISE * noise + share * norm + floor + 1e-30, norm, ratio)


def gradient_differences(
    trained: Answer, exact: Answer, rounded: Answer, share: float = SHARE
) -> Mapping[str, Difference]:
    """The difference of each parameter's gradient, by name."""
    of = functools.partial(difference, floor=FLOOR * exact.norm * share / SHARE, share=share)
    return {name: of(g, exact.gradient[name], rounded.gradient[name]) for name, g in trained.gradient.items()}
