"""GaLore (Zhao et al. 2024, Alg. 2): Adam on gradients projected onto leading singular vectors; AdamW for the rest.

The smaller side is projected (sec. 4.2); optax projects the larger. Moments are kept when the projection changes.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.model.declare import Declaration
from scalelab.optim import adam, matrices
from scalelab.optim.matrices import Arrays, Declarations, fp32_matmul, map_batched, map_decomposition
from scalelab.optim.optimizer import Optimizer, claims_hidden_matrices
from scalelab.optim.schedules import Hparams


class GaloreState(NamedTuple):
    """State by parameter."""

    steps: jax.Array
    projection: Arrays  # P [stack, small, rank]
    adam: optax.ScaleByAdamState  # of P^T G [stack, rank, large]


def projection_rank(d: Declaration, o: Optim) -> int:
    """`optim.rank`, at most the smaller side."""
    return min(o.rank or 1, matrices.folded_shape(d)[1])


def leading_singular_vectors(g: jax.Array, rank: int) -> jax.Array:
    """The first `rank` left singular vectors of g [..., small, large], as columns.

    Each vector's largest entry is made positive: the paper leaves the sign open, but moments that are kept depend on
    it.
    """
    u = map_decomposition(partial(jnp.linalg.svd, full_matrices=False), g)[0][..., :rank]
    largest = jnp.take_along_axis(u, jnp.argmax(jnp.abs(u), axis=-2, keepdims=True), axis=-2)
    return jnp.where(largest < 0, -u, u)


def _build(declared: Declarations, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del lr
    every = o.every or 1
    inner = adam.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)

    def init(params: Arrays) -> GaloreState:
        del params
        shapes = {name: (*matrices.folded_shape(d), projection_rank(d, o)) for name, d in declared.items()}
        projection = {name: jnp.zeros((stack, small, r)) for name, (stack, small, _, r) in shapes.items()}
        low = {name: jnp.zeros((stack, r, large)) for name, (stack, _, large, r) in shapes.items()}
        return GaloreState(jnp.zeros((), jnp.int32), projection, inner.init(low))

    def update(grads: Arrays, state: GaloreState, params: Arrays | None = None) -> tuple[Arrays, GaloreState]:
        del params
        g = matrices.fold_matrices(declared, grads)

        def new() -> Arrays:
            return map_batched(lambda x: leading_singular_vectors(x, min(o.rank or 1, x.shape[-2])), g)

        projection = jax.lax.cond(state.steps % every == 0, new, lambda: state.projection)
        low = map_batched(lambda p, x: fp32_matmul(p.mT, x), projection, g)
        moved, adam_state = inner.update(low, state.adam)
        back = map_batched(lambda p, x: h.optim.low_rank_scale * fp32_matmul(p, x), projection, moved)
        next_state = GaloreState(optax.safe_increment(state.steps), projection, adam_state)
        return matrices.unfold_matrices(declared, back), next_state

    return optax.GradientTransformation(init, update)


GALORE = Optimizer(_build, claims=claims_hidden_matrices)
