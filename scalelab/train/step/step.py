"""The training step as a pure function: (state, tokens, hparams) -> (state, metrics)."""

import functools

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name
from jax.stages import Wrapped

from scalelab.config import Static
from scalelab.hardware.tactics.parameter_copy import copy_for_loss
from scalelab.model.attention.documents import Batch
from scalelab.model.sums.loss_sums import LossSums, add_sums, no_loss_sums
from scalelab.optim import schedules
from scalelab.optim.schedules import Hparams
from scalelab.parallel import rules
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import upcast
from scalelab.train.step import guard, hooks
from scalelab.train.step.gradients import (
    Gradient,
    document_ends,
    loss_sums,
    pass_inputs,
    reshard_as,
    scaled_gradients,
)
from scalelab.train.step.metrics import refuse_unloggable
from scalelab.train.step.report import layers
from scalelab.train.step.report.report import report
from scalelab.train.step.state import TrainState, evaluation_params, model_variables, next_state
from scalelab.train.step.update.curvature import curvature_if_due
from scalelab.train.step.update.leave_out import leave_out_bad
from scalelab.train.step.update.per_layer.backward import measure_gradient
from scalelab.train.step.update.update import stays_finite, update_if_accepted
from scalelab.train.step.variables import Metrics, Outcome, Verdict, signals_of


def train_step(static: Static, state: TrainState, tokens: jax.Array, h: Hparams) -> tuple[TrainState, Metrics]:
    """One optimizer step on `tokens` [global_batch, S+1].

    If loss, gradient norm, LR, weight decay or beta1 is not finite, the step changes only the counters; likewise if the
    batch has no target, if the update of a user's own optimizer would make a parameter not finite, or if the guard
    skips an outlier. Under
    `guard.skip=micro_batch` the step is taken over the micro-batches that are finite. All decisions are part of the
    program, so all hosts agree and each packed trial decides for itself.
    """
    due = layers.is_due(static, state.step, h, state.guard)
    gradient = take_gradient(static, state, tokens, h, due)
    verdict = decide(static, state, gradient, tokens, h, due)
    updated = update_if_accepted(static, state, gradient, verdict)
    outcome = Outcome(state.step, tokens, h, gradient, verdict, updated)
    after, noted = next_state(static, state, outcome)
    return after, report(static, state, after, outcome, noted)


def take_gradient(static: Static, state: TrainState, tokens: jax.Array, h: Hparams, due: jax.Array | None) -> Gradient:
    """The gradient of the mean loss over the batch, sharded as the moments are, or what an update by layer replays."""
    ends = document_ends(static, h, state.step)
    if static.updates_layers:
        sums, replay = measure_gradient(
            static, state.params, tokens, h.train.z_loss, ends, model_variables(state)
        )
        return Gradient(sums, None, replay, replay.norm)
    n_micro = schedules.traced_micro_batches(static, state.step) if static.batch_ramp else None
    batch = Batch(tokens, ends, n_micro)
    params = copy_for_loss(upcast(state.params, POLICIES[static.precision].parameters), static.layout.devices)
    inputs = pass_inputs(static, params, h.train.z_loss, state.precision, model_variables(state))
    summed, left_out = scaled_gradients(static, inputs, batch, due), None
    if static.guard.leaves_out:
        allowed = guard.may_leave_out(state.guard, state.step)
        summed, left_out = leave_out_bad(static, inputs, batch, due, summed, allowed)
    sums, grads, amax = summed
    grads = checkpoint_name(reshard_as(static, rules.moment_specs, grads), "gradients")
    return Gradient(sums, grads, None, optax.tree.norm(grads), amax, left_out)


def decide(
    static: Static, state: TrainState, gradient: Gradient, tokens: jax.Array, h: Hparams, due: jax.Array | None
) -> Verdict:
    """Whether the step is taken, and with which numbers."""
    loss = checkpoint_name(gradient.sums.nll / jnp.maximum(gradient.sums.tokens, 1.0), "loss")  # for formats_found.py
    planned = schedules.scheduled_hparams(static, state.step, h)
    now = guard.adjust_rates(state.guard, state.step, planned)
    numbers = (loss, gradient.norm, now.step.lr, now.optim.weight_decay, now.optim.beta1)
    finite = jnp.all(jnp.isfinite(jnp.stack(numbers)))
    curvature = curvature_if_due(static, state, tokens, h)
    has_target = gradient.sums.tokens > 0  # else loss and gradient are 0, and moments and decay would move all the same
    verdict = Verdict(loss, finite, finite & has_target, None, now, curvature, due, _is_logged(state.step, h, due))
    if ":" in static.optim.name:
        finite &= stays_finite(static, state, gradient, verdict)
        verdict = verdict._replace(finite=finite, accepted=finite & has_target)
    if not static.guard.watches:
        return verdict
    alarm = guard.decide_step(static, state, signals_of(state.step, gradient, verdict), planned)
    now = guard.clip_outlier(static.guard, now, alarm)
    return verdict._replace(accepted=alarm.accepted & has_target, alarm=alarm, now=now)


def _is_logged(step: jax.Array, h: Hparams, due: jax.Array | None) -> jax.Array:
    """Whether the metrics of the step after `step` are written; those that measure layers are."""
    logged = (step + 1) % h.log.every_steps.astype(jnp.int32) == 0
    return logged if due is None else logged | due


@functools.cache
def jit_train_step(static: Static) -> Wrapped:
    """`train_step`, jitted; kept with its trace, so that a run's formats are read from what is compiled."""
    return jax.jit(functools.partial(train_step, static), inline=True)


def many_steps(
    static: Static, state: TrainState, batches: jax.Array, n: jax.Array, h: Hparams
) -> tuple[TrainState, Metrics]:
    """Take the first `n` (traced) of the batches [k, B, S+1] in one dispatch; of the metrics [k], `n` are meaningful.

    BadInput if the step returns a metric that cannot be logged.
    """
    k, step = batches.shape[0], jit_train_step(static)  # traced once: for its shapes, and in the loop
    shapes = jax.eval_shape(lambda s, t: step(s, t, h)[1], state, batches[0])
    refuse_unloggable(shapes)
    empty = jax.tree.map(lambda s: jnp.zeros((k, *s.shape), s.dtype), shapes)

    def body(i: jax.Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
        state, log = carry
        state, metrics = step(state, batches[i], h)
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), log, metrics)

    return jax.lax.fori_loop(0, n, body, (state, empty))


def evaluation_values(static: Static, state: TrainState, batches: jax.Array, h: Hparams) -> Metrics:
    """`val_loss` of `evaluation_loss`, and the values of `eval.metrics` at the same point."""
    user_values = {}
    if static.own_eval_metrics:
        params = evaluation_params(static, state, h)
        user_values = hooks.evaluation_metrics(static, params, batches, document_ends(static, h))
    return {"val_loss": evaluation_loss(static, state, batches, h)} | user_values


def evaluation_loss(static: Static, state: TrainState, batches: jax.Array, h: Hparams) -> jax.Array:
    """Mean loss in nats a token over batches [n, B, S+1], without z-loss, at the optimizer's averaged point if any."""
    params = evaluation_params(static, state, h)

    def body(sums: LossSums, tokens: jax.Array) -> tuple[LossSums, None]:
        batch = loss_sums(static, params, tokens, 0.0, document_ends(static, h))
        return add_sums(sums, batch._replace(block=None)), None

    sums, _ = jax.lax.scan(body, no_loss_sums(), batches)
    return sums.nll / jnp.maximum(sums.tokens, 1.0)
