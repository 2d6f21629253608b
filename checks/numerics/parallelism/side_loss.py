"""A block with every kind of sum of its own, to compare layouts by: a router whose choice nothing follows.

Its matrix has a gradient from the block's loss alone, so a layout that loses the loss, or a part of it, is found.
"""

from typing import Any

import jax
import jax.numpy as jnp

from scalelab.sharding import reshard_to

NAME = f"{__name__}:routed"  # the value of model.block
CHOICES = 8


def routed(x_BSD: jax.Array, parts: Any) -> jax.Array:
    """The sequential block, with the z-loss of a router (Zoph et al. 2022, eq. 5), its choices and largest logit."""
    x_BSD = x_BSD + parts.times * parts.attention(parts.norm("attention_norm", x_BSD))
    y_BSD = parts.norm("mlp_norm", x_BSD)
    logits_BSE = parts.product("router", y_BSD, "embed", "mlp", CHOICES).astype(jnp.float32)
    logits_BSE = reshard_to(logits_BSE, "batch", "context", None)
    parts.loss("router_z", 0.1 * jnp.square(jax.nn.logsumexp(logits_BSE, axis=-1)))
    parts.count("choices", jax.nn.one_hot(jnp.argmax(logits_BSE, axis=-1), CHOICES))
    parts.maximum("router_max", jnp.max(logits_BSE, axis=-1))
    return x_BSD + parts.times * parts.mlp(y_BSD)
