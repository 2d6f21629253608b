"""Causal self-attention with grouped queries, QK-norm and four ways to know a position.

Shapes: B batch, S queries, T keys, D d_model, N heads, K key/value heads, G = N / K queries a key, H d_head.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config import ModelShape
from scalelab.config.choices import PARAMETRIZATIONS
from scalelab.model.attention.documents import PackedDocuments
from scalelab.model.attention.kernels import choose_kernel, compute_attention, program_kernel
from scalelab.model.attention.logit_measures import measure_logits
from scalelab.model.attention.mask import MaskInfo, Scoring, attention_mask
from scalelab.model.attention.order import token_positions
from scalelab.model.attention.plain import attention_logits, masked_attention
from scalelab.model.attention.relative import RelativeInputs, relative_scores, sinusoidal_encoding
from scalelab.model.attention.rotary import apply_rope, layer_frequencies
from scalelab.model.declare import Declaration, declare_parameter
from scalelab.model.layers import Einsum, Norm, add_bias, projection_init
from scalelab.model.products.parts import GatheredSequence
from scalelab.model.products.product import share_among_products
from scalelab.model.stacks import LayerFlags, rope_positions
from scalelab.model.sums import measures
from scalelab.precision.policy import Policy, array_dtype
from scalelab.sharding import gather_weight, residual_axes, vary_like

QK_NORM_AXES = {"head": 1, "projection": 0}  # the first of (heads, head_dim) that the norm is over
LOGITS_NAME = "attention_logits"  # name of the sown intermediate, see `activations.collect_activations`


class Placed(NamedTuple):
    """Queries, keys, the scale of their products, and scores of distances, under an encoding of positions."""

    q_BSNH: jax.Array
    k_BSKH: jax.Array
    scale: float
    relative: RelativeInputs | None


class Attention(nn.Module):
    """Multi-head attention of one block."""

    shape: ModelShape
    policy: Policy

    @nn.compact
    def __call__(
        self, x_BSD: jax.Array | GatheredSequence, layer: LayerFlags, packed: PackedDocuments | None,
        due: jax.Array | None,
    ) -> jax.Array:  # fmt: skip
        """x_BSD -> [B, S, D]; position i attends to positions up to i, with `packed` only of its document.

        With `due` (see `sums/measures.py`) it also measures its logits and the entropy of its weights.
        """
        s, compute = self.shape, array_dtype(self.policy.compute)
        embed, queries = (("embed", s.d_model),), (("heads", s.n_heads), ("head_dim", s.d_head))
        keys = (("kv_heads", s.n_kv_heads), ("head_dim", s.d_head))
        by_head, by_key = ("batch", "context", "heads", None), ("batch", "context", "kv_heads", None)
        bias, init = s.bias or s.qkv_bias, projection_init(s)
        x_BSD = share_among_products(x_BSD, self.policy)
        q_BSNH = Einsum(embed, queries, bias, self.policy, by_head, std=init.std, name="q")(x_BSD)
        k_BSKH = Einsum(embed, keys, bias, self.policy, by_key, std=init.std, name="k")(x_BSD)
        v_BSKH = Einsum(embed, keys, bias, self.policy, by_key, std=init.std, name="v")(x_BSD)
        if s.qk_norm:
            first = QK_NORM_AXES[s.qk_norm_over]
            q_BSNH = Norm("rmsnorm", queries[first:], s.norm_eps, compute, name="q_norm")(q_BSNH)
            k_BSKH = Norm("rmsnorm", keys[first:], s.norm_eps, compute, name="k_norm")(k_BSKH)
        placed = POSITIONS[s.position](self, q_BSNH, k_BSKH, layer, packed)
        if packed is not None and packed.past is not None:
            y_BSNH = self.attend_to_cache(placed, v_BSKH, layer, packed)
        else:
            mask_info = MaskInfo(packed and packed.segment_BS, layer.is_global)
            scoring = Scoring(placed.scale, mask_info, s.window, placed.relative)
            self.observe_logits(placed.q_BSNH, placed.k_BSKH, scoring, due)
            kernel = program_kernel(choose_kernel(s, compute, packed is not None), s.attention)
            y_BSNH = compute_attention(placed.q_BSNH, placed.k_BSKH, v_BSKH, scoring, kernel)
        place = residual_axes(s.sequence_parallel)
        out = Einsum(queries, embed, s.bias, self.policy, place, std=init.std, times=init.last, name="o")
        return out(y_BSNH)

    def leave_unplaced(
        self, q_BSNH: jax.Array, k_BSKH: jax.Array, layer: LayerFlags, packed: PackedDocuments | None
    ) -> Placed:
        """Queries and keys as they are: positions are known from the embedding, or not at all."""
        del layer, packed
        return Placed(q_BSNH, k_BSKH, attention_scale(self.shape), None)

    def rotate(self, q_BSNH: jax.Array, k_BSKH: jax.Array, layer: LayerFlags, packed: PackedDocuments | None) -> Placed:
        """Queries and keys under RoPE."""
        length = q_BSNH.shape[1]
        position_BS = rope_positions(packed.position_BS if packed else token_positions(length), layer, length)
        frequency_P, logit_factor = layer_frequencies(self.shape, layer)
        q_BSNH, k_BSKH = (apply_rope(x, frequency_P, position_BS) for x in (q_BSNH, k_BSKH))
        if isinstance(logit_factor, jax.Array):
            return Placed((q_BSNH * logit_factor).astype(q_BSNH.dtype), k_BSKH, attention_scale(self.shape), None)
        return Placed(q_BSNH, k_BSKH, attention_scale(self.shape) * logit_factor, None)

    def observe_logits(self, q_BSNH: jax.Array, k_BSKH: jax.Array, scoring: Scoring, due: jax.Array | None) -> None:
        """Record the logits where they are asked for, and with `due` their measures: kernels return neither."""
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", LOGITS_NAME, attention_logits(q_BSNH, k_BSKH, scoring))
        if due is not None:
            zero = measures.like(jnp.zeros(()), q_BSNH)
            start = {"attention_logit_max": zero - jnp.inf, "attention_entropy": zero, "attention_queries": zero}
            measured = measures.when(due, measure_logits, start, q_BSNH, k_BSKH, scoring)
            self.put_variable(measures.COLLECTION, "logits", measured)

    def attend_to_cache(
        self, placed: Placed, v_BTKH: jax.Array, layer: LayerFlags, packed: PackedDocuments
    ) -> jax.Array:
        """Attention of new tokens to the cached ones and to each other; the new ones are added to the cache."""
        cache, past, (q_BTNH, k_BTKH, scale, relative) = {}, packed.past, placed
        assert past is not None
        for name, new in (("k", k_BTKH), ("v", v_BTKH)):
            old: jax.Array = self.get_variable("cache", name)
            cache[name] = jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), past.filled, axis=1)
            self.put_variable("cache", name, cache[name])
        index_T, index_C = past.filled + jnp.arange(q_BTNH.shape[1]), jnp.arange(past.segment_BC.shape[1])
        limits = self.shape.window, layer.is_global, packed.segment_BS, past.segment_BC
        mask = attention_mask(index_T, index_C, *limits)
        bias_BNTC = None if relative is None else relative_scores(relative, scale, past.filled)
        return masked_attention(q_BTNH * scale, cache["k"], cache["v"], bias_BNTC, mask)

    def add_distances(
        self, q_BSNH: jax.Array, k_BSKH: jax.Array, layer: LayerFlags, packed: PackedDocuments | None
    ) -> Placed:
        """q + u, k, (q + v, W_r R) with learned u, v, W_r; R encodes distances (Dai et al. 2019, section 3.3)."""
        del layer
        s, past = self.shape, packed and packed.past
        distances = q_BSNH.shape[1] if past is None else past.segment_BC.shape[1]
        queries = (("heads", s.n_heads), ("head_dim", s.d_head))
        vector = Declaration((s.n_heads, s.d_head), (), ("heads", "head_dim"), "position")
        u_NH, v_NH = (
            gather_weight(declare_parameter(self, name, vector), *vector.outs)
            for name in ("content_bias", "position_bias")
        )
        # In a pipeline's stage a constant must vary over devices as the weights it meets do.
        r_TD = vary_like(sinusoidal_encoding(distances, s.d_model), q_BSNH)
        by_head = (None, "heads", None)
        to_heads = Einsum((("embed", s.d_model),), queries, False, self.policy, by_head, role="position", name="r")
        by_content = add_bias(q_BSNH, u_NH)
        relative = RelativeInputs(add_bias(q_BSNH, v_NH), to_heads(r_TD))
        return Placed(by_content, k_BSKH, attention_scale(s), relative)


# How attention knows positions; `learned` ones are added to the embedding (`transformer.py`).
POSITIONS: dict[str, Callable[..., Placed]] = {
    "rope": Attention.rotate,
    "learned": Attention.leave_unplaced,
    "relative": Attention.add_distances,
    "none": Attention.leave_unplaced,
}


def attention_scale(shape: ModelShape) -> float:
    """1/sqrt(d_head); under muP proportional to 1/d_head, equal at the base's d_head (Yang et al. 2022, Def. 4.1)."""
    follows = PARAMETRIZATIONS[shape.parametrization].width
    return shape.base_d_head**0.5 / shape.d_head if follows else shape.d_head**-0.5
