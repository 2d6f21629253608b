"""Adam and AdamW (Kingma & Ba 2015, Alg. 1; Loshchilov & Hutter 2019, Alg. 2), with optional bias correction."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.optim.optimizer import Optimizer, SecondMoment, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


def scale_by_adam(b1: jax.Array, b2: jax.Array, eps: jax.Array, corrected: bool = True) -> optax.GradientTransformation:
    """Adam's direction m / (sqrt(v) + eps); `corrected` uses m / (1 - b1^t) and v / (1 - b2^t) instead (Alg. 1)."""
    adam = optax.scale_by_adam(b1, b2, eps)
    if corrected:
        return adam

    def update(grads: Tree, state: optax.ScaleByAdamState, params: Tree = None) -> tuple[Tree, optax.ScaleByAdamState]:
        _, state = adam.update(grads, state, params)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), state.mu, state.nu), state

    return optax.GradientTransformation(adam.init, update)


def second_moment(state: Any, b2: jax.Array, corrected: bool = True) -> SecondMoment:
    """The second moment in a state with `nu` and `count`, as optax's Adam and its relatives have it."""
    return SecondMoment(state.nu, 1.0 - b2**state.count if corrected else 1.0)


def read_second_moment(state: Any, o: Optim, h: Hparams) -> SecondMoment:
    """The second moment of an optimizer with such a state, corrected unless `o` says otherwise."""
    return second_moment(state, h.optim.beta2, o.bias_correction is not False)


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del declared, lr
    return scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps, bool(o.bias_correction))


ADAMW = Optimizer(_build, bytes_per_scalar(8), second_moment=read_second_moment)
ADAM = Optimizer(_build, bytes_per_scalar(8), coupled=True, second_moment=read_second_moment)
