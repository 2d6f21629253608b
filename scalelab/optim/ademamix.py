"""AdEMAMix (Pagliardini et al. 2024, Alg. 1): Adam plus alpha times a second, much slower first moment.

The slow moment has no bias correction. Instead alpha and the moment's decay beta3 grow over the whole run (section 3.1:
T_alpha = T_beta3 = steps); beta3 starts at beta1, and its half-life grows evenly.
"""

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Optim
from scalelab.optim.adam import read_second_moment
from scalelab.optim.optimizer import Optimizer, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del declared, o, lr
    return optax.contrib.scale_by_ademamix(
        h.optim.beta1,
        h.optim.beta2,
        lambda count: slow_decay(_run_share(count, h), h),
        lambda count: _run_share(count, h) * h.optim.alpha,
        h.optim.eps,
    )


def _run_share(count: jax.Array, h: Hparams) -> jax.Array:
    """t / steps, at most 1; the paper's t counts from 1, optax's from 0."""
    return jnp.minimum((count + 1.0) / h.train.steps, 1.0)


def slow_decay(share: jax.Array, h: Hparams) -> jax.Array:
    """beta3 after this share of the run: 1 / ln(beta), the half-life, goes linearly from beta1's to beta3's."""
    return jnp.exp(1.0 / ((1.0 - share) / jnp.log(h.optim.beta1) + share / jnp.log(h.optim.beta3)))


ADEMAMIX = Optimizer(_build, bytes_per_scalar(12), second_moment=read_second_moment)
