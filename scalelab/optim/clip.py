"""Gradient clippers: `optim.clip` names the one that stands first in every optimizer's chain.

    global   all gradients times min(1, clip_norm / norm) (Pascanu et al. 2013)
    zclip    also where the norm is an outlier among its past: Kumar et al. 2025 (2504.02507), as in their code
    adagc    each tensor (of each layer) to 1.05 times its own past norm: Wang et al. 2025 (2502.11034), Alg. 1
    spam     after `global`, each element to sqrt(5000 v): Huang et al. 2025 (2501.06842), without the momentum resets

clip_norm bounds the norm under each of them; adagc only before its first ADAGC_WARMUP steps are over. Statistics are
taken of steps that are not skipped.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.errors import BadInput
from scalelab.optim.optimizer import Optimizer, Tree

Z_DECAY, Z_MOST, Z_WARMUP, Z_EPS = 0.97, 2.5, 25, 1e-6  # alpha, z_thres, N_w of Kumar et al., and their code's eps
ADAGC_GROWTH, ADAGC_DECAY, ADAGC_WARMUP = 1.05, 0.98, 100  # lambda_rel, beta, T_start of Wang et al.
SPAM_MOST = 5000.0  # theta of Huang et al.: the largest g^2 / v
SPAM_FROM = 20  # the first step of theirs that clips (`grad_accu_steps` of their code): v is too young before


class ZClipState(NamedTuple):
    """Mean and variance of the norms that were passed on; `ratio`: norm after the last clip, over that before."""

    steps: jax.Array  # int32
    mean: jax.Array
    var: jax.Array
    ratio: jax.Array


class AdaGCState(NamedTuple):
    """`norms`: gamma of each tensor, a tree like the parameters [stack]; infinite before the first gradient."""

    steps: jax.Array
    norms: Tree
    ratio: jax.Array


class SpamState(NamedTuple):
    """`inner`: the optimizer's state, which holds v; `ratio`: after the elements' clip, over the norm before it."""

    steps: jax.Array
    ratio: jax.Array
    inner: Any


def refuse_unsupported(name: str, kind: str, optimizer: Optimizer) -> None:
    """Raise BadInput where `optim.clip=kind` needs what the optimizer `name` does not keep."""
    if kind == "spam" and optimizer.second_moment is None:
        raise BadInput(
            f"optim.clip='spam' clips to the second moment of each number, which optim.name={name!r} does not keep; "
            "nearest: optim.clip=adagc, or optim.name=adamw"
        )


def clip_global_norm(most: jax.Array) -> optax.GradientTransformation:
    """Scale all gradients by min(1, most / global norm); optax's divides every element, which costs 2 % of a step."""

    def scaled(grads: Any, _: Any) -> Any:
        factor = jnp.minimum(1.0, most / optax.tree.norm(grads))
        return jax.tree.map(lambda g: factor * g, grads)

    return optax.stateless(scaled)


def clip_z_score(most: jax.Array) -> optax.GradientTransformation:
    """Scale a norm whose z-score is above Z_MOST to mean + Z_MOST^2 std / z, and any norm to `most`.

    Mean and variance start as those of the first Z_WARMUP norms, then decay; an outlier enters them at its bound.
    """

    def init(params: Tree) -> ZClipState:
        del params
        return ZClipState(jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(()), jnp.ones(()))

    def update(grads: Tree, state: ZClipState, params: Tree = None) -> tuple[Tree, ZClipState]:
        del params
        norm, warm = optax.tree.norm(grads), state.steps < Z_WARMUP
        std = jnp.sqrt(state.var)
        z = (norm - state.mean) / (std + Z_EPS)
        is_outlier = ~warm & (z > Z_MOST)
        passed = jnp.where(is_outlier, state.mean + Z_MOST * std * (Z_MOST / z), norm)
        factor = jnp.minimum(1.0, jnp.minimum(most / norm, jnp.where(is_outlier, passed / norm, 1.0)))
        # In warm-up each value counts alike (Welford 1962), then the last one by 1 - Z_DECAY.
        weight = jnp.where(warm, 1.0 / (state.steps + 1), 1.0 - Z_DECAY)
        mean = state.mean + weight * (passed - state.mean)
        new = jnp.where(warm, (passed - state.mean) * (passed - mean), jnp.square(passed - mean))
        var = (1.0 - weight) * state.var + weight * new
        clipped = jax.tree.map(lambda g: factor * g, grads)
        return clipped, ZClipState(optax.safe_increment(state.steps), mean, var, factor)

    return optax.GradientTransformation(init, update)


def clip_each_tensor(most: jax.Array, declared: Tree) -> optax.GradientTransformation:
    """Scale each tensor's gradient to ADAGC_GROWTH times the running mean of its norm after the clip.

    Before, for ADAGC_WARMUP steps, the global clip at `most`; the mean starts at the smallest norm among them. A
    gradient of zero says nothing of a tensor's size and enters no mean: else the tensor would never move again.
    """

    def init(params: Tree) -> AdaGCState:
        del params
        norms = jax.tree.map(lambda d: jnp.full(d.shape[: len(d.stack)], jnp.inf), declared)
        return AdaGCState(jnp.zeros((), jnp.int32), norms, jnp.ones(()))

    def update(grads: Tree, state: AdaGCState, params: Tree = None) -> tuple[Tree, AdaGCState]:
        del params
        warm = state.steps < ADAGC_WARMUP
        norms = jax.tree.map(lambda g, before: jnp.sqrt(_squares(g, before.ndim)), grads, state.norms)
        norm = optax.tree.norm(norms)
        together = jnp.minimum(1.0, most / norm)
        factors = jax.tree.map(
            lambda n, before: jnp.where(warm, together, jnp.minimum(1.0, ADAGC_GROWTH * before / n)), norms, state.norms
        )
        after = jax.tree.map(jnp.multiply, factors, norms)

        def follow(before: jax.Array, n: jax.Array) -> jax.Array:
            mean = jnp.where(jnp.isinf(before), n, ADAGC_DECAY * before + (1.0 - ADAGC_DECAY) * n)
            return jnp.where(n > 0, jnp.where(warm, jnp.minimum(before, n), mean), before)

        clipped = jax.tree.map(lambda g, f: f.reshape(f.shape + (1,) * (g.ndim - f.ndim)) * g, grads, factors)
        ratio = jnp.where(norm > 0, optax.tree.norm(after) / norm, 1.0)
        return clipped, AdaGCState(optax.safe_increment(state.steps), jax.tree.map(follow, state.norms, after), ratio)

    return optax.GradientTransformation(init, update)


# The transform of whole gradients that each begins with, from clip_norm and the declarations of the parameters.
CLIPPERS: dict[str, Callable[[jax.Array, Tree], optax.GradientTransformation]] = {
    "global": lambda most, declared: clip_global_norm(most),
    "zclip": lambda most, declared: clip_z_score(most),
    "adagc": clip_each_tensor,
    "spam": lambda most, declared: clip_global_norm(most),  # then `clip_spikes`, beside the second moments (`chain.py`)
}


def _squares(g: jax.Array, stacked: int) -> jax.Array:
    return jnp.sum(jnp.square(g), axis=tuple(range(stacked, g.ndim)))


def clip_spikes(
    inner: optax.GradientTransformationExtraArgs, second_moment: Callable[[Any], Tree]
) -> optax.GradientTransformationExtraArgs:
    """`inner`, whose gradients have g^2 <= SPAM_MOST v in every number, with v as it was before the step.

    A number whose v is zero, such as a row of the embedding that no batch had, is passed on: it would stay zero.
    """

    def init(params: Tree) -> SpamState:
        return SpamState(jnp.zeros((), jnp.int32), jnp.ones(()), inner.init(params))

    def update(grads: Tree, state: SpamState, params: Tree = None, **extra: Any) -> tuple[Tree, SpamState]:
        steps = optax.safe_increment(state.steps)

        def clip(g: jax.Array, v: jax.Array) -> jax.Array:
            is_spike = (steps >= SPAM_FROM) & (v > 0) & (jnp.square(g) > SPAM_MOST * v)
            return jnp.where(is_spike, jnp.sign(g) * jnp.sqrt(SPAM_MOST * v), g)

        clipped, norm = jax.tree.map(clip, grads, second_moment(state.inner)), optax.tree.norm(grads)
        ratio = jnp.where(norm > 0, optax.tree.norm(clipped) / norm, 1.0)
        updates, new = inner.update(clipped, state.inner, params, **extra)
        return updates, SpamState(steps, ratio, new)

    return optax.GradientTransformationExtraArgs(init, update)


def clip_ratio(norm: jax.Array, most: jax.Array, opt_state: tuple) -> jax.Array:
    """Norm of the last step's gradients after the clip over that before it, `norm`; `opt_state` is the chain's."""
    together = jnp.minimum(1.0, most / norm)
    for state in opt_state:
        if isinstance(state, ZClipState | AdaGCState):
            return state.ratio
        if isinstance(state, SpamState):
            return together * state.ratio
    return together
