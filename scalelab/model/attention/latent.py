"""Multi-head latent attention (DeepSeek-V2, 2024, sec. 2.1): keys and values of all heads are made of one latent.

A token's latent has `d_kv_latent` numbers, far fewer than its keys and values. The position stands apart, in
`d_head_rope` more numbers of each query and in one key that all heads share; a latent that held it could not be cached.
With `d_q_latent` the queries are made of a latent of their own.

A cache holds the latents and the shared keys alone. Then the products that make keys and values of them are absorbed:
queries are multiplied with the keys' matrix, and what was attended to with the values' (sec. 2.1.2), so that attention
has one key head, the latent itself.

Shapes: B batch, S sequence, T new tokens, D d_model, N heads, H d_head, R d_head_rope, V d_head_value, C the latent.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config import ModelShape
from scalelab.model.attention.attention import POSITIONS, Attention, Placed
from scalelab.model.attention.documents import PackedDocuments
from scalelab.model.attention.plain import LogitRules, masked_attention
from scalelab.model.layers import Axes, Einsum, Norm, add_bias, projection_init
from scalelab.model.products.parts import GatheredSequence
from scalelab.model.products.product import share_among_products
from scalelab.model.stacks import LayerFlags
from scalelab.precision.policy import array_dtype
from scalelab.precision.products import fp32_einsum
from scalelab.sharding import activation_spec, has_explicit_mesh, residual_axes

UP = "kv_up"  # the matrix that makes keys and values of a latent


class LatentAttention(Attention):
    """Multi-head latent attention of one block."""

    @nn.compact
    def __call__(
        self,
        x_BSD: jax.Array | GatheredSequence,
        layer: LayerFlags,
        packed: PackedDocuments | None,
        due: jax.Array | None,
    ) -> jax.Array:
        """x_BSD -> [B, S, D], as `Attention`."""
        s, init = self.shape, projection_init(self.shape)
        q_BSNH = self.make_queries(x_BSD)
        token_BSE = self.compress("kv_down", x_BSD, s.d_kv_latent + s.d_head_rope)
        latent_BSC, k_BS1R = token_BSE[..., : s.d_kv_latent], token_BSE[..., None, s.d_kv_latent :]
        latent_BSC = self.norm_latent("kv_norm", latent_BSC)
        placed = POSITIONS[s.position](self, q_BSNH, k_BS1R, layer, packed)
        if packed is not None and packed.past is not None:
            y_BSNV = self.attend_to_latents(placed, latent_BSC, layer, packed)
        else:
            kv_BSNH = self.expand(UP, latent_BSC, s.d_head + s.d_value)
            k_BSNH = join_keys(kv_BSNH[..., : s.d_head], placed.k_BSKH)
            y_BSNV = self.attend(placed._replace(k_BSKH=k_BSNH), kv_BSNH[..., s.d_head :], layer, packed, due)
        values, place = (("heads", s.n_heads), ("head_dim", s.d_value)), residual_axes(s.sequence_parallel)
        embed = (("embed", s.d_model),)
        out = Einsum(values, embed, s.bias, self.policy, place, std=init.std, times=init.last, name="o")
        return out(y_BSNV)

    def make_queries(self, x_BSD: jax.Array | GatheredSequence) -> jax.Array:
        """x_BSD -> [B, S, N, H + R], by way of a latent where queries have one."""
        s = self.shape
        if not s.d_q_latent:
            return self.by_head("q", share_among_products(x_BSD, self.policy), ("embed", s.d_model), s.d_key)
        return self.expand("q_up", self.norm_latent("q_norm", self.compress("q_down", x_BSD, s.d_q_latent)), s.d_key)

    def compress(self, name: str, x_BSD: jax.Array | GatheredSequence, size: int) -> jax.Array:
        """x_BSD -> [B, S, size]; whole on every device along `tensor`, which splits heads."""
        axes: tuple[Axes, Axes] = (("embed", self.shape.d_model),), (("compressed", size),)
        return self.product(name, axes, ("batch", "context", None))(x_BSD)

    def norm_latent(self, name: str, latent_BSC: jax.Array) -> jax.Array:
        """The latent's RMSNorm (DeepSeek-V2, sec. 3.1.2)."""
        axes = (("latent", latent_BSC.shape[-1]),)
        return Norm("rmsnorm", axes, self.shape.norm_eps, array_dtype(self.policy.compute), name=name)(latent_BSC)

    def expand(self, name: str, latent_BSC: jax.Array, width: int) -> jax.Array:
        """A latent -> [B, S, N, width]."""
        axis = "latent", latent_BSC.shape[-1]
        return self.by_head(name, share_among_products(latent_BSC, self.policy), axis, width)

    def by_head(self, name: str, x: jax.Array | GatheredSequence, axis: tuple[str, int], width: int) -> jax.Array:
        """[B, S, axis] -> [B, S, N, width]."""
        heads = (("heads", self.shape.n_heads), ("head_dim", width))
        return self.product(name, ((axis,), heads), ("batch", "context", "heads", None))(x)

    def product(self, name: str, axes: tuple[Axes, Axes], place: tuple[str | None, ...]) -> Einsum:
        """One of the products before attention."""
        s = self.shape
        return Einsum(*axes, s.bias or s.qkv_bias, self.policy, place, std=projection_init(s).std, name=name)

    def attend_to_latents(
        self, placed: Placed, latent_BTC: jax.Array, layer: LayerFlags, packed: PackedDocuments
    ) -> jax.Array:
        """Attention of new tokens to cached latents and to each other's; the new ones are added to the cache.

        A bias of the keys adds one number to all logits of a query, which the softmax does not see; that of the values
        is added to what was attended to, as the weights sum to one.
        """
        s, past = self.shape, packed.past
        up: dict[str, jax.Array] = self.get_variable("params", UP)
        assert past is not None
        keys_CNH, values_CNV = jnp.split(up["w"].astype(latent_BTC.dtype), [s.d_head], axis=-1)
        q_BTNH, q_BTNR = jnp.split(placed.q_BSNH, [s.d_head], axis=-1)
        q_BTNC = fp32_einsum("btnh,cnh->btnc", q_BTNH, keys_CNH).astype(q_BTNR.dtype)
        token_BT1E = jnp.concatenate([latent_BTC[:, :, None], placed.k_BSKH], axis=-1)
        cached = self.extend_cache("latent", token_BT1E, past)
        q_BTNE, mask = jnp.concatenate([q_BTNC, q_BTNR], axis=-1), self.cache_mask(layer, packed, past)
        rules = LogitRules(mask, None, s.attention_softcap)
        y_BTNC = masked_attention(q_BTNE * placed.scale, cached, cached[..., : s.d_kv_latent], rules)
        y_BTNV = fp32_einsum("btnc,cnv->btnv", y_BTNC, values_CNV).astype(y_BTNC.dtype)
        return add_bias(y_BTNV, up["b"][:, s.d_head :]) if "b" in up else y_BTNV

    @staticmethod
    def cache_sizes(shape: ModelShape) -> dict[str, tuple[int, int]]:
        """A token's latent and the key that all heads share, as one head."""
        return {"latent": (1, shape.d_kv_latent + shape.d_head_rope)}


def join_keys(k_BSNH: jax.Array, k_BS1R: jax.Array) -> jax.Array:
    """The keys of each head, and behind each the one that they share: [B, S, N, H + R]."""
    place = activation_spec("batch", "context", "heads", None) if has_explicit_mesh() else None
    shared = jnp.broadcast_to(k_BS1R, (*k_BSNH.shape[:3], k_BS1R.shape[-1]), out_sharding=place)
    return jnp.concatenate([k_BSNH, shared], axis=-1)


def attention_kind(shape: ModelShape) -> type[Attention]:
    """The attention of a model of this shape."""
    return LatentAttention if shape.d_kv_latent else Attention
