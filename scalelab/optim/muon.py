"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): orthogonalised momentum for hidden matrices."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.model.declare import Declaration
from scalelab.optim import groups, matrices
from scalelab.optim.matrices import Arrays, Declarations
from scalelab.optim.optimizer import Optimizer, bytes_per_scalar, claims_hidden_matrices
from scalelab.optim.parametrization import UpdateFamily
from scalelab.optim.schedules import Hparams

NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_ITERATIONS = 5
LEAST_NORM = 1e-7  # matrices of a smaller Frobenius norm count as zero


class MuonState(NamedTuple):
    """The average of gradients, like the parameters."""

    momentum: Arrays


ARITHMETICS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "bf16": lambda x: x.astype("bfloat16"),  # Jordan's
    "fp32": lambda x: x,
}


def newton_schulz(x: jax.Array, arithmetic: str = "fp32") -> jax.Array:
    """Roughly U V^T for x [..., small, large] = U S V^T: five times p of s / |x| replaces the singular values s.

    p(s) = 3.4445 s - 4.7750 s^3 + 2.0315 s^5 takes [0.01, 1] into [0.68, 1.14] and [0.003, 1] into [0.68, 1.21];
    smaller values stay small, zero stays zero. `arithmetic`: products in `bf16` (Jordan's) or `fp32`; the norm is in
    fp32.
    """
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    norm = jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
    x = ARITHMETICS[arithmetic](x / jnp.maximum(norm, LEAST_NORM))

    def iterate(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        square = matrices.fp32_matmul(x, x.mT)
        return a * x + matrices.fp32_matmul(b * square + c * matrices.fp32_matmul(square, square), x), None

    return jax.lax.scan(iterate, x, length=NEWTON_SCHULZ_ITERATIONS)[0].astype(norm.dtype)


class Scale(NamedTuple):
    """The factor on an orthogonal matrix of (ins, outs), and how updates of that size behave."""

    factor: Callable[[float, float], float]
    like: UpdateFamily


# rms: entries of AdamW's usual size (Liu et al. 2025, arXiv 2502.16982, eq. 4); spectral: Jordan 2024.
SCALES = {
    "spectral": Scale(lambda ins, outs: math.sqrt(max(1.0, outs / ins)), "spectral"),
    "rms": Scale(lambda ins, outs: 0.2 * math.sqrt(max(ins, outs)), "adam"),
}


def update_factor(declaration: Declaration, scale: str) -> float:
    """Factor on the orthogonal matrix."""
    _, ins, outs = groups.matrix_shape(declaration)
    return SCALES[scale].factor(ins, outs)


def _build(declared: Declarations, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """m = b m + (1 - b) g, then NS(m), or with Nesterov NS(b m + (1 - b) g); no bias correction, unlike optax."""
    del lr
    b = h.optim.beta1

    def average(m: jax.Array, g: jax.Array) -> jax.Array:
        return b * m + (1 - b) * g

    def update(grads: Arrays, state: MuonState, params: Arrays | None = None) -> tuple[Arrays, MuonState]:
        del params
        momentum = jax.tree.map(average, state.momentum, grads)
        ahead = jax.tree.map(average, momentum, grads) if o.nesterov else momentum
        orthogonal = matrices.map_batched(
            lambda x: newton_schulz(x, str(o.newton_schulz)), matrices.fold_matrices(declared, ahead)
        )
        directions = matrices.unfold_matrices(declared, orthogonal)
        scaled = {name: update_factor(d, str(o.scale)) * directions[name] for name, d in declared.items()}
        return scaled, MuonState(momentum)

    return optax.GradientTransformation(lambda params: MuonState(jax.tree.map(jnp.zeros_like, params)), update)


def _like(o: Optim) -> UpdateFamily:
    return SCALES[str(o.scale)].like


MUON = Optimizer(_build, bytes_per_scalar(4), claims=claims_hidden_matrices, like=_like)
