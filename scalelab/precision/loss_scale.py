"""Dynamic loss scaling (Micikevicius et al. 2018, section 3.2), by the rules of torch.amp.GradScaler and with its defaults."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

INIT_SCALE, GROWTH, BACKOFF, INTERVAL = 65536.0, 2.0, 0.5, 2000


class LossScale(NamedTuple):
    """What the loss is multiplied by, and how many finite steps there were since that last changed."""

    scale: jax.Array  # fp32, a power of two: dividing by it is exact
    good: jax.Array  # int32


def init_loss_scale() -> LossScale:
    """The scale of a fresh run."""
    return LossScale(jnp.float32(INIT_SCALE), jnp.int32(0))


def update_loss_scale(old: LossScale, finite: jax.Array) -> LossScale:
    """After a step: halved where a gradient was not finite, doubled after INTERVAL finite steps in a row.

    It never grows to Inf. The step that was not finite is skipped by the trainer, which counts it.
    """
    good = jnp.where(finite, old.good + 1, 0)
    grown = jnp.where((good == INTERVAL) & jnp.isfinite(old.scale * GROWTH), old.scale * GROWTH, old.scale)
    return LossScale(jnp.where(finite, grown, old.scale * BACKOFF), jnp.where(good == INTERVAL, 0, good))
