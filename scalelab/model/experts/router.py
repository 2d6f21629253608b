"""Which experts a token goes to, and with which weights, from the router's logits. All of it in fp32.

Shapes: B batch, S sequence, E experts, G groups of experts, K experts of a token.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape

LEAST_SUM = 1e-20  # added to the sum by which weights are divided, as in DeepSeek-V3's code

# Scores of the experts, each above 0, from the logits [..., E].
SCORES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "softmax": lambda logits: jax.nn.softmax(logits, axis=-1),
    "sigmoid": jax.nn.sigmoid,
}


class Routing(NamedTuple):
    """Each token's experts, the weights of their outputs, and the scores from which both come."""

    experts_BSK: jax.Array  # int32, in the order of their scores
    weights_BSK: jax.Array
    scores_BSE: jax.Array


def route_tokens(shape: ModelShape, logits_BSE: jax.Array, bias_E: jax.Array | None) -> Routing:
    """The best `experts_per_token` experts of each token by their scores plus `bias_E`, which no weight contains.

    The bias stands outside the gradient (Wang et al. 2024, arXiv 2408.15664). With groups the best ones are chosen
    first, each judged by the sum of its two best experts (DeepSeek-V3, sec. 2.1.2).
    """
    scores_BSE = SCORES[shape.router_scores](logits_BSE)
    ranks_BSE = jax.lax.stop_gradient(scores_BSE if bias_E is None else scores_BSE + bias_E[None, None])
    if shape.router_groups > 1:
        ranks_BSE = keep_best_groups(ranks_BSE, shape.router_groups, shape.router_groups_per_token)
    experts_BSK = jax.lax.top_k(ranks_BSE, shape.experts_per_token)[1]
    weights_BSK = jnp.take_along_axis(scores_BSE, experts_BSK, axis=-1)
    if shape.router_renormalize:
        weights_BSK = weights_BSK / (jnp.sum(weights_BSK, axis=-1, keepdims=True) + LEAST_SUM)
    return Routing(experts_BSK, weights_BSK * shape.router_scale, scores_BSE)


def keep_best_groups(ranks_BSE: jax.Array, groups: int, per_token: int) -> jax.Array:
    """`ranks_BSE` where an expert is in one of its token's `per_token` best groups, else -inf."""
    ranks_BSGE = ranks_BSE.reshape(*ranks_BSE.shape[:-1], groups, -1)
    best_BSG = jnp.sum(jax.lax.top_k(ranks_BSGE, min(2, ranks_BSGE.shape[-1]))[0], axis=-1)
    chosen_BSG = mark_chosen(jax.lax.top_k(best_BSG, per_token)[1], groups)
    return jnp.where(chosen_BSG[..., None] > 0, ranks_BSGE, -jnp.inf).reshape(ranks_BSE.shape)


def mark_chosen(index: jax.Array, size: int) -> jax.Array:
    """Whether each of `size` is among the last axis of `index`: [..., K] -> [..., size], zeros and ones in fp32."""
    return jnp.sum(jax.nn.one_hot(index, size, dtype=jnp.float32), axis=-2)
