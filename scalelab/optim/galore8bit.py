"""8-bit GaLore (Zhao et al. 2024, section 4.3): GaLore whose moments are stored as 8-bit codes; 8-bit Adam for others.

As in the authors' code (GaLoreAdamW8bit) the projection is kept in bf16, and matrices and all others share the LR.
Moments of the projected gradient are coded as `adam8bit.py` codes any others. Each matrix is decomposed by itself,
which takes less memory than `galore.py`'s batches.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.model.declare import Declaration, named_leaves
from scalelab.optim import adam8bit, matrices
from scalelab.optim.galore import leading_singular_vectors, projection_rank
from scalelab.optim.matrices import Arrays, fp32_matmul
from scalelab.optim.optimizer import Optimizer, Tree
from scalelab.optim.schedules import Hparams


class Galore8bitState(NamedTuple):
    """State by parameter."""

    steps: jax.Array
    projection: Arrays  # P [stack, small, rank] of matrices, bf16
    moments: adam8bit.Moments  # of P^T G [stack, rank, large], and of the gradients of all others


def low_declaration(d: Declaration, o: Optim) -> Declaration:
    """What stands in a parameter's place for Adam: P^T G [stack, rank, large] of a matrix, others as they are."""
    if not d.is_hidden_matrix:
        return d
    stack, _, large = matrices.folded_shape(d)
    return Declaration((stack, projection_rank(d, o), large), ("rank",), ("large",), stack=("layers",))


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    every, flat = o.every or 1, named_leaves(declared)
    hidden = {name: d for name, d in flat.items() if d.is_hidden_matrix}
    low = {name: low_declaration(d, o) for name, d in flat.items()}
    inner = adam8bit.ADAM8BIT.build(low, o, h, lr)

    def init(params: Tree) -> Galore8bitState:
        del params
        shapes = {name: (*matrices.folded_shape(d)[:2], projection_rank(d, o)) for name, d in hidden.items()}
        projection = {name: jnp.zeros(shape, jnp.bfloat16) for name, shape in shapes.items()}
        zeros = {name: jnp.zeros(d.shape) for name, d in low.items()}
        return Galore8bitState(jnp.zeros((), jnp.int32), projection, inner.init(zeros))

    def update(grads: Tree, state: Galore8bitState, params: Tree = None) -> tuple[Tree, Galore8bitState]:
        del params
        by_name = named_leaves(grads)
        g = matrices.fold_matrices(hidden, by_name)

        def new() -> Arrays:
            vectors = {n: leading_singular_vectors(x, projection_rank(hidden[n], o)) for n, x in g.items()}
            return {name: u.astype(jnp.bfloat16) for name, u in vectors.items()}

        projection = jax.lax.cond(state.steps % every == 0, new, lambda: state.projection)
        wide = {name: p.astype(jnp.float32) for name, p in projection.items()}
        projected = {name: fp32_matmul(wide[name].mT, x) for name, x in g.items()}
        moved, moments = inner.update(by_name | projected, state.moments)
        back = {name: h.optim.low_rank_scale * fp32_matmul(wide[name], moved[name]) for name in g}
        moves = moved | matrices.unfold_matrices(hidden, back)
        tree = jax.tree.unflatten(jax.tree.structure(grads), [moves[name] for name in by_name])
        return tree, Galore8bitState(optax.safe_increment(state.steps), projection, moments)

    return optax.GradientTransformation(init, update)


GALORE8BIT = Optimizer(_build)
