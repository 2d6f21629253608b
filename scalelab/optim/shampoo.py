"""Shampoo (Gupta, Koren & Singer 2018, Alg. 1): L^(-1/4) G R^(-1/4), for hidden matrices; AdamW for the rest.

L and R start at eps I and sum G G^T and G^T G; with `averaged` they are bias-corrected exponential averages plus eps I
(Shi et al. 2023, arXiv 2309.06497). As in Alg. 1, there is neither momentum nor grafting.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.optim import matrices
from scalelab.optim.matrices import Arrays, Declarations, fp32_matmul, map_batched, map_decomposition
from scalelab.optim.optimizer import Optimizer, claims_hidden_matrices
from scalelab.optim.schedules import Hparams


class ShampooState(NamedTuple):
    """State by parameter; `left` belongs to the smaller side."""

    steps: jax.Array
    left: Arrays  # [stack, small, small], G G^T, without eps
    right: Arrays  # [stack, large, large], G^T G
    left_root: Arrays  # L^(-1/4)
    right_root: Arrays


def inverse_fourth_root(statistic: jax.Array, eps: jax.Array) -> jax.Array:
    """(X + eps I)^(-1/4) of symmetric matrices [..., n, n] whose eigenvalues are negative only by rounding."""
    values, vectors = map_decomposition(jnp.linalg.eigh, statistic)
    return fp32_matmul(vectors * (jnp.maximum(values, 0.0) + eps)[..., None, :] ** -0.25, vectors.mT)


def _build(declared: Declarations, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """Recompute roots every `every` steps, and in each of the first `every`: early statistics change fast."""
    del lr
    b2, every = h.optim.beta2, o.every or 1

    def init(params: Arrays) -> ShampooState:
        del params
        shapes = {name: matrices.folded_shape(d) for name, d in declared.items()}
        sides = [{name: jnp.zeros((s[0], s[i], s[i])) for name, s in shapes.items()} for i in (1, 2)]
        return ShampooState(jnp.zeros((), jnp.int32), *sides, *sides)

    def accumulate(statistic: jax.Array, product: jax.Array) -> jax.Array:
        return b2 * statistic + (1 - b2) * product if o.averaged else statistic + product

    def update(grads: Arrays, state: ShampooState, params: Arrays | None = None) -> tuple[Arrays, ShampooState]:
        del params
        g, steps = matrices.fold_matrices(declared, grads), optax.safe_increment(state.steps)
        left = {name: accumulate(state.left[name], fp32_matmul(x, x.mT)) for name, x in g.items()}
        right = {name: accumulate(state.right[name], fp32_matmul(x.mT, x)) for name, x in g.items()}
        weight = 1.0 - b2 ** steps.astype(jnp.float32) if o.averaged else 1.0

        def roots() -> tuple[Arrays, Arrays]:
            root = lambda x: inverse_fourth_root(x / weight, h.optim.eps)  # noqa: E731
            return map_batched(root, left), map_batched(root, right)

        due = (state.steps % every == 0) | (state.steps < every)
        lroot, rroot = jax.lax.cond(due, roots, lambda: (state.left_root, state.right_root))
        directions = map_batched(fp32_matmul, lroot, g, rroot)
        return matrices.unfold_matrices(declared, directions), ShampooState(steps, left, right, lroot, rroot)

    return optax.GradientTransformation(init, update)


SHAMPOO = Optimizer(_build, claims=claims_hidden_matrices, like="spectral")
