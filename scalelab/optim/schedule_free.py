"""Schedule-Free AdamW as its authors release it (facebookresearch/schedule_free 1.4.1, AdamWScheduleFree), warm-up in the LR.

Gradients are taken at y, which is what the parameters are here; z takes the steps, and x, the average of the z so far, is what
is evaluated and handed on. With y = (1 - b1) z + b1 x only y and z are kept. A step's weight in the average is the square of
the largest LR so far (their weight_lr_power = 2, r = 0). Defazio et al. 2024, Alg. 1 differs: sqrt(1 - b2^t) is a factor of the
LR there, decay and weights included, and the weight is the current LR squared. optax counts its warm-up one step off: after 30
steps its update differs by a tenth.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.optim.optimizer import Optimizer, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


class Average(NamedTuple):
    """`weight` is the sum of weights; `beta1` is the one that mixed the parameters, so that x can be had back."""

    step: jax.Array
    largest_lr: jax.Array
    weight: jax.Array
    beta1: jax.Array
    z: Any


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """g / (sqrt(v / (1 - b2^t)) + eps)."""
    del declared, o, lr
    return optax.scale_by_rms(h["beta2"], h["eps"], eps_in_sqrt=False, bias_correction=True)


def _last(h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """From -LR x (direction + decay x y), the step of z, to the step of y."""

    def init(params: Tree) -> Average:
        zero, z = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        return Average(jnp.zeros((), jnp.int32), zero, zero, zero + h["beta1"], z)

    def update(updates: Tree, state: Average, params: Tree = None) -> tuple[Tree, Average]:
        step = optax.safe_increment(state.step)
        largest_lr = jnp.maximum(state.largest_lr, lr)
        weight = state.weight + jnp.square(largest_lr)
        kept = 1.0 - jnp.square(largest_lr) / jnp.where(weight > 0, weight, 1.0)  # 1 - c

        def z_step(u: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
            return _started(state, y, z) + u

        def y_step(u: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
            """With x' - z' = (1 - c) (x - z'): y' - y = z' + b1 (x' - z') - y, in small differences."""
            apart = y - _started(state, y, z)
            return u + h["beta1"] * kept * (apart / state.beta1 - u) - apart

        moves = jax.tree.map(y_step, updates, params, state.z)
        z = jax.tree.map(z_step, updates, params, state.z)
        return moves, Average(step, largest_lr, weight, jnp.zeros(()) + h["beta1"], z)

    return optax.GradientTransformation(init, update)


def _started(state: Average, y: jax.Array, z: jax.Array) -> jax.Array:
    """z; before the first step it is y, whatever weights a run starts on."""
    return jnp.where(state.step == 0, y, z)


def _evaluated(params: Tree, opt_state: Any, h: Hparams) -> Tree:
    """x = z + (y - z) / b1."""
    del h
    state: Average = opt_state[-1]

    def x(y: jax.Array, z: jax.Array) -> jax.Array:
        z = _started(state, y, z)
        return z + (y - z) / state.beta1

    return jax.tree.map(x, params, state.z)


SCHEDULE_FREE_ADAMW = Optimizer(_build, bytes_per_scalar(8), last=_last, evaluated=_evaluated)
