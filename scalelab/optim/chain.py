"""Config -> optax chain. Every number in it may be a tracer, so packed trials share the program."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from scalelab.optim.schedules import Hparams


def adamw(h: Hparams, lr: jax.Array, multipliers: Any, decay: Any) -> optax.GradientTransformation:
    """Clip, Adam (Kingma & Ba 2015, Alg. 1), LR multipliers, decoupled decay, LR.

    The decay is not multiplied: LR x decay stays the same over widths, as CompleteP (Dey et al. 2025, Table 1) asks.
    `multipliers` and `decay` are trees like the parameters: floats and bools.
    """
    return optax.chain(
        _clip(h["clip_norm"]),
        optax.scale_by_adam(h["beta1"], h["beta2"], h["eps"]),
        _scale_each(multipliers),
        optax.add_decayed_weights(h["weight_decay"], mask=decay),
        optax.scale_by_learning_rate(lr),
    )


def _clip(most: jax.Array) -> optax.GradientTransformation:
    """Scale all gradients by min(1, most / global norm); optax's own divides every element, which costs 2 % of a step."""

    def clip(grads: Any, _: Any) -> Any:
        factor = jnp.minimum(1.0, most / optax.tree.norm(grads))
        return jax.tree.map(lambda g: factor * g, grads)

    return optax.stateless(clip)


def _scale_each(multipliers: Any) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, _: jax.tree.map(lambda u, m: m * u, updates, multipliers))


OPTIMIZERS = {"adamw": adamw}
