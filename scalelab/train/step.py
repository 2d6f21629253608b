"""The training step as a pure function: (state, tokens, hparams) -> (state, metrics)."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import auto_axes, reshard

from scalelab.config import Static
from scalelab.model import documents, transformer
from scalelab.model.documents import Ends
from scalelab.model.loss import LossSums
from scalelab.optim import schedules
from scalelab.optim.chain import chain
from scalelab.optim.members import find
from scalelab.optim.schedules import Hparams
from scalelab.parallel import pipeline, rules
from scalelab.precision import delayed, loss_scale
from scalelab.precision.loss_scale import LossScale
from scalelab.precision.policy import POLICIES, Policy
from scalelab.precision.products import arithmetic
from scalelab.train import curvature, ema
from scalelab.train import state as state_lib
from scalelab.train.state import TrainState, stored, wide

Updated = tuple[Any, Any, Any, tuple[jax.Array, jax.Array]]  # params, opt_state, ema, (update norm, param norm)
METRICS = ("train_loss", "grad_norm", "update_norm", "param_norm", "lr", "skipped")
LOSS_SCALE = "loss_scale"  # a metric where the policy has one: what this step's loss was multiplied by


def ends(static: Static, h: Hparams, step: jax.Array | None = None) -> Ends | None:
    """What ends a document, in training at `step` also a length; None: sequences are read in full, across documents."""
    separator = h["separator"] if static.documents == "mask" else None
    length = schedules.seq_len(static, step, h) if static.seq_warmup and step is not None else None
    return Ends(separator, length) if separator is not None or length is not None else None


def loss_sums(
    static: Static,
    params: Any,
    tokens: jax.Array,
    z_weight: jax.Array | float,
    ends: Ends | None = None,
    scales: Any = None,
) -> LossSums:
    """Summed next-token loss of `tokens` [B, S+1]; a negative token is neither predicted nor counted.

    With `ends` documents don't see each other, and none is asked for the next one's first token. `scales` are those of
    delayed scaling; without them its products take the amax of what they multiply.
    """
    if static.layout.stage > 1:
        return pipeline.loss_sums(static, params, tokens, z_weight, ends)
    inputs_BS, targets_BS, packed = documents.cut(tokens, ends)
    policy = POLICIES[static.precision]
    with arithmetic(policy):
        return transformer.loss(
            static.model, params, inputs_BS, targets_BS, z_weight, policy, scales=scales, packed=packed
        )


def gradients(
    static: Static,
    params: Any,
    tokens: jax.Array,
    z_weight: jax.Array,
    scale: jax.Array | float = 1.0,
    ends: Ends | None = None,
) -> tuple[LossSums, Any]:
    """Sums over the batch [B, S+1] and the gradient of the token mean; `scale` is that of the loss, where the policy has one.

    With `accumulate` > 1 micro-batches are summed, not averaged, each already divided by the tokens that count in all of
    them: the result is the big batch's, also where micro-batches hold different numbers of ignored positions.
    """
    kept = LossScale(jnp.asarray(scale), jnp.int32(0)) if POLICIES[static.precision].scaled_loss else ()
    return measured_gradients(static, params, tokens, z_weight, kept, ends=ends)[:2]


def measured_gradients(
    static: Static,
    params: Any,
    tokens: jax.Array,
    z_weight: jax.Array,
    kept: Any,
    taken: jax.Array | None = None,
    ends: Ends | None = None,
) -> tuple[LossSums, Any, Any]:
    """The same from what the precision policy keeps (`TrainState.precision`), and the amax that delayed scaling wants to know.

    Under a loss scale the gradient is that many times as large on its way back through the model, so that less of it
    underflows; a power of two is taken out again exactly, in fp32. Of the micro-batches only the first `taken` (traced) are
    run where it is given: row r is of micro-batch r % accumulate. The others' rows are of no consequence.
    """
    policy, counted = POLICIES[static.precision], jnp.maximum(_counted(static, tokens, taken, ends), 1)
    scales = delayed.scales(kept, policy) if policy.scaling == "delayed" else ()
    with arithmetic(policy):
        if not policy.scaled_loss:
            return _gradients(static, params, scales, tokens, z_weight, counted, taken, ends)
        sums, grads, amax = _gradients(static, params, scales, tokens, z_weight, counted / kept.scale, taken, ends)
        return sums, jax.tree.map(lambda g: g / kept.scale, grads), amax


def _counted(static: Static, tokens: jax.Array, taken: jax.Array | None, ends: Ends | None) -> jax.Array:
    """How many tokens are predicted."""
    predicted_BS = documents.targets(tokens, ends) >= 0
    if taken is None:
        return jnp.sum(predicted_BS)
    each = jnp.sum(predicted_BS.reshape(-1, static.accumulate, predicted_BS.shape[-1]), axis=(0, 2))
    return jnp.sum(jnp.where(jnp.arange(static.accumulate) < taken, each, 0))


def objective(
    static: Static,
    params: Any,
    scales: Any,
    part: jax.Array,
    z_weight: jax.Array,
    counted: jax.Array,
    ends: Ends | None,
) -> tuple[jax.Array, LossSums]:
    """(what is differentiated, the sums) of a micro-batch `part` [b, S+1]."""
    sums = loss_sums(static, params, part, z_weight, ends, scales)
    return sums.objective / counted, sums


def _gradients(
    static: Static,
    params: Any,
    scales: Any,
    tokens: jax.Array,
    z_weight: jax.Array,
    counted: jax.Array,
    taken: jax.Array | None,
    ends: Ends | None,
) -> tuple[LossSums, Any, Any]:
    def of(part: jax.Array) -> tuple[LossSums, Any, Any]:
        if static.layout.stage > 1:
            return *pipeline.gradients(static, params, part, z_weight, counted, ends), scales
        differentiated = functools.partial(objective, static)
        (_, sums), (grads, amax) = jax.value_and_grad(differentiated, argnums=(0, 1), has_aux=True)(
            params, scales, part, z_weight, counted, ends
        )
        return sums, grads, amax

    def micro(carry: tuple[LossSums, Any, Any], part: jax.Array) -> tuple[tuple[LossSums, Any, Any], None]:
        sums, grads, amax = of(part)
        added = jax.tree.map(jnp.add, carry[:2], (sums, split(static, rules.gradients, grads)))
        return (*added, jax.tree.map(jnp.maximum, carry[2], amax)), None

    if static.accumulate == 1:
        return of(tokens)
    rows = tokens.reshape(-1, static.accumulate, tokens.shape[-1])
    parts = rows.swapaxes(0, 1)  # every n-th row, so that each device's own rows make its part of each micro-batch
    zeros = split(static, rules.gradients, jax.tree.map(jnp.zeros_like, params))
    begin = (LossSums(*[jnp.zeros(())] * 3), zeros, jax.tree.map(jnp.zeros_like, scales))
    if taken is not None:
        return jax.lax.fori_loop(0, taken, lambda i, carry: micro(carry, parts[i])[0], begin)
    return jax.lax.scan(micro, begin, parts)[0]


def split(static: Static, rule: Callable, tree: Any) -> Any:
    """A tree like the parameters, laid out as `rule` says; on a single device the tree itself."""
    if static.layout.devices == 1:
        return tree
    return jax.tree.map(reshard, tree, rule(static.model, static.layout))


def train_step(
    static: Static, state: TrainState, tokens: jax.Array, h: Hparams
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimizer step on `tokens` [global_batch, S+1].

    A step whose loss or gradient norm is not finite changes nothing but the counters: the decision is part of the
    program, so every host and every packed trial takes its own. `update_norm` and `param_norm` are NaN on steps that
    `log_every` passes over: they read every parameter once more, 3 % of a step with a large vocabulary.
    """
    policy = POLICIES[static.precision]
    params = wide(state.params, policy.parameters)
    taken = schedules.micro_batches(static, state.step) if static.batch_ramp else None
    where = ends(static, h, state.step)
    # Behind a barrier: else the partitioner takes what is updated out of the tables that were gathered for the loss, which are
    # then held to the end (two tables of the vocabulary in fp32 on GPUs).
    seen = jax.lax.optimization_barrier(params) if static.layout.devices > 1 else params
    sums, grads, amax = measured_gradients(static, seen, tokens, h["z_loss"], state.precision, taken, where)
    grads = checkpoint_name(split(static, rules.moments, grads), "gradients")
    loss, grad_norm = sums.nll / jnp.maximum(sums.tokens, 1.0), optax.tree.norm(grads)
    loss = checkpoint_name(loss, "loss")  # the names are for train/dtypes.py
    now = schedules.at(static, state.step, h)
    extra = _curvature(static, params, tokens, state.step, h)

    def update(measured: bool, taken: jax.Array, carry: Updated) -> Updated:
        """No or one turn of a loop: it updates in place, where a conditional copies parameters and moments (3 %)."""

        def once(_: jax.Array, carry: Updated) -> Updated:
            # The barrier ties the gradients to the turn: else products of them alone are taken before it, turn or none.
            (params, opt_state, average, norms), tied, more = jax.lax.optimization_barrier((carry, grads, extra))
            params, opt_state = wide(params, policy.parameters), wide(opt_state, policy.moments)
            params = split(static, rules.moments, params)
            moves, opt_state = updates(static, tied, opt_state, params, {**h, **now}, now["lr"], **more)
            params = split(static, rules.parameters, optax.apply_updates(params, moves))
            norms = (optax.tree.norm(moves), optax.tree.norm(params)) if measured else norms
            params = stored(params, policy.parameters)
            if static.ema:
                mine = split(static, rules.moments, wide(params, policy.parameters))
                average = ema.update(average, mine, h["ema"])
            return params, stored(opt_state, policy.moments), average, norms

        return jax.lax.fori_loop(0, taken.astype(jnp.int32), once, carry)

    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    logged = (state.step + 1) % h["log_every"].astype(jnp.int32) == 0
    unmeasured = (jnp.where(finite, jnp.nan, 0.0), jnp.float32(jnp.nan))
    carry = update(False, finite & ~logged, (state.params, state.opt_state, state.ema, unmeasured))
    params, opt_state, average, norms = update(True, finite & logged, carry)
    new = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        skipped=state.skipped + ~finite,
        streak=jnp.where(finite, 0, state.streak + 1),
        ema=average,
        precision=_next(policy, state.precision, amax, finite),
    )
    metrics = dict(zip(METRICS, (loss, grad_norm, *norms, now["lr"], new.skipped), strict=True)) | {
        "streak": new.streak
    }
    return new, metrics | ({LOSS_SCALE: state.precision.scale} if policy.scaled_loss else {})


def _curvature(static: Static, params: Any, tokens: jax.Array, step: jax.Array, h: Hparams) -> dict[str, Any]:
    """The keyword `curvature` of an optimizer that wants it: (estimate, whether it is new). Measured every `every` steps only."""
    kind, every = find(static.optim.name).curvature, static.optim.every or 1
    if not kind:
        return {}
    due = step % every == 0
    none = split(static, rules.moments, jax.tree.map(jnp.zeros_like, params))

    def once(turn: jax.Array, none: Any) -> Any:
        del none
        # Plus zero, which the compiler doesn't know: else nothing changes with the turn, and all of it is worked out before
        # the loop, at every step (Sophia-G took 2.2 times AdamW's step, Sophia-H 3.6).
        zero = jnp.minimum(turn, 0)
        mine = tokens + zero.astype(tokens.dtype)
        found = curvature.measure(static, kind, params, mine, step + zero, h["seed"], ends(static, h, step))
        return split(static, rules.moments, found)

    # A loop and no conditional: packed trials, which are all due at once, would take both sides of that at every step.
    estimate = jax.lax.fori_loop(0, due.astype(jnp.int32), once, none)
    return {"curvature": (estimate, due & jnp.isfinite(optax.tree.norm(estimate)))}


def _next(policy: Policy, kept: Any, amax: Any, finite: jax.Array) -> Any:
    """What the precision policy keeps for the next step."""
    if policy.scaled_loss:
        return loss_scale.update(kept, finite)
    return delayed.update(kept, amax, finite) if policy.scaling == "delayed" else ()


def many_steps(
    static: Static, state: TrainState, batches: jax.Array, n: jax.Array, h: Hparams
) -> tuple[TrainState, dict[str, jax.Array]]:
    """The first `n` (traced) of the batches [k, B, S+1] in one dispatch; metrics are [k], of which `n` are meaningful."""
    k = batches.shape[0]
    shapes = jax.eval_shape(lambda s, t: train_step(static, s, t, h)[1], state, batches[0])
    empty = jax.tree.map(lambda s: jnp.zeros((k, *s.shape), s.dtype), shapes)

    def body(i: jax.Array, carry: tuple[TrainState, Any]) -> tuple[TrainState, Any]:
        state, log = carry
        state, metrics = train_step(static, state, batches[i], h)
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), log, metrics)

    return jax.lax.fori_loop(0, n, body, (state, empty))


def updates(
    static: Static, grads: Any, opt_state: Any, params: Any, h: Hparams, lr: jax.Array, **extra: Any
) -> tuple[Any, Any]:
    """What to add to the parameters, and the optimizer's next state; `extra` are keywords that the optimizer asks for.

    On a mesh the compiler places it (`auto_axes`): matrix optimizers mix axes in ways that Explicit axes would want spelled
    out product by product, and optax's transforms don't. Updates and state come out as `state.specs` says.
    """

    def update(grads: Any, opt_state: Any, params: Any, h: Hparams, lr: jax.Array, extra: Any) -> tuple[Any, Any]:
        return chain(static, h, lr).update(grads, opt_state, params, **extra)

    if static.layout.devices > 1:
        out = rules.moments(static.model, static.layout), state_lib.specs(static).opt_state
        update = auto_axes(update, out_sharding=out)
    return update(grads, opt_state, params, h, lr, extra)


def evaluate(static: Static, state: TrainState, batches: jax.Array, h: Hparams) -> jax.Array:
    """Mean loss in nats a token over batches [n, B, S+1]; z-loss excluded. Of the optimizer's averaged point where it has one."""
    params = state_lib.evaluated(static, state, h)

    def body(sums: LossSums, tokens: jax.Array) -> tuple[LossSums, None]:
        return jax.tree.map(jnp.add, sums, loss_sums(static, params, tokens, 0.0, ends(static, h))), None

    sums, _ = jax.lax.scan(body, LossSums(*[jnp.zeros(())] * 3), batches)
    return sums.nll / jnp.maximum(sums.tokens, 1.0)
