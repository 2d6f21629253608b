"""Measures of the head, taken by the loss while a chunk's logits exist. () stands for those of a step that takes none.

Shapes: B batch, S sequence, T tokens, D d_model, V vocab.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scalelab.model.measures import NO_TOKEN, HeadMeasures, combine, sum_over_devices, when
from scalelab.sharding import TENSOR_AXIS, activation_spec, vary_like


def measure_head(
    due: jax.Array, logits_TV: jax.Array, log_z_T: jax.Array, correct_T: jax.Array, counts_T: jax.Array
) -> HeadMeasures:
    """Measures of the tokens that count, on this device's part of the vocabulary; `token_nll` is [T]."""

    def measure(logits_TV: jax.Array, log_z_T: jax.Array, correct_T: jax.Array, counts_T: jax.Array) -> HeadMeasures:
        squares_T, most_T = jnp.sum(jnp.square(logits_TV), axis=-1), jnp.max(logits_TV, axis=-1)
        return HeadMeasures(
            jnp.sum(jnp.where(counts_T, squares_T, 0.0)),
            jnp.sum(jnp.where(counts_T, log_z_T, 0.0)),
            jnp.max(jnp.where(counts_T, most_T, -jnp.inf)),
            jnp.where(counts_T, jnp.maximum(log_z_T - correct_T, 0.0), NO_TOKEN),  # rounding may leave less than 0
        )

    by_both, by_token = vary_like(jnp.zeros(()), logits_TV, log_z_T), vary_like(jnp.zeros(()), log_z_T)
    nothing = zero_measures(by_both, by_token)
    nothing = nothing._replace(token_nll=vary_like(jnp.full(counts_T.size, NO_TOKEN), log_z_T))
    return when(due, measure, nothing, logits_TV, log_z_T, correct_T, counts_T)


def zero_measures(by_both: jax.Array, by_token: jax.Array) -> HeadMeasures:
    """Measures of no token, made of zeros that vary over devices as logits and as tokens do; no losses of tokens."""
    return HeadMeasures(by_both, by_token, by_both - jnp.inf, ())


def add_chunk(measured: Any, chunk: Any) -> Any:
    """The measures with those of one more chunk, but for losses of single tokens (`token_losses`)."""
    return combine(measured, chunk and chunk._replace(token_nll=()))


def token_losses(chunk: Any) -> Any:
    """Losses of a chunk's tokens."""
    return chunk.token_nll if chunk else ()


def with_token_losses(measured: Any, nll: Any, targets_BS: jax.Array) -> Any:
    """The measures with the chunks' losses [n, c] as `token_nll` [B, S]."""
    if not measured:
        return measured
    return measured._replace(token_nll=nll.ravel()[: targets_BS.size].reshape(targets_BS.shape))


def measures_specs() -> HeadMeasures:
    """How a mesh splits the measures: only single tokens' losses are split."""
    whole: Any = PartitionSpec()
    return HeadMeasures(whole, whole, whole, activation_spec("batch", "context"))


def sum_between_devices(measured: HeadMeasures, axes: tuple[str, ...]) -> HeadMeasures:
    """Measures of all devices. Of the logits' squares each device has those of its part of the vocabulary."""
    squares, log_z, most, _ = measured
    squares, most = jax.lax.psum(squares, TENSOR_AXIS), jax.lax.pmax(most, TENSOR_AXIS)
    return sum_over_devices(HeadMeasures(squares, log_z, most, ()), axes)
