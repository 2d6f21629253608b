"""Functions of a user that break what docs/fork.md asks of them, and one that does not."""

import jax.numpy as jnp


def summed(a):
    """A term that is a sum over tokens, not a mean."""
    return 1e-4 * jnp.sum(jnp.square(a.hidden.astype(jnp.float32)))


def over_the_batch(x, parts):
    """A block that takes off the mean over the batch."""
    x = x + parts.attention(parts.norm("attention_norm", x))
    y = parts.norm("mlp_norm", x)
    return x + parts.mlp(y - jnp.mean(y, axis=0, keepdims=True))


def balanced(x, parts):
    """A block with a variable that is not a parameter, and a gated product."""
    shift = parts.variable("shift", (x.shape[-1],), lambda value, sums: value, fill=0.5)
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x + shift[None, None].astype(x.dtype)))
    y = parts.norm("mlp_norm", x)
    return x + parts.times * parts.gain("gain", parts.product("mix", y, "embed", "embed", x.shape[-1]) + parts.mlp(y))
