"""What keeps the load of experts even: a bias on their ranks that moves, or losses; and the router's z-loss.

All losses are sums over single tokens or sequences, so that they are the same however a batch is split
(`sums/block_sums.py`). The loss over a batch (Fedus et al. 2021, Switch, sec. 2.2; Lepikhin et al. 2020, GShard) is a
product of two means over it, the load and the scores. It takes the load of the step before, of the whole batch over
all micro-batches, devices and stages, as a variable: so it is exact however the batch is split, and balances the whole
batch and not each micro-batch (one step late). At the first step the load is even.

Shares of the load sum to 1, as in DeepSeek-V3's equations 17 to 20: an even load gives a loss of `balance_weight`. Code
that counts each of a token's K experts as a whole (transformers' Mixtral and OLMoE) has K times as much.

Shapes: L layers, B batch, S sequence, E experts, K experts of a token.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.model.declare import Variable
from scalelab.model.experts.router import Routing, mark_chosen
from scalelab.model.sums.block_sums import COUNTS

LOAD = "expert_load"  # the count of tokens by expert


def bias_variable(shape: ModelShape) -> Variable:
    """The bias of each expert's rank: moved by `balance_rate` up where its load is below the mean, down above it."""
    return Variable((shape.n_experts,), functools.partial(_move_bias, shape.balance_rate), ("experts",))


def _move_bias(rate: float, bias_LE: jax.Array, sums: Any) -> jax.Array:
    load_LE = sums.block[COUNTS][LOAD]
    return bias_LE + rate * jnp.sign(jnp.mean(load_LE, axis=-1, keepdims=True) - load_LE)


def load_variable(shape: ModelShape) -> Variable:
    """Each expert's share of the last step's load times the number of experts: all 1 where it is even."""
    return Variable((shape.n_experts,), _relative_load, ("experts",), fill=1.0)


def _relative_load(before_LE: jax.Array, sums: Any) -> jax.Array:
    load_LE = sums.block[COUNTS][LOAD]
    mean_L1 = jnp.mean(load_LE, axis=-1, keepdims=True)
    return jnp.where(mean_L1 > 0, load_LE / jnp.where(mean_L1 > 0, mean_L1, 1.0), before_LE)


def router_z_loss(weight: float, logits_BSE: jax.Array) -> jax.Array:
    """`weight` times each token's logsumexp^2 (Zoph et al. 2022, ST-MoE, sec. 3.2)."""
    return weight * jnp.square(jax.nn.logsumexp(logits_BSE, axis=-1))


def batch_loss(shape: ModelShape, routing: Routing, load_E: jax.Array) -> jax.Array:
    """Each token's share [B, S] of the loss over the batch; `load_E`: as `load_variable`."""
    return shape.balance_weight * jnp.sum(_shares(routing.scores_BSE) * load_E[None, None], axis=-1)


def sequence_loss(shape: ModelShape, routing: Routing, counts_BS: jax.Array | None) -> jax.Array:
    """The loss of each token's sequence [B, S] (DeepSeek-V3, equations 17 to 20), over its tokens that count."""
    scores_BSE, chosen_BSE = _shares(routing.scores_BSE), mark_chosen(routing.experts_BSK, shape.n_experts)
    ones_BS = jnp.ones(scores_BSE.shape[:2]) if counts_BS is None else counts_BS.astype(jnp.float32)
    tokens_B1 = jnp.maximum(jnp.sum(ones_BS, axis=1, keepdims=True), 1.0)
    load_BE = jnp.sum(chosen_BSE * ones_BS[..., None], axis=1) / (tokens_B1 * shape.experts_per_token)
    mean_BE = jnp.sum(scores_BSE * ones_BS[..., None], axis=1) / tokens_B1
    loss_B = shape.balance_sequence_weight * shape.n_experts * jnp.sum(load_BE * mean_BE, axis=-1)
    return jnp.broadcast_to(loss_B[:, None], scores_BSE.shape[:2])


def _shares(scores_BSE: jax.Array) -> jax.Array:
    """Scores as shares that sum to 1: of softmax they are."""
    return scores_BSE / jnp.sum(scores_BSE, axis=-1, keepdims=True)
