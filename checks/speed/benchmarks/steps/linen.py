"""A decoder in Flax's Linen as nanodo has it: the peer of `peers.py`.

LayerNorm without bias, learned positions, separate queries, keys and values, GELU of width 4 d, a tied head, no other
biases, all logits at once (github.com/google-deepmind/nanodo; written anew).
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

Norm = functools.partial(nn.LayerNorm, use_bias=False)


class Attention(nn.Module):
    """Causal attention on [B, heads, S, S] logits."""

    heads: int

    @nn.compact
    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        """x_BSD -> [B, S, D]."""
        length, width = x_BSD.shape[1:]
        project = functools.partial(nn.DenseGeneral, features=(self.heads, width // self.heads), use_bias=False)
        q, k, v = (project(name=name)(x_BSD) for name in ("query", "key", "value"))
        logits = jnp.einsum("bqnh,bknh->bnqk", q / (width // self.heads) ** 0.5, k)
        past = jnp.tril(jnp.ones((1, 1, length, length), bool))
        weights = jax.nn.softmax(jnp.where(past, logits, jnp.finfo(jnp.float32).min), axis=-1)
        mixed = jnp.einsum("bnqk,bknh->bqnh", weights, v)
        return nn.DenseGeneral(features=width, axis=(-2, -1), use_bias=False, name="out")(mixed)


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    heads: int

    @nn.compact
    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        """x_BSD -> [B, S, D]."""
        width = x_BSD.shape[-1]
        x_BSD = x_BSD + Attention(self.heads)(Norm()(x_BSD))
        hidden = jax.nn.gelu(nn.Dense(4 * width, use_bias=False)(Norm()(x_BSD)))
        return x_BSD + nn.Dense(width, use_bias=False)(hidden)


class Decoder(nn.Module):
    """tokens [B, S] -> logits [B, S, V]."""

    vocab: int
    width: int
    layers: int
    heads: int
    length: int

    @nn.compact
    def __call__(self, tokens_BS: jax.Array) -> jax.Array:
        """The logits of the next tokens, fp32."""
        tokens, positions = nn.Embed(self.vocab, self.width), nn.Embed(self.length, self.width)
        x_BSD = tokens(tokens_BS) + positions(jnp.arange(tokens_BS.shape[1])[None])
        for _ in range(self.layers):
            x_BSD = Block(self.heads)(x_BSD)
        return tokens.attend(Norm()(x_BSD))
