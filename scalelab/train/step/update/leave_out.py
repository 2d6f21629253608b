"""A step without the micro-batches that are not finite, under `guard.skip=micro_batch`."""

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Static
from scalelab.hardware.tactics.turn import run_if
from scalelab.model.attention import documents
from scalelab.model.attention.documents import Batch
from scalelab.parallel import pipeline
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.train.step.gradients import (
    LeftOut,
    PassInputs,
    Summed,
    differentiate_micro_batch,
    scaled_gradients,
    split_micro_batches,
)

NO_TOKEN = -1  # neither read nor predicted: what a step's rows hold that it does without


def leave_out_bad(
    static: Static, inputs: PassInputs, batch: Batch, due: jax.Array | None, summed: Summed, allowed: jax.Array
) -> tuple[Summed, LeftOut]:
    """`summed` of the whole batch; where it is not finite and `allowed`, that of the micro-batches that are.

    These are run twice more, first each by itself to see whether it is finite, then without the others, so that their
    gradient is the mean over the tokens that remain. A step that is finite runs nothing of this. Where no micro-batch
    is finite, `summed` stays as it is. An overflow that the loss scale may have made is left to the loss scale.

    The other arguments are those of `scaled_gradients`.
    """
    n, tokens = static.accumulate, batch.tokens
    run = jnp.int32(n) if batch.n_micro is None else batch.n_micro
    scale = jnp.float32(1.0) if inputs.loss_factor is None else inputs.loss_factor
    held = inputs._replace(params=pipeline.into_slots(static, inputs.params))
    parts = split_micro_batches(static, tokens)

    def look(i: jax.Array, kept: jax.Array) -> jax.Array:
        part = Batch(parts[i], batch.ends)
        counted = jnp.maximum(jnp.sum(documents.prediction_targets(*part[:2]) >= 0), 1)
        return kept.at[i].set(_is_usable(differentiate_micro_batch(static, held, part, counted / scale), scale))

    def without(summed: Summed, remaining: jax.Array) -> Summed:
        del summed
        return scaled_gradients(static, inputs, batch._replace(tokens=remaining), due)

    with product_precision(POLICIES[static.precision]):
        looks = jnp.where(allowed & ~_is_usable(summed, scale), run, 0)
        kept = jax.lax.fori_loop(0, looks, look, jnp.ones(n, bool))
    out = (jnp.arange(n) < run) & ~kept
    out &= jnp.any((jnp.arange(n) < run) & kept)
    remaining = jnp.where(jnp.tile(out, len(tokens) // n)[:, None], NO_TOKEN, tokens)
    summed = run_if(jnp.any(out), without, summed, remaining)
    return summed, LeftOut(
        jnp.sum(out, dtype=jnp.int32), jnp.where(jnp.any(out), jnp.argmax(out), -1).astype(jnp.int32)
    )


def _is_usable(summed: Summed, scale: jax.Array) -> jax.Array:
    """Whether loss and gradient are finite, or the gradient alone is not and the loss scale may be why."""
    finite = jnp.isfinite(summed[0].nll)
    return finite & (jnp.isfinite(optax.tree.norm(summed[1])) | (scale > 1))
