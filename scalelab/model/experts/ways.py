"""How tokens are multiplied with their experts, by name. Every way gives the same sums.

Shapes: B batch, S sequence, D d_model, E experts, F d_expert, K experts of a token.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from scalelab.model.experts.router import Routing

# The experts' weights, each an fp32 array with a leading axis of experts, and their activation.
Weights = dict[str, jax.Array]
Activation = Callable[..., jax.Array]


def dense(x_BSD: jax.Array, routing: Routing, weights: Weights, activation: Activation) -> jax.Array:
    """All experts on all tokens, those that are not a token's with weight zero."""
    share_BSE = jnp.sum(
        jax.nn.one_hot(routing.experts_BSK, weights["up"].shape[0]) * routing.weights_BSK[..., None], axis=-2
    )

    def multiply(pattern: str, x: jax.Array, name: str) -> jax.Array:
        w = weights[name].astype(x.dtype)
        return jnp.einsum(pattern, x, w, preferred_element_type=jnp.float32).astype(x.dtype)

    inner = [multiply("bsd,edf->bsef", x_BSD, name) for name in ("up", "gate") if name in weights]
    out_BSED = multiply("bsef,efd->bsed", activation(*inner), "down")
    return jnp.einsum("bse,bsed->bsd", share_BSE, out_BSED.astype(jnp.float32)).astype(x_BSD.dtype)


def ragged(x_BSD: jax.Array, routing: Routing, weights: Weights, activation: Activation) -> jax.Array:
    """Each token with its own experts: rows sorted by expert, and one ragged product.

    jax 0.10.2 makes a dense product of it on CPUs and GPUs.
    """
    n_experts, per_token = weights["up"].shape[0], routing.experts_BSK.shape[-1]
    expert_R = routing.experts_BSK.reshape(-1)
    order_R = jnp.argsort(expert_R)
    token_R, sizes_E = order_R // per_token, jnp.bincount(expert_R, length=n_experts)
    rows_RD = x_BSD.reshape(-1, x_BSD.shape[-1])[token_R]

    def multiply(rows: jax.Array, name: str) -> jax.Array:
        w = weights[name].astype(rows.dtype)
        return jax.lax.ragged_dot(rows, w, sizes_E, preferred_element_type=jnp.float32).astype(rows.dtype)

    inner = [multiply(rows_RD, name) for name in ("up", "gate") if name in weights]
    out_RD = multiply(activation(*inner), "down").astype(jnp.float32)
    weighted_RD = out_RD * routing.weights_BSK.reshape(-1)[order_R][:, None]
    sums_TD = jnp.zeros((x_BSD.shape[0] * x_BSD.shape[1], x_BSD.shape[2])).at[token_R].add(weighted_RD)
    return sums_TD.reshape(x_BSD.shape).astype(x_BSD.dtype)


Way = Callable[[jax.Array, Routing, Weights, Activation], jax.Array]
WAYS: dict[str, Way] = {"dense": dense, "ragged": ragged}
CHOOSERS: dict[str, Callable[[str], str]] = {"auto": lambda platform: "dense"}  # values that choose one, by platform


def choose_way(asked: str, platform: str) -> str:
    """The name in WAYS of `model.expert_products` on this platform."""
    return CHOOSERS[asked](platform) if asked in CHOOSERS else asked
