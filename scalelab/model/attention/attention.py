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
from scalelab.model.attention.documents import CachePast, PackedDocuments
from scalelab.model.attention.kernels import choose_kernel, compute_attention, program_kernel
from scalelab.model.attention.logit_measures import measure_logits
from scalelab.model.attention.mask import MaskInfo, Scoring, attention_mask
from scalelab.model.attention.order import token_positions
from scalelab.model.attention.plain import LogitRules, attention_logits, masked_attention
from scalelab.model.attention.positions.relative import RelativeInputs, relative_scores, sinusoidal_encoding
from scalelab.model.attention.positions.rotary import layer_frequencies, rotate_part
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
        self,
        x_BSD: jax.Array | GatheredSequence,
        layer: LayerFlags,
        packed: PackedDocuments | None,
        due: jax.Array | None,
    ) -> jax.Array:
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
            y_BSNH = self.attend(placed, v_BSKH, layer, packed, due)
        place = residual_axes(s.sequence_parallel)
        out = Einsum(queries, embed, s.bias, self.policy, place, std=init.std, times=init.last, name="o")
        return out(y_BSNH)

    def attend(
        self,
        placed: Placed,
        v_BSKH: jax.Array,
        layer: LayerFlags,
        packed: PackedDocuments | None,
        due: jax.Array | None,
    ) -> jax.Array:
        """Attention of a whole sequence by the kernel of this program."""
        s, mask_info = self.shape, MaskInfo(packed and packed.segment_BS, layer.is_global)
        scoring = Scoring(placed.scale, mask_info, s.window, placed.relative, s.attention_softcap)
        self.observe_logits(placed.q_BSNH, placed.k_BSKH, scoring, due)
        kernel = choose_kernel(s, array_dtype(self.policy.compute), packed is not None)
        return compute_attention(placed.q_BSNH, placed.k_BSKH, v_BSKH, scoring, program_kernel(kernel, s.attention))

    def leave_unplaced(
        self, q_BSNH: jax.Array, k_BSKH: jax.Array, layer: LayerFlags, packed: PackedDocuments | None
    ) -> Placed:
        """Queries and keys as they are: positions are known from the embedding, or not at all."""
        del layer, packed
        return Placed(q_BSNH, k_BSKH, attention_scale(self.shape), None)

    def rotate(self, q_BSNH: jax.Array, k_BSKH: jax.Array, layer: LayerFlags, packed: PackedDocuments | None) -> Placed:
        """Queries and keys under RoPE; of `d_key` numbers the first `d_rotated`, of a latent's queries the last."""
        length = q_BSNH.shape[1]
        position_BS = rope_positions(packed.position_BS if packed else token_positions(length), layer, length)
        frequency_P, logit_factor = layer_frequencies(self.shape, layer)
        by_share = self.shape.rope_share < 1
        q_BSNH, k_BSKH = (rotate_part(x, frequency_P, position_BS, by_share) for x in (q_BSNH, k_BSKH))
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
        past, (q_BTNH, k_BTKH, scale, relative) = packed.past, placed
        assert past is not None
        k_BCKH, v_BCKH = (self.extend_cache(name, x, past) for name, x in (("k", k_BTKH), ("v", v_BTKH)))
        bias_BNTC = None if relative is None else relative_scores(relative, scale, past.filled)
        rules = LogitRules(self.cache_mask(layer, packed, past), bias_BNTC, self.shape.attention_softcap)
        return masked_attention(q_BTNH * scale, k_BCKH, v_BCKH, rules)

    def extend_cache(self, name: str, new_BTKH: jax.Array, past: CachePast) -> jax.Array:
        """The cache of this name [B, C, K, H] with the new tokens in it, which it also keeps."""
        old: jax.Array = self.get_variable("cache", name)
        cache = jax.lax.dynamic_update_slice_in_dim(old, new_BTKH.astype(old.dtype), past.filled, axis=1)
        self.put_variable("cache", name, cache)
        return cache

    def cache_mask(self, layer: LayerFlags, packed: PackedDocuments, past: CachePast) -> jax.Array:
        """Where new tokens may attend to the cache's, themselves included: [B, T, C]."""
        index_T, index_C = past.filled + jnp.arange(packed.segment_BS.shape[1]), jnp.arange(past.segment_BC.shape[1])
        limits = self.shape.window, layer.is_global, packed.segment_BS, past.segment_BC
        return attention_mask(index_T, index_C, *limits)

    @staticmethod
    def cache_sizes(shape: ModelShape) -> dict[str, tuple[int, int]]:
        """{what the cache holds of a token in a layer: (heads, numbers of each)}."""
        return dict.fromkeys(("k", "v"), (shape.n_kv_heads, shape.d_head))

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
    """1/sqrt(d_key); under muP proportional to 1/d_key, equal at the base's d_head (Yang et al. 2022, Def. 4.1)."""
    base = shape.base_d_head * (shape.d_key / shape.d_head)  # with a latent, both parts of a key grow alike
    return base**0.5 / shape.d_key if PARAMETRIZATIONS[shape.parametrization].width else shape.d_key**-0.5
