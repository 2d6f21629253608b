"""Measured: on a CPU the head's gradient is multiplied from a transposed copy: 0.94 of a step's CPU seconds.

0.92 to 0.95 in 5 rounds: AMD EPYC, 2 cores under load, 2026-11-26, d_model 256, vocabulary 32,768, 2,048 tokens a step
(checks/results/tactics.json). The note of the day it was added says 0.78 of the time (CHANGELOG.md). XLA takes a wide
dy times a transposed x twice as long; products of a block are narrow and gain nothing.
Off: SCALELAB_TACTICS_OFF=transposed_copy.
"""

from collections.abc import Callable

import jax

from scalelab.hardware.tactics.switch import is_on
from scalelab.sharding import target_platform


def multiply_transposed(einsum: Callable[..., jax.Array], x_TD: jax.Array, dy_TV: jax.Array) -> jax.Array:
    """x^T dy [D, V]; the barrier keeps XLA from folding the transposition into the product."""
    if target_platform() != "cpu" or not is_on("transposed_copy"):
        return einsum("td,tv->dv", x_TD, dy_TV)
    return einsum("dt,tv->dv", jax.lax.optimization_barrier(x_TD.T), dy_TV)
