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


WAYS: dict[str, Callable[[jax.Array, Routing, Weights, Activation], jax.Array]] = {"dense": dense}
CHOOSERS: dict[str, Callable[[str], str]] = {"auto": lambda platform: "dense"}  # values that choose one, by platform


def choose_way(asked: str, platform: str) -> str:
    """The name in WAYS of `model.expert_products` on this platform."""
    return CHOOSERS[asked](platform) if asked in CHOOSERS else asked
