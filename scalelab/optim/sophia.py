"""Sophia (Liu et al. 2023, Alg. 3): momentum over a running estimate of the Hessian's diagonal, entries clipped to 1.

m = b1 m + (1 - b1) g; every `every` steps h = b2 h + (1 - b2) estimate; the direction is clip(m / max(rho h, eps), 1),
without bias correction. The estimate is Hutchinson's (H, Alg. 1) or Gauss-Newton-Bartlett's (G, Alg. 2), from
`train/step/update/curvature.py`, and already counts in the step that measures it. optax's Sophia corrects m's bias and
uses the estimate one step late.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.optim.optimizer import Optimizer, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


class Moments(NamedTuple):
    """Momentum and the averaged Hessian diagonal, each a tree like the parameters."""

    m: Any
    h: Any


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformationExtraArgs:
    del declared, o, lr

    def init(params: Tree) -> Moments:
        return Moments(*(jax.tree.map(jnp.zeros_like, params) for _ in range(2)))

    def update(
        grads: Tree, state: Moments, params: Tree = None, *, curvature: tuple[Tree, jax.Array], **extra: Any
    ) -> tuple[Tree, Moments]:
        """Take one step; `curvature`: an estimate of the diagonal, and whether it is fresh (else it is ignored)."""
        del params, extra
        estimate, fresh = curvature
        m = optax.tree.update_moment(grads, state.m, h.optim.beta1, 1)
        new = optax.tree.update_moment(estimate, state.h, h.optim.beta2, 1)
        hessian = jax.tree.map(lambda new, old: jnp.where(fresh, new, old), new, state.h)
        rho, eps = h.optim.rho, h.optim.eps
        moves = jax.tree.map(lambda m, d: jnp.clip(m / jnp.maximum(rho * d, eps), -1.0, 1.0), m, hessian)
        return moves, Moments(m, hessian)

    return optax.GradientTransformationExtraArgs(init, update)


SOPHIA_H = Optimizer(_build, bytes_per_scalar(8), curvature="hutchinson")
SOPHIA_G = Optimizer(_build, bytes_per_scalar(8), curvature="gauss_newton")
