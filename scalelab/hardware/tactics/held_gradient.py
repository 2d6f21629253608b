"""Only a compiler's estimate speaks for this: a product's output gradient is held in memory for both its readers.

Else XLA makes it of its factors within each product that reads it, which takes 3 % of an 8B's cycles on 8 v5p (estimate
of libtpu 0.0.42 of 2026-11-25, without a result file). Off: SCALELAB_TACTICS_OFF=held_gradient.
"""

import jax

from scalelab.hardware.tactics.switch import is_on


def hold_gradient(dy: jax.Array) -> jax.Array:
    """Hold `dy` in memory by a barrier."""
    return jax.lax.optimization_barrier(dy) if is_on("held_gradient") else dy
