"""The forward pass of a block, from the config's keys and the checkpoint's arrays, in whatever dtype they have.

`Context.round` rounds as the precision policy does where one is imitated; `record` collects what passes by, by name.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.diagnose.probes.reference import rope
from scalelab.diagnose.probes.reference.knobs import NO_EXCHANGE, Knobs, choose, is_default

CENTERED = {"rmsnorm": False, "layernorm": True, "layernorm_nobias": True}
MLPS = ("swiglu", "geglu", "gelu", "relu2", "relu")
POSITIONS = ("rope", "learned", "relative", "none")
WIDTHS = {"standard": False, "mup": True, "completep": True}  # parametrizations that follow d_model
DEPTHS = {"standard": False, "mup": False, "completep": True}


def _ignore(name: str, value: Any) -> None:
    del name, value


@dataclasses.dataclass(frozen=True)
class Context:
    """What every layer knows: the config's values, positions and documents [B, S], exchanges, rounding, a recorder."""

    shape: Any
    position: Any
    segment: Any
    knobs: Knobs = NO_EXCHANGE
    round: Callable[[Any], Any] = lambda x: x
    record: Callable[[str, Any], None] = _ignore


def unknown_choice(shape: Any) -> str:
    """The config's value that the reference does not know; "": it knows all."""
    tables = {
        "norm": CENTERED, "mlp": MLPS, "position": POSITIONS, "norm_place": ("before", "after", "around"),
        "qk_norm_over": ("head", "projection"), "logit_scale": ("none", "rsqrt_width"), "parametrization": WIDTHS,
        "rope_scaling": ("none", "linear", "ntk", "llama3", "yarn"),
    }  # fmt: skip
    return next((f"model.{k}={getattr(shape, k)}" for k, table in tables.items() if getattr(shape, k) not in table), "")


def width_ratio(shape: Any) -> float:
    """How many times as wide as the base; 1 where nothing follows the width."""
    return shape.d_model / shape.base_width if WIDTHS[shape.parametrization] else 1.0


def branch_factor(shape: Any) -> float:
    """Factor on each branch (Dey et al. 2025, Table 1)."""
    return shape.base_layers / shape.n_layers if DEPTHS[shape.parametrization] else 1.0


def head_factor(shape: Any) -> float:
    """Factor on the final hidden states (Yang et al. 2022, Table 8; Chowdhery et al. 2022, section 5)."""
    scale = (shape.d_model / width_ratio(shape)) ** -0.5 if shape.logit_scale == "rsqrt_width" else 1.0
    return scale / width_ratio(shape)


def logits_factor(shape: Any) -> float:
    """Factor on attention's products: 1/sqrt(d_head), following 1/d_head under muP; a latent's heads have two parts."""
    width = shape.d_head + (shape.d_head_rope if shape.d_kv_latent else 0)
    base = shape.base_d_head * (width / shape.d_head)
    return math.sqrt(base) / width if WIDTHS[shape.parametrization] else width**-0.5


def normalize(c: Context, p: Any, x: Any, on: Any, kind: str = "", axes: tuple[int, ...] = (-1,)) -> Any:
    """x over its root mean square, about the mean where the kind is centered, times the gain, plus the bias."""
    raw, centered = x, CENTERED[kind or c.shape.norm]
    mean = jnp.mean(x, axis=axes, keepdims=True)
    if not is_default(c.knobs.other_center, False):
        x = x - jnp.where(c.knobs.other_center, float(not centered), float(centered)).astype(x.dtype) * mean
    elif centered:
        x = x - mean
    y = x / jnp.sqrt(jnp.mean(x * x, axis=axes, keepdims=True) + c.shape.norm_eps * c.knobs.eps)
    y = y * _wide(p["g"], y)
    return c.round(choose(on, y + _wide(p["b"], y) if "b" in p else y, raw))


def _wide(w: Any, x: Any) -> Any:
    return w.reshape((1,) * (x.ndim - w.ndim) + w.shape)


def multiply(c: Context, p: Any, x: Any, pattern: str) -> Any:
    """x times p.w, plus p.b where there is one."""
    y = c.round(jnp.einsum(pattern, c.round(x), c.round(p["w"])))
    return c.round(y + _wide(p["b"], y)) if "b" in p else y


def attend(c: Context, p: Any, x: Any, layer: Any) -> Any:
    """Attention of one layer; `layer`: (its number from 1 on, traced)."""
    s, k_ = c.shape, c.knobs
    q, k, v = _make_from_latents(c, p, x) if s.d_kv_latent else _multiply_each(c, p, x)
    for name, y in (("q", q), ("k", k), ("v", v)):
        c.record(f"attention.{name}", y)
    if s.qk_norm:
        axes = (-1,) if s.qk_norm_over == "head" else (-2, -1)
        q, k = (normalize(c, p[f"{n}_norm"], y, k_.qk_norm, "rmsnorm", axes) for n, y in (("q", q), ("k", k)))
        c.record("attention.q_norm", q)
        c.record("attention.k_norm", k)
    number = layer + k_.layer_shift
    is_global = number % s.global_every == 0 if s.window and s.global_every else None
    has_rope = number % s.nope_every != 0 if s.nope_every else None
    factor: Any = logits_factor(s) * k_.scale
    extra = None
    if s.position == "rope":
        amplified: Any
        whole, local, amplified = rope.frequencies(s, np.dtype(x.dtype))
        frequency = jnp.asarray(whole) if is_global is None else jnp.where(is_global, whole, local)
        position = c.position if has_rope is None else c.position * has_rope
        fixed = s.d_head if s.d_kv_latent else 0  # numbers of a head before those that are rotated
        end = fixed + 2 * len(whole)  # and the first of those behind them
        turned = (rope.rotate(y[..., fixed:end], position, frequency, s, k_) for y in (q, k))
        q, k = (
            c.round(jnp.concatenate([y[..., :fixed], t, y[..., end:]], axis=-1))
            for y, t in zip((q, k), turned, strict=True)
        )
        flags = [flag for flag in (is_global if s.rope_local_theta else None, has_rope) if flag is not None]
        for flag in flags:
            amplified = jnp.where(flag, amplified, 1.0)
        factor = factor * amplified
    elif s.position == "relative":
        extra = _distance_scores(c, p, q)
        q = q + _wide(p["content_bias"], q)
    groups = s.n_heads // k.shape[2]
    k, v = (_spread(y, groups, k_.tiled_heads) for y in (k, v))
    scores = jnp.einsum("bsnh,btnh->bnst", q, k)
    scores = (scores if extra is None else scores + extra) * factor
    if s.attention_softcap:  # Gemma 2 (2024), section 2
        scores = s.attention_softcap * jnp.tanh(scores / s.attention_softcap)
    # Divided after the product with the values: so it rounds in fp32 as the worst of common kernels does.
    weights = c.round(_exponentials(jnp.where(_visible(c, x.shape[1], is_global)[:, None], scores, -1e30), k_))
    total = jnp.sum(weights, axis=-1).swapaxes(1, 2)[..., None]
    y = c.round(jnp.einsum("bnst,btnh->bsnh", weights, v) / total)
    c.record("attention.heads", y)
    return multiply(c, p["o"], y, "bsnh,nhd->bsd")


def _multiply_each(c: Context, p: Any, x: Any) -> Any:
    return tuple(multiply(c, p[name], x, "bsd,dnh->bsnh") for name in "qkv")


def _make_from_latents(c: Context, p: Any, x: Any) -> Any:
    """Queries, keys and values of latent attention (DeepSeek-V2, 2024, eq. 9 to 17), before positions."""
    s, latent = c.shape, "blc,cnh->blnh"

    def norm(name: str, y: Any) -> Any:
        return normalize(c, p[name], y, True, "rmsnorm")

    if s.d_q_latent:
        q = multiply(c, p["q_up"], norm("q_norm", multiply(c, p["q_down"], x, "bsd,dc->bsc")), latent)
    else:
        q = multiply(c, p["q"], x, "bsd,dnh->bsnh")
    token = multiply(c, p["kv_down"], x, "bsd,dc->bsc")
    both = multiply(c, p["kv_up"], norm("kv_norm", token[..., : s.d_kv_latent]), latent)
    shared = jnp.broadcast_to(token[..., None, s.d_kv_latent :], (*both.shape[:3], s.d_head_rope))
    return q, jnp.concatenate([both[..., : s.d_head], shared], axis=-1), both[..., s.d_head :]


def _spread(y: Any, groups: int, tiled: Any) -> Any:
    if groups == 1:
        return y
    repeated = jnp.repeat(y, groups, axis=2)
    return repeated if is_default(tiled, False) else choose(tiled, jnp.tile(y, (1, 1, groups, 1)), repeated)


def _exponentials(scores: Any, knobs: Knobs) -> Any:
    if not is_default(knobs.softmax_bf16, False):
        scores = choose(knobs.softmax_bf16, jax.lax.reduce_precision(scores, 8, 7), scores)
    return jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))


def _visible(c: Context, length: int, is_global: Any) -> Any:
    """Booleans [B, S, T]: keys up to the query's position, of its document, within its window."""
    s, i = c.shape, jnp.arange(length)
    ahead = i[:, None] - i[None, :]
    seen = ahead >= -c.knobs.future
    seen = seen & choose(c.knobs.strict, (ahead != 0) | (i[:, None] == 0), jnp.ones_like(seen))
    if s.window:
        near = choose(c.knobs.no_window, jnp.ones_like(seen), ahead < s.window + c.knobs.window_more)
        seen = seen & (near if is_global is None else near | is_global)
    return seen[None] & (c.segment[:, :, None] == c.segment[:, None, :])


def _distance_scores(c: Context, p: Any, q: Any) -> Any:
    """Scores of distances [B, N, S, T] (Dai et al. 2019, section 3.3): (q + v) W_r R of i - j."""
    length, half = q.shape[1], c.shape.d_model // 2
    angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(half) / half)[None]
    encoded = jnp.asarray(np.concatenate([np.sin(angle), np.cos(angle)], axis=-1).astype(q.dtype))
    by_distance = jnp.einsum("td,dnh->tnh", encoded, p["r"]["w"])
    scores = jnp.einsum("bsnh,tnh->bnst", q + _wide(p["position_bias"], q), by_distance)
    distance = np.maximum(np.arange(length)[:, None] - np.arange(length)[None], 0)
    return jnp.take_along_axis(scores, jnp.asarray(distance)[None, None], axis=-1)


def transform(c: Context, p: Any, x: Any) -> Any:
    """The MLP."""
    up, kind = multiply(c, p["up"], x, "bsd,df->bsf"), c.shape.mlp
    c.record("mlp.up", up)
    if kind in ("swiglu", "geglu"):
        gate = multiply(c, p["gate"], x, "bsd,df->bsf")
        c.record("mlp.gate", gate)
        active = gate * jax.nn.sigmoid(gate) if kind == "swiglu" else _gelu(c, gate)
        hidden = choose(c.knobs.no_gate, gate, active) * up
    elif kind == "gelu":
        hidden = _gelu(c, up)
    else:
        hidden = jnp.where(up > 0, up * up if kind == "relu2" else up, 0.0)
    return multiply(c, p["down"], c.round(hidden), "bsf,fd->bsd")


def _gelu(c: Context, x: Any) -> Any:
    """GELU in its tanh form (Hendrycks & Gimpel 2016)."""
    tanh = 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if is_default(c.knobs.exact_gelu, False):
        return tanh
    return choose(c.knobs.exact_gelu, 0.5 * x * (1 + jax.lax.erf(x / math.sqrt(2))), tanh)


def apply_block(c: Context, p: Any, x: Any, layer: Any, kind: str) -> Any:
    """The residual stream after one of the config's own blocks (`sequential` or `parallel`)."""
    s, times = c.shape, branch_factor(c.shape) * c.knobs.branch

    def normed(name: str, y: Any) -> Any:
        y = normalize(c, p[name], y, getattr(c.knobs, name))
        c.record(name, y)
        return y

    def attention(y: Any) -> Any:
        y = attend(c, p["attention"], y, layer)
        c.record("attention", y)
        return y

    def mlp(y: Any) -> Any:
        y = transform(c, p["mlp"], y)
        c.record("mlp", y)
        return y

    before, around = s.norm_place != "after", s.norm_place == "around"
    if kind == "parallel":
        y = normed("attention_norm", x) if before else x
        both = attention(y) + mlp(y)
        return c.round(x + times * (both if before else normed("attention_norm", both)))
    for name, branch in (("attention_norm", attention), ("mlp_norm", mlp)):
        y = branch(normed(name, x)) if before else normed(name, branch(x))
        y = normed(name.replace("_norm", "_out_norm"), y) if around else y
        x = c.round(x + times * y)
    return x
