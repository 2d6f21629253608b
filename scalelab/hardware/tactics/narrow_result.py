"""Only a compiled program speaks for this: on a GPU an fp8 product comes in the activations' format, not in fp32.

cuBLAS takes scales and rounds its sums once, which saves a pass in fp32 over the result. Scales are powers of two, so
the numbers are equal though they come after the rounding. Compiled for an H100 on 2026-11-24 and run on none: results
in bf16 (checks/results/fp8_products.md). Off: SCALELAB_TACTICS_OFF=narrow_result.
"""

from typing import Any

import jax.numpy as jnp

from scalelab.hardware.tactics.switch import is_on
from scalelab.sharding import target_platform


def result_format(out: Any, scaled: bool, added: bool) -> Any:
    """Format of a product's result; `scaled`: of fp8 operands with scales; `added`: summed between devices."""
    narrow = scaled and not added and target_platform() == "gpu" and is_on("narrow_result")
    return out if narrow else jnp.float32
