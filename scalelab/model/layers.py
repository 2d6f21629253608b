"""Layers: each declares its parameters and applies them. Products run in `dtype`, statistics in fp32.

Shapes: B batch, S sequence, D d_model, N heads, K key/value heads, H d_head, F d_ff, V vocab.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec, reshard

from scalelab.model.declare import Declaration, declare
from scalelab.model.placement import on_mesh, spec, use

Axes = tuple[tuple[str, int], ...]  # ((logical name, size), …)


def add(x: jax.Array, b: jax.Array) -> jax.Array:
    """x + b over the leading axes, in x's dtype; the gradient of b (fp32) is summed over them in fp32."""
    return (x + behind(b, x)).astype(x.dtype)


def behind(b: jax.Array, x: jax.Array) -> jax.Array:
    """`b` with leading axes of size one, as many as `x` has more."""
    return jnp.expand_dims(b, tuple(range(x.ndim - b.ndim)))


Names = tuple[str | None, ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def product(x: jax.Array, w: jax.Array, ins: int, names: tuple[str, ...], place: Names) -> jax.Array:
    """x [..., ins] times w [ins, outs] (fp32, logical axes `names`) -> [..., outs] in x's dtype, lying as `place` says.

    Its backward is written out for two reasons: the weight's gradient is summed over tokens, and over devices, in fp32
    also where products run in bf16; and a weight split by fsdp is gathered anew, so that it isn't held in between.
    """
    return _dot(x, use(w.astype(x.dtype), *names), (x.ndim - ins, x.ndim), (0, ins), spec(*place), x.dtype)


def _product_forward(x, w, ins, names, place):
    return product(x, w, ins, names, place), (x, w)


def _product_backward(ins, names, place, kept, dy):
    x, w = kept
    lead = x.ndim - ins
    if not on_mesh():
        tokens, inner = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
        x_TK, dy_TN, w_KN = x.reshape(tokens, inner), dy.reshape(tokens, -1), w.astype(x.dtype).reshape(inner, -1)
        dw_KN = jnp.einsum("tk,tn->kn", x_TK, dy_TN, preferred_element_type=jnp.float32)
        return (dy_TN @ w_KN.T).reshape(x.shape), dw_KN.reshape(w.shape)
    used = use(w.astype(x.dtype), *names)
    dx = _dot(dy, used, (lead, dy.ndim), (ins, w.ndim), jax.typeof(x).sharding.spec, x.dtype)
    dw = _dot(x, dy, (0, lead), (0, lead), spec(*names), jnp.float32)
    return dx, reshard(dw, jax.typeof(w).sharding.spec)


product.defvjp(_product_forward, _product_backward)


def _dot(
    a: jax.Array, b: jax.Array, of_a: tuple[int, int], of_b: tuple[int, int], out: PartitionSpec, dtype: Any
) -> jax.Array:  # fmt: skip
    """Contract axes of_a[0] to of_a[1] of a with those of b; on a mesh the result lies as `out` says."""
    dims = (tuple(range(*of_a)), tuple(range(*of_b)))
    if on_mesh():  # in fp32 first: where the contraction is split, it is the devices' parts that are added
        y = jax.lax.dot_general(a, b, (dims, ((), ())), preferred_element_type=jnp.float32, out_sharding=out)
        return y.astype(dtype)
    # As one product of two matrices: left with its own axes, XLA:CPU contracts two of them for the weight's gradient on a
    # strided copy, and a whole step takes 1.5 times as long (experiments/benchmarks).
    y = a.reshape(-1, math.prod(a.shape[of_a[0] :])) @ b.reshape(math.prod(b.shape[: of_b[1]]), -1)
    return y.reshape(*a.shape[: of_a[0]], *b.shape[of_b[1] :])


class Einsum(nn.Module):
    """y[…, outs] = x[…, ins] W[ins, outs] (+ b[outs]); W ~ N(0, 1/fan_in). `place`: logical axes of y on a mesh."""

    ins: Axes
    outs: Axes
    bias: bool
    dtype: Any
    place: tuple[str | None, ...]
    role: str = "weight"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x: [..., *ins] -> [..., *outs], in `dtype`."""
        in_names, in_sizes = zip(*self.ins, strict=True)
        out_names, out_sizes = zip(*self.outs, strict=True)
        std = math.prod(in_sizes) ** -0.5
        weight = Declaration(in_sizes + out_sizes, in_names, out_names, self.role, std=std)
        w = declare(self, "w", weight)
        y = product(x.astype(self.dtype), w, len(in_sizes), in_names + out_names, self.place)
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
    dtype: Any
    residual: tuple[str | None, ...] = ("batch", "context", None)

    @nn.compact
    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        """x_BSD -> [B, S, D]."""
        embed, hidden = (("embed", self.d_model),), (("mlp", self.d_ff),)
        inner = ("batch", "context", "mlp")
        h_BSF = Einsum(embed, hidden, self.bias, self.dtype, inner, name="up")(x_BSD)
        if self.kind == "swiglu":
            h_BSF = jax.nn.silu(Einsum(embed, hidden, self.bias, self.dtype, inner, name="gate")(x_BSD)) * h_BSF
        elif self.kind == "gelu":
            h_BSF = jax.nn.gelu(h_BSF, approximate=True)
        else:
            h_BSF = jnp.square(jax.nn.relu(h_BSF))
        return Einsum(hidden, embed, self.bias, self.dtype, self.residual, name="down")(h_BSF)
