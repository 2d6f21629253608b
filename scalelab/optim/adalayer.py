"""Adalayer (Zhao et al. 2024, section 4.2): Adam with one second moment a layer, the layer's mean squared gradient.

A layer is one tensor, each of a stack separately. Both moments are bias-corrected as in Adam.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.model.declare import Declaration
from scalelab.optim.optimizer import Optimizer, Tree
from scalelab.optim.schedules import Hparams


class Moments(NamedTuple):
    """`m`: like the parameters; `v`: one number per tensor, or one per layer of a stack."""

    step: jax.Array
    m: Any
    v: Any


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del o, lr
    b1, b2 = h.optim.beta1, h.optim.beta2

    def init(params: Tree) -> Moments:
        v = jax.tree.map(lambda d: jnp.zeros(d.shape[: len(d.stack)]), declared)
        return Moments(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), v)

    def update(grads: Tree, state: Moments, params: Tree = None) -> tuple[Tree, Moments]:
        del params
        step = optax.safe_increment(state.step)
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.m, grads)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * _mean_square(g, v.ndim), state.v, grads)

        def direction(m: jax.Array, v: jax.Array) -> jax.Array:
            v_hat = v / (1 - b2**step)
            return m / (1 - b1**step) / (jnp.sqrt(v_hat) + h.optim.eps).reshape(v.shape + (1,) * (m.ndim - v.ndim))

        return jax.tree.map(direction, m, v), Moments(step, m, v)

    return optax.GradientTransformation(init, update)


def _mean_square(g: jax.Array, stacked: int) -> jax.Array:
    return jnp.mean(jnp.square(g), axis=tuple(range(stacked, g.ndim)))


def _state_bytes(d: Declaration, o: Optim) -> float:
    del o
    return 4 * d.size + 4 * math.prod(d.shape[: len(d.stack)])


ADALAYER = Optimizer(_build, _state_bytes)
