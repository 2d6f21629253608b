"""An exponential moving average of the trained parameters.

With decay d the average after t steps is sum_i d^(t-i) p_i / sum_i d^(t-i). It is bias-corrected: the run's start has
no weight in it (Kingma & Ba 2015, section 7.2). The state holds the mean itself, by m_t = m_(t-1) + w_t (p_t - m_(t-1))
with w_t = (1 - d) / (1 - d^t). A stored sum, divided by 1 - d^t when read, would lose digits in fp32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Ema(NamedTuple):
    """`steps` is t, those averaged (int32; skipped ones are none); `mean` is like the parameters, in fp32."""

    steps: jax.Array
    mean: Any


def init_ema(params: Any) -> Ema:
    """Before the first step; w_1 = 1, so these zeros are in no mean."""
    return Ema(jnp.zeros((), jnp.int32), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))


def update_ema(ema: Ema, params: Any, decay: jax.Array) -> Ema:
    """With one more step's `params` (fp32); `decay` in (0, 1) is traced."""
    steps = optax.safe_increment(ema.steps)
    return Ema(steps, optax.incremental_update(params, ema.mean, newest_weight(steps, decay)))


def newest_weight(steps: jax.Array, decay: jax.Array) -> jax.Array:
    """The weight of the newest of so many values in their mean."""
    return (1.0 - decay) / -jnp.expm1(steps * jnp.log(decay))  # 1 - d^t without its cancellation
