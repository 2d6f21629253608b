"""The update of a step that was accepted: parameters, optimizer state, average of the weights."""

import functools

import jax
import jax.numpy as jnp
import optax
from jax.sharding import auto_axes

from scalelab.config import Static
from scalelab.hardware.tactics.turn import run_if
from scalelab.optim import ema
from scalelab.optim.chain import build_optimizer_chain
from scalelab.optim.schedules import Hparams
from scalelab.parallel import rules
from scalelab.precision import rounding
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import cast_for_storage, upcast
from scalelab.precision.states import Tree, policy_state
from scalelab.train.step import guard
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import Gradient, reshard_as
from scalelab.train.step.report import layers
from scalelab.train.step.state import TrainState
from scalelab.train.step.update.per_layer.update import update_layers
from scalelab.train.step.variables import Norms, Updated, Verdict


def update_if_accepted(static: Static, state: TrainState, gradient: Gradient, verdict: Verdict) -> Updated:
    """`state` after its update, or as it was; the norms are measured where they are logged or the guard needs them.

    The update stands twice in the program, with measuring and without, and at most one of them runs.
    """
    accepted, now = verdict.accepted, verdict.now
    by_layer = jax.eval_shape(lambda s: _norms_by_layer(static, s.params, s.params, s.opt_state, now), state)
    nothing = Norms(jnp.where(accepted, jnp.nan, 0.0), jnp.float32(jnp.nan), layers.nothing_measured(by_layer))
    kept = policy_state(POLICIES[static.precision]).kept_by_update(state.precision)
    updated = Updated(state.params, state.opt_state, state.ema, kept, nothing)
    logged = verdict.logged | guard.measures_updates(static, state.step)

    def update(measured: bool, old: Updated, tree: Tree, replay: Tree, extra: Tree) -> Updated:
        tied = gradient._replace(tree=tree, replay=replay), verdict._replace(curvature=extra)
        return _update(static, state.step, *tied, measured, old)

    for measured, active in ((False, accepted & ~logged), (True, accepted & logged)):
        once = functools.partial(update, measured)
        updated = run_if(active, once, updated, gradient.tree, gradient.replay, verdict.curvature)
    return updated


def _update(
    static: Static, step: jax.Array, gradient: Gradient, verdict: Verdict, measured: bool, old: Updated
) -> Updated:
    """The update at `step`; with `measured` also its norms."""
    now = verdict.now
    if gradient.replay is not None:
        params, opt_state, moved, size = update_layers(static, gradient.replay, now, step, old.params, old.opt_state)
        norms = Norms(jnp.sqrt(moved), jnp.sqrt(size), {}) if measured else old.norms
        return Updated(params, opt_state, _next_average(static, old.ema, params, now), old.kept, norms)
    policy, norms = POLICIES[static.precision], old.norms
    params = policy_state(policy).read_params(old.params, old.kept)
    opt_state = upcast(old.opt_state, policy.moments)
    params = reshard_as(static, rules.moment_specs, params)
    moves, opt_state = compute_updates(static, gradient.tree, opt_state, params, now, now.step.lr, **verdict.curvature)
    params = reshard_as(static, rules.parameter_specs, optax.apply_updates(params, moves))
    if measured:
        by_layer = _norms_by_layer(static, moves, params, opt_state, now)
        norms = Norms(optax.tree.norm(moves), optax.tree.norm(params), by_layer)
    params, kept = _store_params(static, params, now, step)
    average = _next_average(static, old.ema, params, now)
    return Updated(params, cast_for_storage(opt_state, policy.moments), average, kept, norms)


def _store_params(static: Static, params: Tree, now: Hparams, step: jax.Array) -> tuple[Tree, Tree]:
    """fp32 parameters as stored between steps, and what the policy keeps of their rounding."""
    policy = POLICIES[static.precision]
    if policy.rounding != "stochastic":
        return policy_state(policy).store_params(params)
    round_tree = rounding.round_tree
    if static.layout.devices > 1:  # random bits name no sharding
        round_tree = auto_axes(round_tree, out_sharding=rules.parameter_specs(static.model, static.layout))
    return round_tree(params, rounding.step_key(now.train.seed, step)), ()


def _next_average(static: Static, average: ema.Ema | tuple[()], params: Tree, now: Hparams) -> ema.Ema | tuple[()]:
    """The average of the weights with these new ones, as stored; () if there is none."""
    if not isinstance(average, ema.Ema):
        return ()
    form = POLICIES[static.precision].parameters
    return ema.update_ema(average, reshard_as(static, rules.moment_specs, upcast(params, form)), now.train.ema)


def _norms_by_layer(static: Static, moves: Tree, params: Tree, opt_state: Tree, h: Hparams) -> dict[str, layers.Norms]:
    """Norms of the update and of the weights after it, and shares under eps; {} if layers are not logged."""
    if not static.layers:
        return {}
    norms = {"update_norm": layers.layer_norms(static, moves), "weight_norm": layers.layer_norms(static, params)}
    return norms | {"eps_share": layers.eps_shares(static, h, opt_state)}


def stays_finite(static: Static, state: TrainState, gradient: Gradient, verdict: Verdict) -> jax.Array:
    """Whether the update leaves all parameters finite, computed before anything is written, and only if all else is.

    The optimizers of this package keep them finite if LR, decay, gradients and state are (tested). Checking their
    updates in advance would cost 5 to 23 % of a step (AdamW, d_model 128 and 256, vocabularies of 512 and 8,192, on a
    CPU); keeping the old state for a while, 3 to 26 % and 10 bytes a parameter.
    """
    policy, now = POLICIES[static.precision], verdict.now

    def measure(size: jax.Array, state: TrainState, grads: Tree, extra: Tree) -> jax.Array:
        params, opt_state = upcast(state.params, policy.parameters), upcast(state.opt_state, policy.moments)
        params = reshard_as(static, rules.moment_specs, params)
        moves, _ = compute_updates(static, grads, opt_state, params, now, now.step.lr, **extra)
        return size + optax.tree.norm(optax.apply_updates(params, moves))

    zero = jnp.float32(0.0)
    return jnp.isfinite(run_if(verdict.finite, measure, zero, state, gradient.tree, verdict.curvature))


def compute_updates(
    static: Static, grads: Tree, opt_state: Tree, params: Tree, h: Hparams, lr: jax.Array, **extra: Tree
) -> tuple[Tree, Tree]:
    """The updates to add to the parameters, and the next optimizer state; `extra`: keywords the optimizer asks for.

    On a mesh the compiler shards the work (`auto_axes`): Explicit axes would need an out_sharding for every product of
    matrix optimizers, and optax's transforms name none. Updates and state are sharded by `state.state_specs`.
    """

    def update(grads: Tree, opt_state: Tree, params: Tree, h: Hparams, lr: jax.Array, extra: Tree) -> tuple[Tree, Tree]:
        return build_optimizer_chain(static, h, lr).update(grads, opt_state, params, **extra)

    if static.layout.devices > 1:
        out = rules.moment_specs(static.model, static.layout), state_lib.state_specs(static).opt_state
        update = auto_axes(update, out_sharding=out)
    return update(grads, opt_state, params, h, lr, extra)
