"""Measured: on one device products are of two matrices, tokens flattened: 0.99 of a CPU step's CPU seconds, so no gain.

0.98 to 1.02 in 5 rounds: AMD EPYC, 2 cores under load, 2026-11-26, jax 0.10.2, d_model 256, 2,048 tokens a step
(checks/results/tactics.json). When it was added, on 2026-11-20, a step without took 1.5 times as long
(checks/speed/benchmarks/steps/bare.py): with more axes XLA:CPU contracted two of them on a strided copy for the
weight's gradient. Off: SCALELAB_TACTICS_OFF=two_matrices.
"""

import math
from collections.abc import Callable
from typing import Any

import jax

from scalelab.hardware.tactics.switch import is_on
from scalelab.sharding import has_explicit_mesh

Multiply = Callable[..., jax.Array]  # (a, b, contracted axes of a, those of b, format)


def flattens() -> bool:
    """Whether products are of two matrices: on a mesh they name how each axis is split."""
    return not has_explicit_mesh() and is_on("two_matrices")


def multiply_flat(multiply: Multiply, x: jax.Array, w: jax.Array, ins: int, form: Any) -> jax.Array:
    """x [..., ins] times w [ins, outs] -> [..., outs]."""
    lead = x.ndim - ins
    x_TK = x.reshape(-1, math.prod(x.shape[lead:]))
    w_KN = w.reshape(math.prod(w.shape[:ins]), -1)
    return multiply(x_TK, w_KN, (1,), (0,), form).reshape(*x.shape[:lead], *w.shape[ins:])


def flat_gradients(
    multiply: Multiply, x: jax.Array, w: jax.Array, dy: jax.Array, lead: int, form: Any
) -> tuple[jax.Array, jax.Array]:
    """(dx [T, K], dw [K, N]), to be shaped as x and w; `lead`: axes of tokens."""
    tokens, inner = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
    x_TK, dy_TN, w_KN = x.reshape(tokens, inner), dy.reshape(tokens, -1), w.reshape(inner, -1)
    dw_KN = multiply(x_TK, dy_TN, (0,), (0,))
    return multiply(dy_TN, w_KN.T, (1,), (0,), form), dw_KN
