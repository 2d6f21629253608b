"""The subject of the probes: a run at a saved step, on one device."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab import config as config_lib
from scalelab.config import Layout, Static
from scalelab.data.batches.batches import TrainBatches
from scalelab.diagnose.evidence import Evidence
from scalelab.errors import BadInput
from scalelab.model.attention.documents import Batch
from scalelab.model.declare import with_variables
from scalelab.precision.loss_scale import LossScale
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import upcast
from scalelab.record import records
from scalelab.train.lineage.facts import config_from_facts
from scalelab.train.resume import handover
from scalelab.train.resume.start import find_checkpoint
from scalelab.train.run.feed import DataShift
from scalelab.train.step import program
from scalelab.train.step.gradients import document_ends, pass_inputs, scaled_gradients
from scalelab.train.step.state import TrainState, model_variables
from scalelab.train.step.step import train_step

ADAMS = ("adam", "adamw")


class Subject(NamedTuple):
    """A run on one device at a saved step: its compiled half, traced numbers, state, and a batch of that step."""

    static: Static
    h: config_lib.Hparams
    step: int
    state: TrainState
    tokens: jax.Array
    batches: TrainBatches
    shift: DataShift = DataShift()  # batches that the guard has skipped

    @property
    def params(self) -> Any:
        """The parameters in fp32."""
        return upcast(self.state.params, POLICIES[self.static.precision].parameters)

    @property
    def weights(self) -> Any:
        """The parameters in fp32, and the model's variables in their places."""
        return with_variables(self.params, model_variables(self.state))

    def batch(self, step: int) -> jax.Array:
        """Read the batch [B, S+1] that `step` (from 0) takes."""
        return jnp.asarray(self.batches.batch(self.shift.number(step)))


def load_subject(evidence: Evidence, step: int | None = None) -> Subject:
    """Load the run at a saved step (None: its last). BadInput if nothing was saved, or the data can't be read."""
    if evidence.data is None:
        raise BadInput(f"--live needs the run's data: {evidence.no_data}")
    source = str(evidence.folder) if step is None else f"{evidence.folder}@{step}"
    _, _, checkpoints, name = find_checkpoint(source)
    config = config_lib.resolve(config_from_facts({"config": records.read_config(evidence.folder)}), stored=True)
    static = dataclasses.replace(config_lib.static(config), layout=Layout())
    given = config_lib.replace_hparams(config_lib.hparams(config), evidence.data.dataset.hparams)
    h = program.traced_hparams(given)
    (like,) = program.restore_targets(static, 1, "turn")
    loaded = checkpoints.load(
        lambda content: {name: handover.select_restorable_fields(content, name, like, config)}, at=step
    )
    assert loaded is not None
    restored = loaded.states[name]
    if not isinstance(restored, TrainState):
        restored, _ = handover.complete_state(checkpoints, loaded, name, restored, static, h)
    shift = DataShift.of(restored.guard)
    tokens = jnp.asarray(evidence.data.batches.batch(shift.number(loaded.step)))
    return Subject(static, h, loaded.step, restored, tokens, evidence.data.batches, shift)


def batch_gradients(static: Static, subject: Subject, scale: Any = 1.0) -> Any:
    """Compute the gradient of the batch's mean loss."""
    ends = document_ends(static, subject.h)
    z_loss = subject.h.train.z_loss
    loss_scale = LossScale(jnp.asarray(scale), jnp.int32(0)) if POLICIES[static.precision].scaled_loss else ()
    variables = model_variables(subject.state)

    @jax.jit
    def of(params: Any) -> Any:
        inputs = pass_inputs(static, params, z_loss, loss_scale, variables)
        return scaled_gradients(static, inputs, Batch(subject.tokens, ends))[1]

    return of(subject.params)


def find_second_moments(opt_state: Any) -> Any:
    """Find the state of optax's Adam inside a chain's state; None for another optimizer."""
    is_adam = lambda x: isinstance(x, optax.ScaleByAdamState)  # noqa: E731
    return next(filter(is_adam, jax.tree.leaves(opt_state, is_leaf=is_adam)), None)


def adam_roots(subject: Subject) -> Any:
    """Compute 1 / sqrt(sqrt(v_hat) + eps) of each parameter, the root of Adam's preconditioner; None without Adam."""
    second = find_second_moments(subject.state.opt_state)
    if subject.static.optim.name not in ADAMS or second is None:
        return None
    correction = 1 - subject.h.optim.beta2 ** jnp.maximum(second.count, 1)
    eps = subject.h.optim.eps
    return jax.tree.map(lambda v: (jnp.sqrt(v.astype(jnp.float32) / correction) + eps) ** -0.5, second.nu)


@functools.cache
def compile_step(static: Static) -> Any:
    """The trained step, compiled once for all probes that take one."""
    return jax.jit(functools.partial(train_step, static))
