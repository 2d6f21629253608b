"""Layers: each declares its parameters and applies them. Products run as `policy` says, statistics in fp32.

Shapes: B batch, S sequence, D d_model, N heads, K key/value heads, H d_head, F d_ff, V vocab.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.model.declare import Declaration, declare
from scalelab.model.placement import use
from scalelab.model.product import product
from scalelab.precision.policy import Policy, dtype

Axes = tuple[tuple[str, int], ...]  # ((logical name, size), …)


def add(x: jax.Array, b: jax.Array) -> jax.Array:
    """x + b over the leading axes, in x's dtype; the gradient of b (fp32) is summed over them in fp32."""
    return (x + behind(b, x)).astype(x.dtype)


def behind(b: jax.Array, x: jax.Array) -> jax.Array:
    """`b` with leading axes of size one, as many as `x` has more."""
    return jnp.expand_dims(b, tuple(range(x.ndim - b.ndim)))


class Einsum(nn.Module):
    """y[…, outs] = x[…, ins] W[ins, outs] (+ b[outs]); W ~ N(0, 1/fan_in). `place`: logical axes of y on a mesh."""

    ins: Axes
    outs: Axes
    bias: bool
    policy: Policy
    place: tuple[str | None, ...]
    role: str = "weight"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x: [..., *ins] -> [..., *outs], in what the policy computes in."""
        in_names, in_sizes = zip(*self.ins, strict=True)
        out_names, out_sizes = zip(*self.outs, strict=True)
        std = math.prod(in_sizes) ** -0.5
        weight = Declaration(in_sizes + out_sizes, in_names, out_names, self.role, std=std)
        w = declare(self, "w", weight)
        x = x.astype(dtype(self.policy.compute))
        scales: Any = self.get_variable("scales", "s")  # none but under delayed scaling
        y = product(x, w, scales, len(in_sizes), in_names + out_names, self.place, self.policy)
        if self.bias:
            b = declare(self, "b", Declaration(out_sizes, (), out_names, "bias"))
            y = add(y, use(b, *out_names))
        return y


class Table(nn.Module):
    """A bare parameter: the embedding, the head, learned positions."""

    declaration: Declaration

    @nn.compact
    def __call__(self) -> jax.Array:
        """The array as declared, in fp32."""
        return declare(self, "w", self.declaration)


class Norm(nn.Module):
    """RMSNorm (Zhang & Sennrich 2019) or LayerNorm (Ba et al. 2016) over the last axis, in fp32; LayerNorm has a bias."""

    kind: str
    axis: tuple[str, int]
    eps: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x: [..., axis] -> the same shape, in `dtype`."""
        name, size = self.axis
        gain = use(declare(self, "g", Declaration((size,), (), (name,), "gain", fill=1.0)), name)
        x = x.astype(jnp.float32)
        if self.kind == "layernorm":
            x = x - jnp.mean(x, axis=-1, keepdims=True)
        y = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        y = y * behind(gain, y)
        if self.kind == "layernorm":
            y = y + behind(use(declare(self, "b", Declaration((size,), (), (name,), "bias")), name), y)
        return y.astype(self.dtype)


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020), GELU (tanh form), or squared ReLU (So et al. 2021)."""

    kind: str
    d_model: int
    d_ff: int
    bias: bool
    policy: Policy
    residual: tuple[str | None, ...] = ("batch", "context", None)

    @nn.compact
    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        """x_BSD -> [B, S, D]."""
        embed, hidden = (("embed", self.d_model),), (("mlp", self.d_ff),)
        inner = ("batch", "context", "mlp")
        h_BSF = Einsum(embed, hidden, self.bias, self.policy, inner, name="up")(x_BSD)
        if self.kind == "swiglu":
            h_BSF = jax.nn.silu(Einsum(embed, hidden, self.bias, self.policy, inner, name="gate")(x_BSD)) * h_BSF
        elif self.kind == "gelu":
            h_BSF = jax.nn.gelu(h_BSF, approximate=True)
        else:
            h_BSF = jnp.square(jax.nn.relu(h_BSF))
        return Einsum(hidden, embed, self.bias, self.policy, self.residual, name="down")(h_BSF)
