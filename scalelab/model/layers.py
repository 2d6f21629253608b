"""Layers: each declares its parameters and applies them. Products run in the policy's formats, statistics in fp32.

Shapes: B batch, S sequence, D d_model, N heads, K key/value heads, H d_head, F d_ff, V vocab.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config import ModelShape
from scalelab.model.declare import Declaration, Variable, declare_parameter, declare_variable
from scalelab.model.products.operands import ProductAxes
from scalelab.model.products.parts import GatheredSequence
from scalelab.model.products.product import share_among_products, weight_product
from scalelab.model.products.saved import keep_inputs, name_product, name_statistic
from scalelab.model.sums import measures
from scalelab.precision.policy import Policy, array_dtype
from scalelab.sharding import gather_weight, without_mesh

Axes = tuple[tuple[str, int], ...]  # ((logical name, size), …)


def add_bias(x: jax.Array, b: jax.Array) -> jax.Array:
    """x + b over the leading axes, in x's dtype; the gradient of b (fp32) is summed over them in fp32."""
    return (x + broadcast_trailing(b, x)).astype(x.dtype)


def broadcast_trailing(b: jax.Array, x: jax.Array) -> jax.Array:
    """`b` with leading axes of size one, up to the rank of `x`."""
    return jnp.expand_dims(b, tuple(range(x.ndim - b.ndim)))


class ProjectionInit(NamedTuple):
    """Standard deviations of projections: `std` (0: 1/sqrt(fan_in)), times `last` for those into the residual."""

    std: float = 0.0
    last: float = 1.0


def projection_init(shape: ModelShape) -> ProjectionInit:
    """Standard deviations from `projection_std` and `depth_scaled_init` (Radford et al. 2019, section 2.3).

    Under muP variances shrink as 1/fan_in, so `projection_std` is the value at base_width. CompleteP has the depth in
    the forward pass, so `last` is the value at base_layers.
    """
    last = (2 * shape.n_layers / shape.depth_ratio) ** -0.5 if shape.depth_scaled_init else 1.0
    return ProjectionInit(shape.projection_std * shape.width_ratio**-0.5, last)


def head_multiplier(shape: ModelShape) -> float:
    """Factor on the logits: muP divides them by the width ratio (Yang et al. 2022, Table 8)."""
    return 1.0 / shape.width_ratio


# Factors on the logits.
LOGIT_SCALES: dict[str, Callable[[ModelShape], float]] = {
    "none": lambda shape: 1.0,
    # 1/sqrt(d_model) at base_width (Chowdhery et al. 2022, section 5, "Weight initialization")
    "rsqrt_width": lambda shape: (shape.d_model / shape.width_ratio) ** -0.5,
}


def branch_multiplier(shape: ModelShape) -> float:
    """Factor on a block's branches: CompleteP divides them by the depth ratio (Dey et al. 2025, Table 1)."""
    return 1.0 / shape.depth_ratio


class Einsum(nn.Module):
    """y[…, outs] = x[…, ins] W[ins, outs] (+ b[outs]); W ~ N(0, std^2), by default 1/fan_in.

    `place`: logical axes of y, which decide how a mesh splits it.
    """

    ins: Axes
    outs: Axes
    bias: bool
    policy: Policy
    place: tuple[str | None, ...]
    role: str = "weight"
    std: float = 0.0  # 0: 1/sqrt(fan_in)
    times: float = 1.0  # multiplies the standard deviation

    @nn.compact
    def __call__(self, x: jax.Array | GatheredSequence) -> jax.Array:
        """x: [..., *ins] -> [..., *outs], in the policy's compute dtype."""
        in_names, in_sizes = zip(*self.ins, strict=True)
        out_names, out_sizes = zip(*self.outs, strict=True)
        std = self.times * (self.std or math.prod(in_sizes) ** -0.5)
        weight = Declaration(in_sizes + out_sizes, in_names, out_names, self.role, std=std)
        w = declare_parameter(self, "w", weight)
        x = jax.tree.map(lambda x: x.astype(array_dtype(self.policy.compute)), x)  # in parts, or one array
        scales: Any = self.get_variable("scales", "s")  # None unless scaling is delayed
        axes = ProductAxes(len(in_sizes), in_names + out_names, self.place)
        y = name_product(weight_product(x, w, scales, axes, self.policy))
        if self.bias:
            b = declare_parameter(self, "b", Declaration(out_sizes, (), out_names, "bias"))
            y = add_bias(y, gather_weight(b, *out_names))
        return y


class BareParameter(nn.Module):
    """A parameter without an operation: the embedding, the head, learned positions."""

    declaration: Declaration

    @nn.compact
    def __call__(self) -> jax.Array:
        """The array as declared, in fp32."""
        return declare_parameter(self, "w", self.declaration)


class BareVariable(nn.Module):
    """A variable without an operation."""

    declared: Variable

    @nn.compact
    def __call__(self) -> jax.Array:
        """The array as declared."""
        return declare_variable(self, "v", self.declared)


class NormKind(NamedTuple):
    """Whether the mean is subtracted, and whether a bias is added."""

    centered: bool
    bias: bool


NORMS = {
    "rmsnorm": NormKind(centered=False, bias=False),
    "layernorm": NormKind(centered=True, bias=True),
    "layernorm_nobias": NormKind(centered=True, bias=False),
}


class Norm(nn.Module):
    """RMSNorm (Zhang & Sennrich 2019) or LayerNorm (Ba et al. 2016, with a bias) over the last axes, in fp32."""

    kind: str
    axes: Axes
    eps: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x: [..., *axes] -> [..., *axes], in `dtype`."""
        names, sizes = zip(*self.axes, strict=True)

        def gathered(name: str, role: str, fill: float) -> jax.Array:
            w = declare_parameter(self, name, Declaration(sizes, (), names, role, fill=fill))
            return broadcast_trailing(gather_weight(w, *names), x)

        kind, over = NORMS[self.kind], tuple(range(-len(sizes), 0))
        gain, bias = gathered("g", "gain", 1.0), gathered("b", "bias", 0.0) if kind.bias else None
        scaling = Scaling(over, kind.centered, self.eps, self.dtype)
        return keep_inputs(functools.partial(_normalize, scaling=scaling))(x, gain, bias)


class Scaling(NamedTuple):
    """How a norm scales its input: over which axes, about the mean or zero, with which eps; the result's dtype."""

    over: tuple[int, ...]
    centered: bool
    eps: float
    dtype: Any


def _normalize(x: jax.Array, gain: jax.Array, bias: jax.Array | None, scaling: Scaling) -> jax.Array:
    x = x.astype(jnp.float32)
    if scaling.centered:
        x = x - name_statistic(jnp.mean(x, axis=scaling.over, keepdims=True))
    mean_square = jnp.mean(x * x, axis=scaling.over, keepdims=True)
    y = x * name_statistic(jax.lax.rsqrt(mean_square + scaling.eps)) * gain
    return (y if bias is None else y + bias).astype(scaling.dtype)


# Hidden units of an MLP from its first product, or from two: `up` and `gate`.
GATED: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "swiglu": lambda up, gate: jax.nn.silu(gate) * up,  # Shazeer 2020
    "geglu": lambda up, gate: jax.nn.gelu(gate, approximate=True) * up,  # the same; tanh: Gemma (2024)
}
UNGATED: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": functools.partial(jax.nn.gelu, approximate=True),  # in its tanh form
    "relu2": lambda up: jnp.square(jax.nn.relu(up)),  # So et al. 2021
    "relu": jax.nn.relu,
}


def has_zero_units(kind: str) -> bool:
    """Whether units of this MLP are exactly zero wherever their products are negative, and not only small."""
    with without_mesh(), jax.ensure_compile_time_eval():
        below = -jnp.ones(())
        return bool((GATED[kind](below, below) if kind in GATED else UNGATED[kind](below)) == 0)


class MLP(nn.Module):
    """Products into the hidden units, their activation (a row of GATED or UNGATED), and a product back."""

    kind: str
    d_model: int
    d_ff: int
    bias: bool
    policy: Policy
    residual: tuple[str | None, ...] = ("batch", "context", None)
    stds: ProjectionInit = ProjectionInit()

    @nn.compact
    def __call__(self, x_BSD: jax.Array | GatheredSequence, due: jax.Array | None = None) -> jax.Array:
        """x_BSD -> [B, S, D]; with `due` (see `sums/measures.py`) also what is measured of the hidden units."""
        embed, hidden = (("embed", self.d_model),), (("mlp", self.d_ff),)
        inner, std = ("batch", "context", "mlp"), self.stds.std
        x_BSD = share_among_products(x_BSD, self.policy)
        h_BSF = Einsum(embed, hidden, self.bias, self.policy, inner, std=std, name="up")(x_BSD)
        if self.kind in GATED:
            gate_BSF = Einsum(embed, hidden, self.bias, self.policy, inner, std=std, name="gate")(x_BSD)
            h_BSF = keep_inputs(GATED[self.kind])(h_BSF, gate_BSF)
        else:
            h_BSF = keep_inputs(UNGATED[self.kind])(h_BSF)
        if due is not None:
            self.put_variable(measures.COLLECTION, "units", measures.mlp_measures(due, h_BSF))
        out = Einsum(hidden, embed, self.bias, self.policy, self.residual, std=std, times=self.stds.last, name="down")
        return out(h_BSF)
