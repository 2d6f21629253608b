"""Tokens in the order of their experts: each row is a token for one of its experts, and an expert's rows lie together.

Rows are read and added up by gathers alone, forward and backward: each of the two functions here is the other's
backward.

Shapes: T tokens, K experts of a token, A = T K assignments, E experts, P rows, N trailing features.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.sharding import vary_like


class Layout(NamedTuple):
    """How many rows an expert has: multiples of `align`, with `slack` rows at the end; or each `slots`, if above 0."""

    align: int = 1
    slack: int = 0
    slots: int = 0

    def count_rows(self, assignments: int, experts: int) -> int:
        """The number of rows, whatever the experts' loads are."""
        if self.slots:
            return experts * self.slots
        most = assignments + experts * (self.align - 1)
        return most // self.align * self.align + self.slack


class Rows(NamedTuple):
    """Where each assignment lies. An empty row has the source A, and an assignment that was dropped the position P."""

    source_P: jax.Array
    position_TK: jax.Array
    start_E: jax.Array  # each expert's first row
    size_E: jax.Array  # its number of rows that are not empty

    @property
    def token_P(self) -> jax.Array:
        """The token of each row; T of an empty one."""
        return self.source_P // self.position_TK.shape[1]

    @property
    def expert_P(self) -> jax.Array:
        """The expert of each row, of an empty one that before it."""
        index_P = jnp.arange(self.source_P.size)
        return jnp.searchsorted(self.start_E, index_P, side="right").astype(jnp.int32) - 1

    @property
    def dropped_TK(self) -> jax.Array:
        """Whether an assignment has no row."""
        return self.position_TK == self.source_P.size


def arrange_rows(experts_TK: jax.Array, n_experts: int, layout: Layout, most: int, first: Any = 0) -> Rows:
    """The rows of these assignments; an expert's are in the order of tokens, and those beyond its slots are dropped.

    So are all but `most` of them, from the `first` on. The number `n_experts` stands for no expert: it gets no row.
    """
    expert_A = experts_TK.reshape(-1)
    assignments, rows = expert_A.size, layout.count_rows(most, n_experts)
    if most < assignments:
        is_one_A = expert_A < n_experts
        nth_A = jnp.cumsum(is_one_A) - first
        expert_A = jnp.where(is_one_A & (nth_A > 0) & (nth_A <= most), expert_A, n_experts)
    size_E = jnp.sum(jax.nn.one_hot(expert_A, n_experts, dtype=jnp.int32), axis=0)
    order_A = jnp.argsort(expert_A, stable=True).astype(jnp.int32)
    sorted_A = expert_A[order_A]
    rank_A = jnp.arange(assignments, dtype=jnp.int32) - (jnp.cumsum(size_E) - size_E)[sorted_A]
    if layout.slots:
        start_E = jnp.arange(n_experts, dtype=jnp.int32) * layout.slots
        place_A = jnp.where(rank_A < layout.slots, start_E[sorted_A] + rank_A, rows)
        size_E = jnp.minimum(size_E, layout.slots)
    else:
        aligned_E = -(-size_E // layout.align) * layout.align
        start_E = jnp.cumsum(aligned_E) - aligned_E
        place_A = start_E[sorted_A] + rank_A
    place_A = jnp.where(sorted_A < n_experts, place_A, rows)
    position_A = vary_like(jnp.zeros(assignments, jnp.int32), place_A).at[order_A].set(place_A, unique_indices=True)
    source_P = vary_like(jnp.full(rows, assignments, jnp.int32), place_A).at[place_A].set(order_A, mode="drop")
    return Rows(source_P, position_A.reshape(experts_TK.shape), start_E, size_E)


@jax.custom_vjp
def read_rows(x_TN: jax.Array, index_P: jax.Array, readers_TK: jax.Array) -> jax.Array:
    """x at `index_P`, zero where that is T or more; `readers_TK`: the rows that read each of x, P where none does."""
    del readers_TK
    return x_TN.at[index_P].get(mode="fill", fill_value=0)


@jax.custom_vjp
def add_rows(y_PN: jax.Array, index_P: jax.Array, readers_TK: jax.Array) -> jax.Array:
    """The sum, in fp32, of the rows of y at `readers_TK`: the transpose of `read_rows`."""
    del index_P
    each = [y_PN.at[readers_TK[:, k]].get(mode="fill", fill_value=0) for k in range(readers_TK.shape[1])]
    return functools.reduce(jnp.add, [y.astype(jnp.float32) for y in each]).astype(y_PN.dtype)


def _with_indices(function, x, index_P, readers_TK):
    return function(x, index_P, readers_TK), (index_P, readers_TK)


read_rows.defvjp(functools.partial(_with_indices, read_rows), lambda i, d: (add_rows(d, *i), None, None))
add_rows.defvjp(functools.partial(_with_indices, add_rows), lambda i, d: (read_rows(d, *i), None, None))


def read_tokens(x_TN: jax.Array, rows: Rows) -> jax.Array:
    """Each row's token, zero in empty rows."""
    return read_rows(x_TN, rows.token_P, rows.position_TK)


def add_to_tokens(y_PN: jax.Array, rows: Rows) -> jax.Array:
    """The sum of each token's rows; zero of those that were dropped."""
    return add_rows(y_PN, rows.token_P, rows.position_TK)


def read_weights(weights_TK: jax.Array, rows: Rows) -> jax.Array:
    """Each row's weight [P], zero in empty rows."""
    return read_rows(weights_TK.reshape(-1), rows.source_P, rows.position_TK.reshape(-1, 1))


def count_slots(capacity: float, assignments: int, experts: int) -> int:
    """Rows of an expert at a capacity factor, in whole rows (Fedus et al. 2021, equation 3)."""
    return min(math.ceil(capacity * assignments / experts), assignments)
