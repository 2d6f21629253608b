"""Dynamic loss scaling (Micikevicius et al. 2018, section 3.2), with the rules and defaults of torch.amp.GradScaler."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

INIT_SCALE, GROWTH, BACKOFF, INTERVAL = 65536.0, 2.0, 0.5, 2000


class LossScale(NamedTuple):
    """The factor of the loss, and the number of finite steps since it last changed."""

    scale: jax.Array  # fp32, a power of two: dividing by it is exact
    good: jax.Array  # int32


def init_loss_scale() -> LossScale:
    """The loss scale of a new run."""
    return LossScale(jnp.float32(INIT_SCALE), jnp.int32(0))


def update_loss_scale(old: LossScale, finite: jax.Array) -> LossScale:
    """Update the scale after a step: halved if a gradient was not finite, doubled after INTERVAL finite steps in a row.

    The scale never grows to Inf. The trainer skips and counts steps that are not finite.
    """
    good = jnp.where(finite, old.good + 1, 0)
    grown = jnp.where((good == INTERVAL) & jnp.isfinite(old.scale * GROWTH), old.scale * GROWTH, old.scale)
    return LossScale(jnp.where(finite, grown, old.scale * BACKOFF), jnp.where(good == INTERVAL, 0, good))
