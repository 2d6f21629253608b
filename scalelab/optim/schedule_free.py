"""Schedule-Free AdamW as its authors release it (facebookresearch/schedule_free 1.4.1, AdamWScheduleFree).

Gradients are taken at y, the parameters here; z takes the steps; x, the average of the z so far, is evaluated and
saved. With y = (1 - b1) z + b1 x only y and z are stored. A step's weight in the average is the square of the largest
LR so far (weight_lr_power = 2, r = 0); the warm-up is in the LR. Defazio et al. 2024, Alg. 1 differs: there sqrt(1 -
b2^t) is a factor on the LR, in decay and weights too, and the weight is the current LR squared. optax counts the
warm-up one step
off: after 30 steps its update differs by a tenth.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.optim.adam import read_second_moment
from scalelab.optim.optimizer import Optimizer, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


class Average(NamedTuple):
    """`weight`: the sum of weights; `beta1`: the value that mixed the current parameters, needed to recover x."""

    step: jax.Array
    largest_lr: jax.Array
    weight: jax.Array
    beta1: jax.Array
    z: Any


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """The direction g / (sqrt(v / (1 - b2^t)) + eps)."""
    del declared, o, lr
    return optax.scale_by_rms(h.optim.beta2, h.optim.eps, eps_in_sqrt=False, bias_correction=True)


def _last(h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """Turn the step of z, -LR x (direction + decay x y), into the step of y."""

    def init(params: Tree) -> Average:
        zero, z = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        return Average(jnp.zeros((), jnp.int32), zero, zero, zero + h.optim.beta1, z)

    def update(updates: Tree, state: Average, params: Tree = None) -> tuple[Tree, Average]:
        step = optax.safe_increment(state.step)
        largest_lr = jnp.maximum(state.largest_lr, lr)
        weight = state.weight + jnp.square(largest_lr)
        old_share = 1.0 - jnp.square(largest_lr) / jnp.where(weight > 0, weight, 1.0)  # 1 - c

        def z_step(u: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
            return _initial_z(state, y, z) + u

        def y_step(u: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
            """With x' - z' = (1 - c) (x - z'): y' - y = z' + b1 (x' - z') - y, in small differences."""
            apart = y - _initial_z(state, y, z)
            return u + h.optim.beta1 * old_share * (apart / state.beta1 - u) - apart

        moves = jax.tree.map(y_step, updates, params, state.z)
        z = jax.tree.map(z_step, updates, params, state.z)
        return moves, Average(step, largest_lr, weight, jnp.zeros(()) + h.optim.beta1, z)

    return optax.GradientTransformation(init, update)


def _initial_z(state: Average, y: jax.Array, z: jax.Array) -> jax.Array:
    """z, which before the first step is y, whatever weights the run starts from."""
    return jnp.where(state.step == 0, y, z)


def _evaluated(params: Tree, opt_state: Any, h: Hparams) -> Tree:
    """The average x = z + (y - z) / b1."""
    del h
    state: Average = opt_state[-1]

    def x(y: jax.Array, z: jax.Array) -> jax.Array:
        z = _initial_z(state, y, z)
        return z + (y - z) / state.beta1

    return jax.tree.map(x, params, state.z)


SCHEDULE_FREE_ADAMW = Optimizer(
    _build,
    bytes_per_scalar(8),
    last=_last,
    evaluated=_evaluated,
    second_moment=read_second_moment,
)
