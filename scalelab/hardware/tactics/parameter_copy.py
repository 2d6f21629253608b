"""Only a compiled program speaks for this: on a mesh the loss reads its parameters behind a barrier.

Else the partitioner slices the parameters to update from the tables gathered for the loss, which then stay in memory to
the end (two tables of the vocabulary in fp32): 26.4 GB, not 23.3, for a 7B on 8 H200, compiled on 2026-11-22 and run on
none (the commit's note, without a result file). Off: SCALELAB_TACTICS_OFF=parameter_copy.
"""

from typing import Any

import jax

from scalelab.hardware.tactics.switch import is_on


def copy_for_loss(params: Any, devices: int) -> Any:
    """Put a barrier before the parameters that the loss reads, if there are several devices."""
    return jax.lax.optimization_barrier(params) if devices > 1 and is_on("parameter_copy") else params
