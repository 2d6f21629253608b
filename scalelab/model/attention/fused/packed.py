"""Documents as cuDNN takes them: where each run of tokens starts in memory and how long it is.

cuDNN computes every run as a sequence of its own, so nothing of another document is read. Its softmax sums come run by
run, each padded to a whole sequence: so many runs cost memory (and a look at each of them), and there is a most.

Shapes: B batch, S queries, T keys, N heads, R runs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Runs a sequence of S tokens may have on average over a device's rows: S / 256, as MaxText's 32 of 8,192 tokens. Sums
# of 64 runs are as large as queries of 128 numbers a head.
TOKENS_A_RUN, LEAST_RUNS, MOST_RUNS = 256, 8, 64


class Runs(NamedTuple):
    """Runs of queries and of the keys that they attend to, of all rows in order; those that are not used have length 0.

    Lengths and starts are int32 [R], in tokens, starts from the first row's first token.
    """

    q_length: jax.Array
    k_length: jax.Array
    q_start: jax.Array
    k_start: jax.Array
    number_BS: jax.Array  # each query's run; R where it is in none
    position_BS: jax.Array  # and its position in it
    q_covered: jax.Array | None = None  # [B, S], None: all; queries of no run have no output
    k_covered: jax.Array | None = None  # [B, T]


def most_runs(rows: int, length: int) -> int:
    """The most documents that `rows` sequences of `length` tokens may have together; at least two a row."""
    return rows * max(2, min(length, MOST_RUNS, max(LEAST_RUNS, length // TOKENS_A_RUN)))


def may_exceed(rows: int, length: int) -> bool:
    """Whether sequences can have more documents than `most_runs`."""
    return most_runs(rows, length) < rows * length


def document_runs(segment_BS: jax.Array) -> tuple[Runs, jax.Array]:
    """(the documents of each row, how many there are). Where these are more than `most_runs`, the runs are wrong."""
    rows, length = segment_BS.shape
    tokens, most, index = rows * length, most_runs(rows, length), jnp.arange(rows * length, dtype=jnp.int32)
    begins = (segment_BS != jnp.roll(segment_BS, 1, axis=1)) | (jnp.arange(length) == 0)[None]
    number = jnp.cumsum(begins.reshape(-1), dtype=jnp.int32) - 1
    start = jnp.nonzero(begins.reshape(-1), size=most, fill_value=tokens)[0].astype(jnp.int32)
    lengths = jnp.diff(start, append=jnp.full(1, tokens, jnp.int32))
    position = index - start.at[number].get(mode="clip")
    shape = segment_BS.shape
    return Runs(lengths, lengths, start, start, number.reshape(shape), position.reshape(shape)), number[-1] + 1


def shared_runs(q_segment_BS: jax.Array, k_segment_BT: jax.Array) -> Runs:
    """The one document of each row that goes on from keys to later queries: the end of the keys, the queries' start.

    A document that keys and later queries share holds the keys' last token. A row without one gets a run of a token
    of each, which counts for nothing: so no run is empty.
    """
    (rows, length), keys = q_segment_BS.shape, k_segment_BT.shape[1]
    last_B1 = k_segment_BT[:, -1:]
    q_covered, k_covered = q_segment_BS == last_B1, k_segment_BT == last_B1
    k_covered &= q_covered[:, :1]
    row, unused = jnp.arange(rows, dtype=jnp.int32), jnp.zeros(rows, jnp.int32)
    q_length, k_length = (jnp.maximum(1, jnp.sum(x, axis=1, dtype=jnp.int32)) for x in (q_covered, k_covered))
    return Runs(
        q_length=jnp.concatenate([q_length, unused]),
        k_length=jnp.concatenate([k_length, unused]),
        q_start=jnp.concatenate([row * length, unused + rows * length]),
        k_start=jnp.concatenate([(row + 1) * keys - k_length, unused + rows * keys]),
        number_BS=jnp.where(q_covered, row[:, None], 2 * rows),
        position_BS=jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), q_covered.shape),
        q_covered=q_covered,
        k_covered=k_covered,
    )


def sums_by_run(log_z_BNS: jax.Array, runs: Runs) -> jax.Array:
    """[B, N, S] -> [R, N, S]: a run's sums from its first place on, then zeros."""
    heads, length = log_z_BNS.shape[1:]
    empty = jnp.zeros((runs.q_length.shape[0], heads, length), log_z_BNS.dtype)
    values = log_z_BNS.transpose(0, 2, 1).reshape(-1, heads)
    return empty.at[_places(runs, heads)].set(values, mode="drop", unique_indices=True)


def sums_by_row(log_z_RNS: jax.Array, runs: Runs) -> jax.Array:
    """[R, N, S] -> [B, N, S]; -inf for queries of no run."""
    heads = log_z_RNS.shape[1]
    values = log_z_RNS.at[_places(runs, heads)].get(mode="fill", fill_value=-jnp.inf)
    return values.reshape(*runs.number_BS.shape, heads).transpose(0, 2, 1)


def _places(runs: Runs, heads: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    return runs.number_BS.reshape(-1, 1), jnp.arange(heads)[None], runs.position_BS.reshape(-1, 1)
