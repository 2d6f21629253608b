"""What a logged step read, as the device had it: the metrics `read/…`, which `scalelab diagnose` holds to the data.

    read/targets      predicted tokens that the loss was taken over
    read/equal_rows   sequences of the batch that equal an earlier one
    read/empty_rows   sequences without a target: padding, or nothing but ends of documents
    read/digest       sum over sequences of a hash of their tokens, modulo 2^32; the order of sequences does not matter

On steps that are not logged all but the targets are zeros.
"""

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.model.attention import documents
from scalelab.model.sums.measures import when
from scalelab.train.step.gradients import document_ends
from scalelab.train.step.report.layers import replicate
from scalelab.train.step.variables import Outcome

PREFIX = "read/"
FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # odd numbers: primes of xxHash


def read_metrics(static: Static, outcome: Outcome) -> dict[str, jax.Array]:
    """The metrics `read/…` of a step."""
    nothing = dict.fromkeys(("equal_rows", "empty_rows", "digest"), jnp.uint32(0))
    ends = document_ends(static, outcome.h, outcome.step)

    def measure(tokens_BS: jax.Array) -> dict[str, jax.Array]:
        predicted = documents.prediction_targets(tokens_BS.astype(jnp.int32), ends) >= 0
        hashes = [replicate(hash_rows(tokens_BS, seed)) for seed in range(2)]  # 32 bits alone would be equal by chance
        absent = replicate(jnp.all(documents.visible_tokens(tokens_BS) < 0, axis=1))
        first, second = jax.lax.sort(hashes, num_keys=2)
        equal = jnp.sum((first[1:] == first[:-1]) & (second[1:] == second[:-1]))
        values = {
            "equal_rows": equal - jnp.maximum(jnp.sum(absent) - 1, 0),
            "empty_rows": jnp.sum(~replicate(jnp.any(predicted, axis=1))),
            "digest": jnp.sum(hashes[0], dtype=jnp.uint32),
        }
        return {name: value.astype(jnp.uint32) for name, value in values.items()}

    values = when(outcome.verdict.logged, measure, nothing, outcome.tokens)
    return {PREFIX + "targets": outcome.gradient.sums.tokens} | {PREFIX + name: x for name, x in values.items()}


def hash_rows(tokens_BS: jax.Array, seed: int) -> jax.Array:
    """A hash of each row [B, S], uint32 [B]; arithmetic modulo 2^32."""
    at_S = jnp.arange(tokens_BS.shape[1], dtype=jnp.uint32) * jnp.uint32(FACTORS[1]) + jnp.uint32(seed)
    mixed_BS = mix(tokens_BS.astype(jnp.int32).astype(jnp.uint32) * jnp.uint32(FACTORS[0]) + at_S[None])
    return mix(jnp.sum(mixed_BS, axis=1, dtype=jnp.uint32))


def mix(x: jax.Array) -> jax.Array:
    """Spread the bits of each number (uint32)."""
    x = (x ^ (x >> 16)) * jnp.uint32(FACTORS[2])
    return x ^ (x >> 15)
