"""APOLLO and APOLLO-Mini (Zhu et al. 2024, arXiv 2412.05270, Alg. 1) for hidden matrices; AdamW for the rest.

Gradients are scaled as Adam scales a random projection of them. The projection is not stored but drawn again from the
run's seed, a new one every `every` steps. As in the authors' code, the bias correction comes after the norm-growth
limiter. Updates have Adam's size times sqrt(rank / small), so muP assumes a rank that grows with the width.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.optim import adam, matrices
from scalelab.optim.galore import projection_rank
from scalelab.optim.matrices import Arrays, Declarations, fp32_matmul, map_batched
from scalelab.optim.optimizer import Optimizer, claims_hidden_matrices
from scalelab.optim.schedules import Hparams

MAX_NORM_GROWTH = 1.01  # gamma: how much an update's norm may grow from one step to the next (sec. 3.2)
PROJECTION_STREAM = 0xA9011


class ApolloState(NamedTuple):
    """State by parameter."""

    norm: Arrays  # [stack], norm of the last update; 0 before the first
    adam: optax.ScaleByAdamState  # of P G [stack, rank, large]


def random_projection(seed: jax.Array, index: int, turn: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """P [rank, small] ~ N(0, 1/rank) for the `index`-th parameter, a new one every `turn`.

    Layers of a stack share it, since a pipeline may store them in another order.
    """
    key = jax.random.fold_in(jax.random.key(jnp.asarray(seed, jnp.uint32)), PROJECTION_STREAM)
    key = jax.random.fold_in(jax.random.fold_in(key, index), turn)
    return jax.random.normal(key, shape) / jnp.sqrt(float(shape[0]))


def scale_gradient(
    g: jax.Array, low: jax.Array, moved: jax.Array, last: jax.Array, tensor: bool
) -> tuple[jax.Array, jax.Array]:
    """Scale G by |N| / |R| per channel of the larger side or per `tensor`; norm at most MAX_NORM_GROWTH x `last`.

    g [stack, small, large]; R = `low`, N = `moved` [stack, rank, large]; last [stack]. Returns the update and its norm.
    """
    norm = functools.partial(jnp.linalg.norm, axis=(-2, -1) if tensor else -2, keepdims=True)
    update = g * (norm(moved) / jnp.maximum(norm(low), 1e-30))
    size = jnp.linalg.norm(update, axis=(-2, -1))
    limit = jnp.where(
        (last > 0) & (size > MAX_NORM_GROWTH * last), MAX_NORM_GROWTH * last / jnp.where(size > 0, size, 1.0), 1.0
    )
    return update * limit[..., None, None], size * limit


def _build(
    declared: Declarations, o: Optim, h: Hparams, lr: jax.Array, *, tensor: bool
) -> optax.GradientTransformation:
    del lr
    b1, b2 = h.optim.beta1, h.optim.beta2
    inner = adam.scale_by_adam(b1, b2, h.optim.eps, corrected=False)

    def init(params: Arrays) -> ApolloState:
        del params
        shapes = {name: (*matrices.folded_shape(d), projection_rank(d, o)) for name, d in declared.items()}
        low = {name: jnp.zeros((stack, r, large)) for name, (stack, _, large, r) in shapes.items()}
        return ApolloState({name: jnp.zeros(s[0]) for name, s in shapes.items()}, inner.init(low))

    def update(grads: Arrays, state: ApolloState, params: Arrays | None = None) -> tuple[Arrays, ApolloState]:
        del params
        g, turn = matrices.fold_matrices(declared, grads), state.adam.count // (o.every or 1)
        low = {}
        for index, (name, d) in enumerate(sorted(declared.items())):
            p = random_projection(h.train.seed, index, turn, (projection_rank(d, o), g[name].shape[1]))
            low[name] = fp32_matmul(p[None], g[name])
        moved, new = inner.update(low, state.adam)
        t = new.count.astype(jnp.float32)
        size = h.optim.low_rank_scale * jnp.sqrt(1 - b2**t) / (1 - b1**t)
        scaled = map_batched(functools.partial(scale_gradient, tensor=tensor), g, low, moved, state.norm)
        directions = {name: size * update for name, (update, _) in scaled.items()}
        norms = {name: norm for name, (_, norm) in scaled.items()}
        return matrices.unfold_matrices(declared, directions), ApolloState(norms, new)

    return optax.GradientTransformation(init, update)


APOLLO = Optimizer(functools.partial(_build, tensor=False), claims=claims_hidden_matrices)
APOLLO_MINI = Optimizer(functools.partial(_build, tensor=True), claims=claims_hidden_matrices)
