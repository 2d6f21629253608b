"""Only a compiled program speaks for this: delayed scaling casts an fp8 operand in the pass that finds its maximum.

Else XLA casts once for each layout that is multiplied. Compiled for an H100 on 2026-11-24 and run on none: 16 casts of
three blocks come with their maximum, 9 alone (checks/results/fp8_products.md). Off:
SCALELAB_TACTICS_OFF=cast_with_maximum.
"""

import jax

from scalelab.hardware.tactics.switch import is_on


def cast_with_maximum(values: jax.Array, amax: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tie the cast values and their maximum together behind one barrier."""
    return jax.lax.optimization_barrier((values, amax)) if is_on("cast_with_maximum") else (values, amax)
