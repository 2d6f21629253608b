"""Only a compiled program speaks for this: on a GPU a layer taken from a stack keeps the order of its axes.

Else XLA hands the layout that a product likes on to the whole stack, and keeps a second copy of it. Seen in LLaMA 7B's
step for a card of 24 GB (configs/galore_7b.py), compiled on 2026-11-24 and run on none (without a result file).
Off: SCALELAB_TACTICS_OFF=stack_layout.
"""

import jax
from jax.experimental.layout import Layout, with_layout_constraint

from scalelab.hardware.tactics.switch import is_on
from scalelab.sharding import target_platform


def keep_layout(x: jax.Array) -> jax.Array:
    """Keep `x`, a layer of a stack, in the order of its axes."""
    constrained = target_platform() == "gpu" and is_on("stack_layout")
    return with_layout_constraint(x, Layout(tuple(range(x.ndim)))) if constrained else x
