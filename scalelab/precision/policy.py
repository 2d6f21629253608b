"""Precision policies. Parameters, optimizer moments, norms, softmax and loss are fp32 under every policy."""

import jax.numpy as jnp

COMPUTE_DTYPES = {
    "fp32": jnp.float32,
    "bf16": jnp.bfloat16,  # activations and products; fp32 master weights are cast at each use
}
