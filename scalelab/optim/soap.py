"""SOAP (Vyas et al. 2024, Alg. 3) for hidden matrices: Adam in the eigenbases of Shampoo's two statistics; else AdamW.

As in the authors' code, and unlike Alg. 3: moments are bias-corrected; the first step only makes the bases and applies
weight decay; a refresh comes after the step and sorts the basis by eigenvalue. Every side has a basis, whatever its
length. The first moment stays in the parameter's coordinates, as in Alg. 3, which is equivalent.
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


class SoapState(NamedTuple):
    """State by parameter; `left` belongs to the smaller side. Bases are zero before the first step."""

    steps: jax.Array  # calls so far, the first one included
    m: Arrays  # like the parameter
    v: Arrays  # [stack, small, large], in the bases
    left: Arrays  # [stack, small, small], average of G G^T
    right: Arrays  # [stack, large, large], of G^T G
    left_basis: Arrays
    right_basis: Arrays


Bases = tuple[Arrays, Arrays, Arrays]  # left basis, right basis, second moment in these bases


def sorted_eigenvectors(statistic: jax.Array) -> jax.Array:
    """Eigenvectors as columns [..., n, n], largest eigenvalue first."""
    return map_decomposition(jnp.linalg.eigh, statistic)[1][..., ::-1]


def larger_basis(statistic: jax.Array, small: int) -> jax.Array:
    """Eigenvectors of the first G^T G [..., large, large], whose rank is at most `small`.

    The null space is filled with unit vectors made orthogonal to the first `small` columns: LAPACK's choice there
    depends on rounding and would differ on every mesh.
    """
    leading = sorted_eigenvectors(statistic)[..., :small]
    large = statistic.shape[-1]
    others = jnp.broadcast_to(jnp.eye(large)[:, small:], (*leading.shape[:-1], large - small))
    return map_decomposition(jnp.linalg.qr, jnp.concatenate([leading, others], axis=-1))[0]


def power_iteration_step(statistic: jax.Array, basis: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of power iteration and QR (Alg. 4), after sorting columns by eigenvalue; returns (basis, order)."""
    order = jnp.argsort(jnp.sum(basis * fp32_matmul(statistic, basis), axis=-2), axis=-1, descending=True)
    basis = jnp.take_along_axis(basis, order[..., None, :], axis=-1)
    return map_decomposition(jnp.linalg.qr, fp32_matmul(statistic, basis))[0], order


def _refresh(v: jax.Array, left: jax.Array, right: jax.Array, ql: jax.Array, qr: jax.Array) -> tuple:
    (ql, rows), (qr, columns) = power_iteration_step(left, ql), power_iteration_step(right, qr)
    v = jnp.take_along_axis(v, rows[..., :, None], axis=-2)
    return ql, qr, jnp.take_along_axis(v, columns[..., None, :], axis=-1)


def _build(declared: Declarations, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del lr
    every = o.every or 1
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params: Arrays) -> SoapState:
        v = {name: jnp.zeros(matrices.folded_shape(d)) for name, d in declared.items()}
        sides = [{name: jnp.zeros((x.shape[0], x.shape[i], x.shape[i])) for name, x in v.items()} for i in (1, 2)]
        return SoapState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), v, *sides, *sides)

    def update(grads: Arrays, state: SoapState, params: Arrays | None = None) -> tuple[Arrays, SoapState]:
        del params
        first, g = state.steps == 0, matrices.fold_matrices(declared, grads)
        t = jnp.maximum(state.steps, 1).astype(jnp.float32)

        def adam(g: jax.Array, m: jax.Array, v: jax.Array, ql: jax.Array, qr: jax.Array) -> tuple[jax.Array, jax.Array]:
            """Adam in the bases; zero on the first call, whose bases are zero."""
            g, m = (fp32_matmul(ql.mT, x, qr) for x in (g, m))
            v = b2 * v + (1 - b2) * g**2
            return fp32_matmul(ql, m / (1 - b1**t) / (jnp.sqrt(v / (1 - b2**t)) + eps), qr.mT), v

        m = jax.tree.map(lambda m, g: jnp.where(first, m, b1 * m + (1 - b1) * g), state.m, grads)
        rotated = map_batched(
            adam, g, matrices.fold_matrices(declared, m), state.v, state.left_basis, state.right_basis
        )
        directions, v = ({name: pair[i] for name, pair in rotated.items()} for i in range(2))
        left = {name: b2 * state.left[name] + (1 - b2) * fp32_matmul(x, x.mT) for name, x in g.items()}
        right = {name: b2 * state.right[name] + (1 - b2) * fp32_matmul(x.mT, x) for name, x in g.items()}

        def make() -> Bases:
            return (
                map_batched(sorted_eigenvectors, left),
                map_batched(lambda x, v: larger_basis(x, v.shape[-2]), right, v),
                v,
            )

        def refresh() -> Bases:
            refreshed = map_batched(_refresh, v, left, right, state.left_basis, state.right_basis)
            ql, qr, new_v = ({name: bases[i] for name, bases in refreshed.items()} for i in range(3))
            return ql, qr, new_v

        which = jnp.where(first, 1, jnp.where(state.steps % every == 0, 2, 0))
        ql, qr, v = jax.lax.switch(which, [lambda: (state.left_basis, state.right_basis, v), make, refresh])
        new = SoapState(optax.safe_increment(state.steps), m, v, left, right, ql, qr)
        return matrices.unfold_matrices(declared, directions), new

    return optax.GradientTransformation(init, update)


SOAP = Optimizer(_build, claims=claims_hidden_matrices)
