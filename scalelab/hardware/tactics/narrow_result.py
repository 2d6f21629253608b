"""Only compiled programs speak for this: on a GPU a product comes in the activations' format, not in fp32 first.

cuBLAS and Triton sum in fp32 and round once. XLA does not fold a later conversion into a cuBLAS call: the result is
written in fp32 and read again, a pass of its own. In a profiled step of a Llama of 1B on an H100 those of two of a
block's products took 13 of 532 ms (2026-11-27, checks/results/gpu.md); what a step gains was not timed. fp8's scales
are powers of two, so the numbers are equal though they come after the rounding (checks/results/fp8_products.md).
Off: SCALELAB_TACTICS_OFF=narrow_result.
"""

from typing import Any

import jax.numpy as jnp

from scalelab.hardware.tactics.switch import is_on
from scalelab.sharding import target_platform


def result_format(out: Any, added: bool) -> Any:
    """Format of a product's result that is wanted in the format `out`; `added`: it is summed between devices first."""
    return out if not added and target_platform() == "gpu" and is_on("narrow_result") else jnp.float32
