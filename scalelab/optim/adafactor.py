"""Adafactor (Shazeer & Stern 2018): row and column means of a matrix's second moment only, by declared (in, out).

optax factors the two largest axes, which are others with stacked layers and unfolded heads. By default there is no
first moment (the paper's beta1 = 0). PaLM (Chowdhery et al. 2022, section 5) has whole second moments (`factored`
false) and averages updates with beta1 (`averaged`): Adam with steps relative to a parameter's size.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.model.declare import Declaration
from scalelab.optim import groups
from scalelab.optim.optimizer import Optimizer, Tree
from scalelab.optim.schedules import Hparams

DECAY_EXPONENT = 0.8  # beta2 of step t is 1 - t^-DECAY (Alg. 6)
MAX_UPDATE_RMS = 1.0  # d: the largest RMS of an update before it is scaled (Alg. 6)
MIN_PARAMETER_RMS = 1e-3  # eps2: smaller parameters move as if they had this RMS (Alg. 6)


class Factors(NamedTuple):
    """Means of a matrix's squared gradients."""

    rows: jax.Array  # [stack, in]
    columns: jax.Array  # [stack, out]


class AdafactorState(NamedTuple):
    """`moments`: a tree like the parameters, with `Factors` for matrices and arrays [stack, n] for vectors.

    Without factoring each moment has its parameter's shape and is split over a mesh like it.
    """

    steps: jax.Array
    moments: Tree


def _is_matrix(d: Declaration) -> bool:
    return bool(d.ins and d.outs)


def _shape(d: Declaration) -> tuple[int, ...]:
    """[stack, in, out], or [stack, n] for a vector."""
    if _is_matrix(d):
        return groups.matrix_shape(d)
    stack = math.prod(d.shape[: len(d.stack)])
    return stack, d.size // stack


def _rms(x: jax.Array) -> jax.Array:
    """RMS of each element of a stack, with the axes kept."""
    return jnp.sqrt(jnp.mean(x**2, axis=tuple(range(1, x.ndim)), keepdims=True))


def _zeros(d: Declaration, factored: bool) -> Factors | jax.Array:
    if not factored:
        return jnp.zeros(d.shape)
    stack, *sides = _shape(d)
    zeros = [jnp.zeros((stack, side)) for side in sides]
    return Factors(*zeros) if _is_matrix(d) else zeros[0]


def normalise_gradient(
    g: jax.Array, moment: Factors | jax.Array, b2: jax.Array, eps: jax.Array
) -> tuple[jax.Array, Factors | jax.Array]:
    """G / sqrt(V) and the new moment.

    V = R C / (1^T R) for matrices [stack, in, out] (Alg. 4), whole for vectors (Alg. 5). Means replace Alg. 4's sums,
    which gives the same V. `eps` is eps1.
    """
    squares = g**2 + eps

    def average(old: jax.Array, new: jax.Array) -> jax.Array:
        return b2 * old + (1 - b2) * new

    if not isinstance(moment, Factors):
        moment = average(moment, squares)
        return g * jax.lax.rsqrt(moment), moment
    moment = Factors(average(moment.rows, squares.mean(2)), average(moment.columns, squares.mean(1)))
    # One root after the other: the product of two means near eps1 would underflow.
    rows = jax.lax.rsqrt(moment.rows / moment.rows.mean(1, keepdims=True))
    return g * rows[:, :, None] * jax.lax.rsqrt(moment.columns)[:, None, :], moment


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """Alg. 4 and 5 with Alg. 6's constants; alpha_t = max(eps2, RMS(X)) rho_t, where rho_t is the LR from the chain."""
    del lr
    factored = o.factored is not False

    def update(grads: Tree, state: AdafactorState, params: Tree = None) -> tuple[Tree, AdafactorState]:
        steps = optax.safe_increment(state.steps)
        b2 = 1.0 - steps.astype(jnp.float32) ** -DECAY_EXPONENT

        def update_leaf(d: Declaration, g: jax.Array, moment: Factors | jax.Array, p: jax.Array) -> tuple:
            u, moment = normalise_gradient(g.reshape(_shape(d)) if factored else g, moment, b2, h.optim.eps)
            u = u.reshape(_shape(d))
            u = u / jnp.maximum(1.0, _rms(u) / MAX_UPDATE_RMS)
            size = jnp.maximum(MIN_PARAMETER_RMS, _rms(p.reshape(_shape(d))))
            return (size * u).reshape(d.shape), moment

        pairs = jax.tree.map(update_leaf, declared, grads, state.moments, params)
        directions, moments = (jax.tree.map(lambda _, pair, i=i: pair[i], declared, pairs) for i in range(2))
        return directions, AdafactorState(steps, moments)

    def init(params: Tree) -> AdafactorState:
        del params
        return AdafactorState(jnp.zeros((), jnp.int32), jax.tree.map(lambda d: _zeros(d, factored), declared))

    transform = optax.GradientTransformation(init, update)
    return optax.chain(transform, optax.ema(h.optim.beta1, debias=False)) if o.averaged else transform


ADAFACTOR = Optimizer(_build, like="relative")
