"""Causal self-attention with grouped queries, QK-norm and four ways to know a position.

Shapes: B batch, S queries, T keys, D d_model, N heads, K key/value heads, G = N / K queries a key, H d_head.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config import ModelShape
from scalelab.model.declare import Declaration, declare
from scalelab.model.documents import Packed, Past
from scalelab.model.kernels import attend, implementation, seeing_attention
from scalelab.model.layerkinds import ALIKE, Layer, turned
from scalelab.model.layers import Einsum, Norm, add, init_of
from scalelab.model.placement import local, residual, spec, use
from scalelab.model.rotary import amplitude, frequencies, rope
from scalelab.model.sight import Sight, sees
from scalelab.precision.policy import Policy, dtype
from scalelab.precision.products import einsum


class Attention(nn.Module):
    """Multi-head attention of one block."""

    shape: ModelShape
    policy: Policy

    @nn.compact
    def __call__(self, x_BSD: jax.Array, layer: Layer = ALIKE, packed: Packed | None = None) -> jax.Array:
        """x_BSD -> [B, S, D]; position i sees positions up to i, of its own document where `packed` says which that is."""
        s, compute = self.shape, dtype(self.policy.compute)
        embed, queries = (("embed", s.d_model),), (("heads", s.n_heads), ("head_dim", s.d_head))
        keys = (("kv_heads", s.n_kv_heads), ("head_dim", s.d_head))
        by_head, by_key = ("batch", "context", "heads", None), ("batch", "context", "kv_heads", None)
        bias, init = s.bias or s.qkv_bias, init_of(s)
        q_BSNH = Einsum(embed, queries, bias, self.policy, by_head, std=init.std, name="q")(x_BSD)
        k_BSKH = Einsum(embed, keys, bias, self.policy, by_key, std=init.std, name="k")(x_BSD)
        v_BSKH = Einsum(embed, keys, bias, self.policy, by_key, std=init.std, name="v")(x_BSD)
        if s.qk_norm:
            first = 1 if s.qk_norm_over == "head" else 0  # of (heads, head_dim)
            q_BSNH = Norm("rmsnorm", queries[first:], s.norm_eps, compute, name="q_norm")(q_BSNH)
            k_BSKH = Norm("rmsnorm", keys[first:], s.norm_eps, compute, name="k_norm")(k_BSKH)
        scale, bias_BNST = attention_scale(s), None
        if s.position == "rope":
            at, turns = turned(packed and packed.position_BS, layer, x_BSD.shape[1]), frequencies(s)
            q_BSNH, k_BSKH = rope(q_BSNH, turns, at), rope(k_BSKH, turns, at)
            scale *= amplitude(s) ** 2
        elif s.position == "relative":
            q_BSNH, bias_BNST = self.relative(q_BSNH, scale, packed and packed.past)
        if packed is not None and packed.past is not None:
            y_BSNH = self.look_back(q_BSNH, k_BSKH, v_BSKH, bias_BNST, scale, layer, packed)
        else:
            sight = Sight(packed and packed.segment_BS, layer.everywhere)
            how = implementation(s, compute, packed is not None)
            y_BSNH = attend(q_BSNH, k_BSKH, v_BSKH, bias_BNST, scale, how, sight, s.window)
        last, place = {"std": init.std, "times": init.last}, residual(s.sequence_parallel)
        return Einsum(queries, embed, s.bias, self.policy, place, **last, name="o")(y_BSNH)

    def look_back(
        self, q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, bias_BNTC: jax.Array | None, scale: float,
        layer: Layer, packed: Packed,
    ) -> jax.Array:  # fmt: skip
        """Attention of new tokens to those in the cache and to each other; the cache then holds them too."""
        held, past = {}, packed.past
        assert past is not None
        for name, new in (("k", k_BTKH), ("v", v_BTKH)):
            old: jax.Array = self.get_variable("cache", name)
            held[name] = jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), past.filled, axis=1)
            self.put_variable("cache", name, held[name])
        index_T, index_C = past.filled + jnp.arange(q_BTNH.shape[1]), jnp.arange(past.segment_BC.shape[1])
        limits = self.shape.window, layer.everywhere, packed.segment_BS, past.segment_BC
        seen = sees(index_T, index_C, *limits)
        return seeing_attention(q_BTNH, held["k"], held["v"], bias_BNTC, scale, seen)

    def relative(self, q_BSNH: jax.Array, scale: float, past: Past | None) -> tuple[jax.Array, jax.Array]:
        """Dai et al. 2019 (Transformer-XL), section 3.3: (q + u, scale * (q + v) . W_r R_{i-j}) with learned u, v."""
        s = self.shape
        queries = (("heads", s.n_heads), ("head_dim", s.d_head))
        vector = Declaration((s.n_heads, s.d_head), (), ("heads", "head_dim"), "position")
        u_NH, v_NH = (use(declare(self, name, vector), *vector.outs) for name in ("content_bias", "position_bias"))
        r_TD = sinusoids(q_BSNH.shape[1] if past is None else past.segment_BC.shape[1], s.d_model)
        by_head = (None, "heads", None)
        r_TNH = Einsum((("embed", s.d_model),), queries, False, self.policy, by_head, role="position", name="r")(r_TD)
        by_distance_BNST = einsum("BSNH,TNH->BNST", add(q_BSNH, v_NH), r_TNH).astype(q_BSNH.dtype)
        if past is not None:
            distance_ST = past.filled + jnp.arange(q_BSNH.shape[1])[:, None] - jnp.arange(r_TD.shape[0])[None, :]
            of_BNST = jnp.maximum(distance_ST, 0)[None, None]
            return add(q_BSNH, u_NH), scale * jnp.take_along_axis(by_distance_BNST, of_BNST, axis=-1)
        split = spec("batch", "heads", None, None)
        return add(q_BSNH, u_NH), scale * local(shift_distances, (split,), split)(by_distance_BNST)


def attention_scale(shape: ModelShape) -> float:
    """1/sqrt(d_head); under muP as 1/d_head, equal to it at the base's d_head (Yang et al. 2022, Def. 4.1)."""
    return shape.d_head**-0.5 if shape.parametrization == "standard" else shape.base_d_head**0.5 / shape.d_head


def sinusoids(seq_len: int, d_model: int) -> jax.Array:
    """Row t encodes distance t: sines then cosines of t / 10000^(2i/D) (Vaswani et al. 2017, section 3.5). [S, D]."""
    half = d_model // 2
    angle = jnp.arange(seq_len)[:, None] * (10_000.0 ** (-jnp.arange(half) / half))[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def shift_distances(x_BNST: jax.Array) -> jax.Array:
    """From [.., i, distance] to [.., i, j] with distance = i - j; entries above the diagonal are meaningless (masked)."""
    batch, heads, queries, distances = x_BNST.shape
    by_key = x_BNST[..., ::-1]  # column c holds distance S - 1 - c
    padded = jnp.pad(by_key, ((0, 0), (0, 0), (0, 0), (1, 0)))
    return padded.reshape(batch, heads, distances + 1, queries)[:, :, 1:].reshape(batch, heads, queries, distances)
