"""Learning-rate schedules: pure functions of a traced step and traced hparams.

optax's own joins branch on Python numbers; these don't, so one compilation serves every horizon.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

Hparams = Mapping[str, jax.Array]


def warmup(step: jax.Array, h: Hparams) -> jax.Array:
    """Linear from peak / warmup_steps at step 0 to the peak at step warmup_steps - 1; a factor in (0, 1]."""
    return jnp.minimum(1.0, (step + 1.0) / jnp.maximum(h["warmup_steps"], 1.0))


def cosine(step: jax.Array, h: Hparams) -> jax.Array:
    """LR of step 0, 1, …: warm-up, then half a cosine to final_share of the peak at `steps` (Loshchilov & Hutter 2017)."""
    progress = (step - h["warmup_steps"]) / jnp.maximum(h["steps"] - h["warmup_steps"], 1.0)
    fall = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(progress, 0.0, 1.0)))
    return h["peak_lr"] * warmup(step, h) * (h["final_share"] + (1.0 - h["final_share"]) * fall)


def wsd(step: jax.Array, h: Hparams) -> jax.Array:
    """LR of step 0, 1, …: warm-up, constant, then linear over the last decay_share of `steps` (Hu et al. 2024, eq. 2)."""
    decay_steps = jnp.maximum(h["decay_share"] * h["steps"], 1.0)
    left = jnp.clip((h["steps"] - step) / decay_steps, 0.0, 1.0)
    return h["peak_lr"] * warmup(step, h) * (h["final_share"] + (1.0 - h["final_share"]) * left)


SCHEDULES = {"cosine": cosine, "wsd": wsd}
