"""Cross-entropy of the head, without ever holding the logits of the whole batch.

The gradient of each chunk is taken while its logits exist, in the forward pass: three products a chunk, where
recomputing the logits in the backward would need four, and memory for one chunk either way.

Shapes: T tokens, D d_model, V vocab.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

CHUNK_LOGITS = 2**24  # logits held at once: 64 MiB in fp32; with fewer, re-reading the head's gradient shows


class LossSums(NamedTuple):
    """Sums over the positions that count. `objective` is what is differentiated: nll + z_weight * z."""

    objective: jax.Array
    nll: jax.Array
    tokens: jax.Array


def _chunk_sums(
    x_TD: jax.Array, head_DV: jax.Array, targets_T: jax.Array, z_weight: jax.Array, softcap: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    logits_TV = jnp.dot(x_TD, head_DV.astype(x_TD.dtype), preferred_element_type=jnp.float32)
    if softcap:
        logits_TV = softcap * jnp.tanh(logits_TV / softcap)
    counts_T = targets_T >= 0
    log_z_T = jax.nn.logsumexp(logits_TV, axis=-1)
    correct_T = jnp.take_along_axis(logits_TV, jnp.maximum(targets_T, 0)[:, None], axis=-1)[:, 0]
    nll = jnp.sum(jnp.where(counts_T, log_z_T - correct_T, 0.0))
    z = jnp.sum(jnp.where(counts_T, jnp.square(log_z_T), 0.0))
    return nll + z_weight * z, (nll, jnp.sum(counts_T, dtype=jnp.float32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def cross_entropy(
    x_TD: jax.Array, head_DV: jax.Array, targets_T: jax.Array, z_weight: jax.Array, softcap: float = 0.0, chunk: int = 0
) -> LossSums:
    """Summed loss of next-token logits `x_TD @ head_DV` in nats; targets below zero are ignored.

    `z_weight` scales sum(logsumexp^2) (PaLM, section 5); `softcap` > 0 bounds logits by a tanh (Gemma 2).
    At most `chunk` tokens at a time; 0: as many as CHUNK_LOGITS allows. Only `objective` carries gradients.
    """
    xs, _ = _chunks(x_TD, head_DV, targets_T, chunk)

    def body(sums: LossSums, part: tuple[jax.Array, jax.Array]) -> tuple[LossSums, None]:
        objective, (nll, count) = _chunk_sums(part[0], head_DV, part[1], z_weight, softcap)
        return LossSums(sums.objective + objective, sums.nll + nll, sums.tokens + count), None

    return jax.lax.scan(body, _zero(), xs)[0]


def _zero() -> LossSums:
    return LossSums(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def _chunks(
    x_TD: jax.Array, head_DV: jax.Array, targets_T: jax.Array, chunk: int
) -> tuple[tuple[jax.Array, jax.Array], int]:
    """Cut into equal chunks of at most `chunk`, the last filled up with ignored positions: ([n, c, D], [n, c]), tokens."""
    tokens, d_model = x_TD.shape
    chunk = min(tokens, chunk or max(8, CHUNK_LOGITS // head_DV.shape[1]))
    n = -(-tokens // chunk)
    chunk = -(-tokens // n)  # as even as can be: what is filled up is wasted
    filled = n * chunk - tokens
    x = jnp.pad(x_TD, ((0, filled), (0, 0))).reshape(n, chunk, d_model)
    return (x, jnp.pad(targets_T, (0, filled), constant_values=-1).reshape(n, chunk)), tokens


def _forward(x_TD, head_DV, targets_T, z_weight, softcap, chunk):
    parts, n_tokens = _chunks(x_TD, head_DV, targets_T, chunk)
    gradient = jax.value_and_grad(_chunk_sums, argnums=(0, 1), has_aux=True)

    def body(carry, part):
        sums, head_grad = carry
        (objective, (nll, count)), (x_grad, part_grad) = gradient(part[0], head_DV, part[1], z_weight, softcap)
        sums = LossSums(sums.objective + objective, sums.nll + nll, sums.tokens + count)
        return (sums, head_grad + part_grad), x_grad

    (sums, head_grad), x_grad = jax.lax.scan(body, (_zero(), jnp.zeros_like(head_DV)), parts)
    return sums, (x_grad.reshape(-1, x_TD.shape[1])[:n_tokens], head_grad)


def _backward(softcap, chunk, residuals, cotangents):
    del softcap, chunk
    x_grad, head_grad = residuals
    scale = cotangents.objective
    return (scale * x_grad).astype(x_grad.dtype), scale * head_grad, None, None


cross_entropy.defvjp(_forward, _backward)
