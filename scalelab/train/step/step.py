"""The training step as a pure function: (state, tokens, hparams) -> (state, metrics)."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import auto_axes

from scalelab.config import Static
from scalelab.hardware.tactics.parameter_copy import copy_for_loss
from scalelab.hardware.tactics.turn import tie_to_turn
from scalelab.model.sums.loss_sums import LossSums, add_sums, no_loss_sums
from scalelab.model.sums.measures import when
from scalelab.optim import schedules
from scalelab.optim.chain import build_optimizer_chain
from scalelab.optim.clip import clip_ratio
from scalelab.optim.registry import find_optimizer
from scalelab.optim.schedules import Hparams
from scalelab.parallel import rules
from scalelab.precision import delayed, loss_scale, rounding
from scalelab.precision.policy import POLICIES, Policy
from scalelab.train.step import curvature, ema, guard, hooks, incident, layers
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import document_ends, leave_out_bad, loss_sums, reshard_as, scaled_gradients
from scalelab.train.step.metrics import refuse_unloggable
from scalelab.train.step.per_layer.backward import Kept, measure_gradient
from scalelab.train.step.per_layer.update import update_layers
from scalelab.train.step.state import TrainState, cast_for_storage, upcast

STEP_METRICS = ("train_loss", "grad_norm", "update_norm", "param_norm", "lr", "skipped")
LOSS_SCALE = "loss_scale"  # a metric under policies that have one: this step's loss scale


class UpdatedState(NamedTuple):
    """What an update changes, and its norms: of the update, of the weights after it, of both by layer.

    `lost`: what rounding the weights lost, under a policy that keeps it.
    """

    params: Any
    opt_state: Any
    ema: Any
    lost: Any
    norms: tuple[jax.Array, jax.Array, dict[str, layers.Norms]]


def train_step(
    static: Static, state: TrainState, tokens: jax.Array, h: Hparams
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimizer step on `tokens` [global_batch, S+1].

    If loss, gradient norm, LR, weight decay or beta1 is not finite, the step changes only the counters; likewise if the
    update of a user's own optimizer would make a parameter not finite, or if the guard skips an outlier. Under
    `guard.skip=micro_batch` the step is taken over the micro-batches that are finite. All decisions are part of the
    program, so all hosts agree and each packed trial decides for itself. `clip_ratio`: norm of the gradient after the
    clip, over that before it (NaN if skipped). `update_norm` and `param_norm` are NaN on steps that are not logged,
    since they read every parameter once more (3 % of a step with a large vocabulary).
    """
    policy, due = POLICIES[static.precision], layers.is_due(static, state.step, h, state.guard)
    params = state.params if static.updates_layers else upcast(state.params, policy.parameters)
    sums, grads, amax, left_out = _loss_and_gradients(static, state, params, tokens, h, due)
    grad_norm = grads.norm if isinstance(grads, Kept) else optax.tree.norm(grads)
    loss = sums.nll / jnp.maximum(sums.tokens, 1.0)
    loss = checkpoint_name(loss, "loss")  # the names are for train/formats_found.py
    planned = schedules.scheduled_hparams(static, state.step, h)
    now = guard.adjust_rates(state.guard, state.step, planned)
    extra = _curvature(static, params, tokens, state.step, h)
    numbers = (loss, grad_norm, now.step.lr, now.optim.weight_decay, now.optim.beta1)
    finite = jnp.all(jnp.isfinite(jnp.stack(numbers)))
    if ":" in static.optim.name:
        finite &= _stays_finite(static, state, grads, finite, extra, now)
    logged = _is_logged(state.step, h, due)
    decision, now = guard.decide_step(static, state, loss, grad_norm, finite, planned, now, left_out)
    accepted = finite if decision is None else decision.accepted
    measured = logged | guard.measures_updates(static, state.step)
    updated = _update_if(accepted, static, state, grads, extra, now, measured)
    update_norm, param_norm, norms_by_layer = updated.norms
    precision = updated.lost or _next_precision_state(policy, state.precision, amax, finite, accepted)
    new = _next_state(state, updated, accepted, precision)
    shown = [jnp.where(logged | ~accepted, norm, jnp.nan) for norm in (update_norm, param_norm)]
    values = loss, grad_norm, *shown, now.step.lr, new.skipped
    metrics = dict(zip(STEP_METRICS, values, strict=True)) | {"streak": new.streak}
    metrics |= {LOSS_SCALE: state.precision.scale} if policy.scaled_loss else {}
    metrics["clip_ratio"] = jnp.where(accepted, clip_ratio(grad_norm, now.optim.clip_norm, new.opt_state), jnp.nan)
    if decision is not None:
        past, uniform = (static.guard, state.guard, state.step, decision), math.log(static.model.vocab_size)
        memory, report = incident.remember(*past, loss, grad_norm, update_norm / param_norm, uniform)
        sigmas = guard.loss_sigmas(state.guard, state.step, loss)
        new, metrics = new._replace(guard=memory), metrics | {guard.GUARD: report, "loss_sigmas": sigmas}
    if due is not None:
        metrics |= {layers.LAYERS: _layer_metrics(static, due, sums, grads, norms_by_layer, new.params, tokens)}
    metrics |= layers.block_metrics(sums)
    metrics |= {hooks.LOSS_TERM: sums.term / jnp.maximum(sums.tokens, 1.0)} if static.own_loss else {}
    if static.own_metrics:
        after = upcast(new.params, policy.parameters)
        arrays = hooks.StepArrays(new.step, tokens, params, after, grads, loss, now.step.lr, h)
        metrics |= hooks.step_metrics(static, logged, arrays, tuple(metrics))
    return new, metrics


def _loss_and_gradients(
    static: Static, state: TrainState, params: Any, tokens: jax.Array, h: Hparams, due: jax.Array | None
) -> tuple[LossSums, Any, Any, Any]:
    """Loss sums, gradients sharded as the moments are, the precision policy's amax, and what the guard left out.

    Under `train.updates=per_layer` there are no gradients yet, but what the second backward needs.
    """
    if static.updates_layers:
        ends = document_ends(static, h, state.step)
        return *measure_gradient(static, params, tokens, h.train.z_loss, ends), (), None
    n_micro_batches = schedules.traced_micro_batches(static, state.step) if static.batch_ramp else None
    ends = document_ends(static, h, state.step)
    forward_params = copy_for_loss(params, static.layout.devices)
    batch = static, forward_params, tokens, h.train.z_loss, state.precision, n_micro_batches, ends, due
    summed, left_out = scaled_gradients(*batch), None
    if static.guard.leaves_out:
        summed, left_out = leave_out_bad(*batch, summed, guard.may_leave_out(state.guard, state.step))
    sums, grads, amax = summed
    return sums, checkpoint_name(reshard_as(static, rules.moment_specs, grads), "gradients"), amax, left_out


def _is_logged(step: jax.Array, h: Hparams, due: jax.Array | None) -> jax.Array:
    """Whether the metrics of the step after `step` are written; those that measure layers are."""
    logged = (step + 1) % h.log.every_steps.astype(jnp.int32) == 0
    return logged if due is None else logged | due


def _update_if(
    accepted: jax.Array, static: Static, state: TrainState, grads: Any, extra: dict[str, Any], now: Hparams,
    logged: jax.Array,
) -> UpdatedState:  # fmt: skip
    """Update the state if `accepted`; its norms are measured where `logged`.

    Loops of one turn or none: a conditional would copy parameters and moments (3 %).
    """
    by_layer = jax.eval_shape(lambda s: _norms_by_layer(static, s.params, s.params, s.opt_state, now), state)
    no_norms = jnp.where(accepted, jnp.nan, 0.0), jnp.float32(jnp.nan), layers.nothing_measured(by_layer)
    lost = state.precision if POLICIES[static.precision].rounding == "kahan" else ()
    updated = UpdatedState(state.params, state.opt_state, state.ema, lost, no_norms)
    for measured, active in ((False, accepted & ~logged), (True, accepted & logged)):
        update = functools.partial(_update_once, static, grads, extra, now, state.step, measured)
        updated = jax.lax.fori_loop(0, active.astype(jnp.int32), update, updated)
    return updated


def _update_once(
    static: Static, grads: Any, extra: dict[str, Any], now: Hparams, step: jax.Array, measured: bool, _: jax.Array,
    state: UpdatedState,
) -> UpdatedState:  # fmt: skip
    """Update parameters, optimizer state and EMA at `step`; with `measured` also the norms."""
    policy = POLICIES[static.precision]
    # Tied with the gradients: else products of gradients alone run before the turn.
    (params, opt_state, average, lost, norms), grads, extra = tie_to_turn((state, grads, extra))
    if isinstance(grads, Kept):
        params, opt_state, moved, size = update_layers(static, grads, now, step, params, opt_state)
        norms = (jnp.sqrt(moved), jnp.sqrt(size), {}) if measured else norms
        return UpdatedState(params, opt_state, _next_average(static, average, params, now), lost, norms)
    params = rounding.join_trees(params, lost) if lost else upcast(params, policy.parameters)
    opt_state = upcast(opt_state, policy.moments)
    params = reshard_as(static, rules.moment_specs, params)
    moves, opt_state = compute_updates(static, grads, opt_state, params, now, now.step.lr, **extra)
    params = reshard_as(static, rules.parameter_specs, optax.apply_updates(params, moves))
    if measured:
        norms = optax.tree.norm(moves), optax.tree.norm(params), _norms_by_layer(static, moves, params, opt_state, now)
    params, lost = _round_parameters(static, params, now, step)
    average = _next_average(static, average, params, now)
    return UpdatedState(params, cast_for_storage(opt_state, policy.moments), average, lost, norms)


def _round_parameters(static: Static, params: Any, now: Hparams, step: jax.Array) -> tuple[Any, Any]:
    """fp32 parameters as stored between steps, and what their rounding lost: () unless the policy keeps it."""
    policy = POLICIES[static.precision]
    if policy.rounding == "kahan":
        return rounding.split_tree(params)
    if policy.rounding == "nearest":
        return cast_for_storage(params, policy.parameters), ()
    round_tree: Any = rounding.round_tree
    if static.layout.devices > 1:  # random bits name no sharding
        round_tree = auto_axes(round_tree, out_sharding=rules.parameter_specs(static.model, static.layout))
    return round_tree(params, rounding.step_key(now.train.seed, step)), ()


def _next_average(static: Static, average: Any, params: Any, now: Hparams) -> Any:
    """The average of the weights with these new ones, as stored; () if there is none."""
    if not static.ema:
        return average
    form = POLICIES[static.precision].parameters
    return ema.update_ema(average, reshard_as(static, rules.moment_specs, upcast(params, form)), now.train.ema)


def _next_state(state: TrainState, updated: UpdatedState, accepted: jax.Array, precision: Any) -> TrainState:
    return TrainState(
        step=state.step + 1,
        params=updated.params,
        opt_state=updated.opt_state,
        skipped=state.skipped + ~accepted,
        streak=jnp.where(accepted, 0, state.streak + 1),
        ema=updated.ema,
        precision=precision,
    )


def _layer_metrics(
    static: Static, due: jax.Array, sums: LossSums, grads: Any, norms_by_layer: dict[str, layers.Norms], params: Any,
    tokens: jax.Array,
) -> dict[str, jax.Array]:  # fmt: skip
    """The measures of each layer and of the batch; meaningless unless `due`."""
    norms = functools.partial(layers.layer_norms, static)
    grad_norm = when(due, norms, layers.nothing_measured(jax.eval_shape(norms, grads)), grads)
    values = layers.describe_layers(static, sums.measures, sums.tokens, **norms_by_layer, grad_norm=grad_norm)
    values |= {f"block_{name}": x for name, x in layers.describe_block_sums(sums).items()}
    batch = layers.describe_batch(due, sums.measures.head.token_nll, params, tokens)
    return values | batch | {layers.DUE: due}


def _norms_by_layer(static: Static, moves: Any, params: Any, opt_state: Any, h: Hparams) -> dict[str, layers.Norms]:
    """Norms of the update and of the weights after it, and shares under eps; {} if layers are not logged."""
    if not static.layers:
        return {}
    norms = {"update_norm": layers.layer_norms(static, moves), "weight_norm": layers.layer_norms(static, params)}
    return norms | {"eps_share": layers.eps_shares(static, h, opt_state)}


def _stays_finite(
    static: Static, state: TrainState, grads: Any, finite: jax.Array, extra: dict[str, Any], h: Hparams
) -> jax.Array:
    """Whether the update leaves all parameters finite, computed before anything is written, and only if `finite`.

    The optimizers of this package keep them finite if LR, decay, gradients and state are (tested). Checking their
    updates in advance would cost 5 to 23 % of a step (AdamW, d_model 128 and 256, vocabularies of 512 and 8,192, on a
    CPU); keeping the old state for a while, 3 to 26 % and 10 bytes a parameter.
    """
    policy = POLICIES[static.precision]

    def once(_: jax.Array, size: jax.Array) -> jax.Array:
        params, opt_state = upcast(state.params, policy.parameters), upcast(state.opt_state, policy.moments)
        params = reshard_as(static, rules.moment_specs, params)
        moves, _ = compute_updates(static, grads, opt_state, params, h, h.step.lr, **extra)
        return size + optax.tree.norm(optax.apply_updates(params, moves))

    return jnp.isfinite(jax.lax.fori_loop(0, finite.astype(jnp.int32), once, jnp.float32(0.0)))


def _curvature(static: Static, params: Any, tokens: jax.Array, step: jax.Array, h: Hparams) -> dict[str, Any]:
    """The keyword `curvature` of optimizers that use it: (estimate, whether it is new), every `every` steps."""
    kind, every = find_optimizer(static.optim.name).curvature, static.optim.every or 1
    if not kind:
        return {}
    due = step % every == 0
    none = reshard_as(static, rules.moment_specs, jax.tree.map(jnp.zeros_like, params))

    def once(turn: jax.Array, none: Any) -> Any:
        del none
        # Plus a zero that the compiler doesn't know of: else nothing depends on the turn, and all of it is computed
        # before the loop, at every step (Sophia-G took 2.2 times AdamW's step, Sophia-H 3.6).
        zero = jnp.minimum(turn, 0)
        batch = tokens + zero.astype(tokens.dtype)
        estimate = curvature.estimate_curvature(
            static, kind, params, batch, step + zero, h.train.seed, document_ends(static, h, step)
        )
        return reshard_as(static, rules.moment_specs, estimate)

    # A loop, not a conditional: under vmap, packed trials would compute both branches at every step.
    estimate = jax.lax.fori_loop(0, due.astype(jnp.int32), once, none)
    return {"curvature": (estimate, due & jnp.isfinite(optax.tree.norm(estimate)))}


def _next_precision_state(
    policy: Policy, precision_state: Any, amax: Any, finite: jax.Array, accepted: jax.Array
) -> Any:
    """The precision policy's state for the next step: that of a finite step that was not accepted stays as it is."""
    if policy.scaled_loss:
        new = loss_scale.update_loss_scale(precision_state, finite)
        return jax.tree.map(lambda old, x: jnp.where(finite & ~accepted, old, x), precision_state, new)
    return delayed.update_amax_history(precision_state, amax, accepted) if policy.scaling == "delayed" else ()


@functools.cache
def jit_train_step(static: Static) -> Any:
    """`train_step`, jitted; kept with its trace, so that a run's formats are read from what is compiled."""
    return jax.jit(functools.partial(train_step, static), inline=True)


def many_steps(
    static: Static, state: TrainState, batches: jax.Array, n: jax.Array, h: Hparams
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Take the first `n` (traced) of the batches [k, B, S+1] in one dispatch; of the metrics [k], `n` are meaningful.

    BadInput if the step returns a metric that cannot be logged.
    """
    k, step = batches.shape[0], jit_train_step(static)  # traced once: for its shapes, and in the loop
    shapes = jax.eval_shape(lambda s, t: step(s, t, h)[1], state, batches[0])
    refuse_unloggable(shapes)
    empty = jax.tree.map(lambda s: jnp.zeros((k, *s.shape), s.dtype), shapes)

    def body(i: jax.Array, carry: tuple[TrainState, Any]) -> tuple[TrainState, Any]:
        state, log = carry
        state, metrics = step(state, batches[i], h)
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), log, metrics)

    return jax.lax.fori_loop(0, n, body, (state, empty))


def compute_updates(
    static: Static, grads: Any, opt_state: Any, params: Any, h: Hparams, lr: jax.Array, **extra: Any
) -> tuple[Any, Any]:
    """The updates to add to the parameters, and the next optimizer state; `extra`: keywords the optimizer asks for.

    On a mesh the compiler shards the work (`auto_axes`): Explicit axes would need an out_sharding for every product of
    matrix optimizers, and optax's transforms name none. Updates and state are sharded by `state.state_specs`.
    """

    def update(grads: Any, opt_state: Any, params: Any, h: Hparams, lr: jax.Array, extra: Any) -> tuple[Any, Any]:
        return build_optimizer_chain(static, h, lr).update(grads, opt_state, params, **extra)

    if static.layout.devices > 1:
        out = rules.moment_specs(static.model, static.layout), state_lib.state_specs(static).opt_state
        update = auto_axes(update, out_sharding=out)
    return update(grads, opt_state, params, h, lr, extra)


def evaluation_values(static: Static, state: TrainState, batches: jax.Array, h: Hparams) -> dict[str, jax.Array]:
    """`val_loss` of `evaluation_loss`, and the values of `eval.metrics` at the same point."""
    user_values = {}
    if static.own_eval_metrics:
        params = state_lib.evaluation_params(static, state, h)
        user_values = hooks.evaluation_metrics(static, params, batches, document_ends(static, h))
    return {"val_loss": evaluation_loss(static, state, batches, h)} | user_values


def evaluation_loss(static: Static, state: TrainState, batches: jax.Array, h: Hparams) -> jax.Array:
    """Mean loss in nats a token over batches [n, B, S+1], without z-loss, at the optimizer's averaged point if any."""
    params = state_lib.evaluation_params(static, state, h)

    def body(sums: LossSums, tokens: jax.Array) -> tuple[LossSums, None]:
        batch = loss_sums(static, params, tokens, 0.0, document_ends(static, h))
        return add_sums(sums, batch._replace(block=None)), None

    sums, _ = jax.lax.scan(body, no_loss_sums(), batches)
    return sums.nll / jnp.maximum(sums.tokens, 1.0)
