"""A decoder-only transformer as three pure functions of a shape: `declarations`, `init` and `loss` (and `logits`).

Blocks are pre-norm and scanned; their parameters are stacked along a leading `layers` axis.
Shapes: B batch, S sequence, D d_model, V vocab.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config import ModelShape
from scalelab.model.attention import Attention
from scalelab.model.declare import Declaration, split
from scalelab.model.layers import MLP, Norm, Table
from scalelab.model.loss import LossSums, cross_entropy

Params = dict[str, Any]

REMAT = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


MOST_UNROLLED = 12  # blocks; beyond, compiling takes longer than a CPU run gains


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Returns (x, None): `nn.scan`'s carry and output."""

    shape: ModelShape
    dtype: Any

    @nn.compact
    def __call__(self, x_BSD: jax.Array, _: None) -> tuple[jax.Array, None]:
        """x_BSD -> (x_BSD, None)."""
        s = self.shape
        norm = functools.partial(Norm, s.norm, ("embed", s.d_model), s.norm_eps, self.dtype)
        x_BSD = x_BSD + Attention(s, self.dtype, name="attention")(norm(name="attention_norm")(x_BSD))
        mlp = MLP(s.mlp, s.d_model, s.d_ff, s.bias, self.dtype, name="mlp")
        return x_BSD + mlp(norm(name="mlp_norm")(x_BSD)), None


class Transformer(nn.Module):
    """Tokens -> (final hidden states in `dtype`, head [D, V] in fp32): the loss multiplies them chunk by chunk."""

    shape: ModelShape
    dtype: Any

    @nn.compact
    def __call__(self, tokens_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
        """tokens_BS (int) -> (x_BSD, head_DV)."""
        s = self.shape
        embed = Declaration((s.vocab_size, s.d_model), ("vocab",), ("embed",), std=s.init_std)
        embed_VD = Table(embed, name="embed")()
        x_BSD = embed_VD[tokens_BS]  # fp32 up to the sum, so that a row's gradient is summed over tokens in fp32
        if s.position == "learned":
            positions = Declaration((s.seq_len, s.d_model), ("seq",), ("embed",), "position", std=s.init_std)
            positions_SD = Table(positions, name="positions")()[: tokens_BS.shape[1]]
            x_BSD = x_BSD + jnp.broadcast_to(positions_SD, x_BSD.shape)
        block = Block if REMAT[s.remat] is None else nn.remat(Block, policy=REMAT[s.remat], prevent_cse=False)
        stack = nn.scan(
            block, variable_axes={"params": 0}, split_rngs={"params": True}, length=s.n_layers,
            unroll=layers_at_once(s),
            metadata_params={nn.PARTITION_NAME: "layers"},
        )  # fmt: skip
        x_BSD, _ = stack(s, self.dtype, name="blocks")(x_BSD.astype(self.dtype), None)
        x_BSD = Norm(s.norm, ("embed", s.d_model), s.norm_eps, self.dtype, name="final_norm")(x_BSD)
        head = Declaration((s.d_model, s.vocab_size), ("embed",), ("vocab",), std=s.init_std)
        head_DV = embed_VD.T if s.tied_head else Table(head, name="head")()
        return x_BSD * head_multiplier(s), head_DV


def layers_at_once(shape: ModelShape) -> int:
    """All blocks in one piece on CPU while there are few, one by one elsewhere: the same arithmetic either way.

    XLA:CPU makes one pass over the stacked parameters for each turn of a loop, which costs a fifth of a step
    (experiments/benchmarks); accelerators don't, and there the loop keeps compile time independent of depth.
    """
    return shape.n_layers if jax.default_backend() == "cpu" and shape.n_layers <= MOST_UNROLLED else 1


def head_multiplier(shape: ModelShape) -> float:
    """muP divides the logits by the width ratio (Yang et al. 2022, Tables 8 and 9); sp leaves them."""
    return 1.0 if shape.parametrization == "sp" else shape.base_width / shape.d_model


def _init(shape: ModelShape, key: jax.Array) -> Any:
    tokens_BS = jnp.zeros((1, shape.seq_len), jnp.int32)
    return Transformer(shape, jnp.float32).init(key, tokens_BS)["params"]


def init(shape: ModelShape, key: jax.Array) -> Params:
    """Fresh fp32 parameters: a nested dict of arrays, block parameters stacked along a leading `layers` axis."""
    return split(_init(shape, key))[0]


@functools.cache
def declarations(shape: ModelShape) -> Params:
    """The declaration of every parameter, as a nested dict of the same structure. Nothing is computed."""
    return split(jax.eval_shape(functools.partial(_init, shape), jax.random.key(0)))[1]


def _hidden(shape: ModelShape, params: Params, tokens_BS: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    return cast(tuple[jax.Array, jax.Array], Transformer(shape, dtype).apply({"params": params}, tokens_BS))


def logits(shape: ModelShape, params: Params, tokens_BS: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    """Next-token logits [B, S, V] in fp32."""
    x_BSD, head_DV = _hidden(shape, params, tokens_BS, dtype)
    logits_BSV = jnp.dot(x_BSD, head_DV.astype(dtype), preferred_element_type=jnp.float32)
    cap = shape.logit_softcap
    return cap * jnp.tanh(logits_BSV / cap) if cap else logits_BSV


def loss(
    shape: ModelShape, params: Params, tokens_BS: jax.Array, targets_BS: jax.Array, z_weight: jax.Array | float,
    dtype: Any = jnp.float32, chunk: int = 0,
) -> LossSums:  # fmt: skip
    """Summed loss in nats over the targets that are not negative, and their count; `chunk` as in `cross_entropy`."""
    x_BSD, head_DV = _hidden(shape, params, tokens_BS, dtype)
    x_TD = x_BSD.reshape(-1, shape.d_model)
    z_weight, targets_T = jnp.asarray(z_weight, jnp.float32), targets_BS.reshape(-1)
    return cross_entropy(x_TD, head_DV, targets_T, z_weight, shape.logit_softcap, chunk)
