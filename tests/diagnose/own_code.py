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


def norms_of_sums(x, parts):
    """A block as that of the first transformer: norms of what was added up, with a stream that counts more."""
    x = parts.norm("attention_norm", 1.5 * x + parts.attention(x))
    return parts.norm("mlp_norm", 1.5 * x + parts.mlp(x))


def half_a_stream(x, parts):
    """A block that lets half of the stream pass, before branches behind norms."""
    x = 0.5 * x + parts.attention(parts.norm("attention_norm", x))
    return 0.5 * x + parts.mlp(parts.norm("mlp_norm", x))


def without_a_norm(x, parts):
    """A block whose MLP reads the stream as it is."""
    x = 0.5 * x + parts.attention(parts.norm("attention_norm", x))
    return x + parts.mlp(x) + 0 * parts.norm("mlp_norm", x)
