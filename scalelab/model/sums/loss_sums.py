"""The sums of a batch's loss, whose objective is what a step differentiates."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.model.sums.block_sums import LOSSES, Sums, combine_sums
from scalelab.model.sums.measures import combine


class LossSums(NamedTuple):
    """Sums over positions that count. Only `objective` is differentiated: nll + z_weight * z + term + losses of blocks.

    `measures` is () unless a training step measures its layers (`measures.py`); `term` is the user's term of the loss
    (`train.loss`) times the tokens, () if there is none; `block` holds the sums that blocks give [L, …], by kind and
    name (`block_sums.py`), None if they give none.
    """

    objective: jax.Array
    nll: jax.Array
    tokens: jax.Array
    measures: Any = ()
    term: Any = ()
    block: Sums | None = None


def no_loss_sums() -> LossSums:
    """The sums of no batch, of a model whose blocks give none."""
    zero = jnp.zeros(())
    return LossSums(zero, zero, zero)


def add_sums(a: LossSums, b: LossSums) -> LossSums:
    """The sums of two batches as those of one."""
    measured = combine(a.measures, b.measures)
    term = jax.tree.map(jnp.add, a.term, b.term)
    block = None if a.block is None or b.block is None else combine_sums(a.block, b.block)
    return LossSums(a.objective + b.objective, a.nll + b.nll, a.tokens + b.tokens, measured, term, block)


def add_block_sums(sums: LossSums, block: Sums) -> LossSums:
    """`sums` with those that the blocks give [L, …], and with their losses in the objective; {}: there are none."""
    losses = jax.tree.leaves(block.get(LOSSES, {}))
    return sums._replace(objective=sum(map(jnp.sum, losses), sums.objective), block=block) if block else sums


def objective_cotangent(sums: LossSums, share: jax.Array) -> LossSums:
    """The cotangent of sums of which the objective times `share` is differentiated."""
    return jax.tree.map(jnp.zeros_like, sums)._replace(objective=jnp.zeros_like(sums.objective) + share)


def add_loss_term(sums: LossSums, term: jax.Array) -> LossSums:
    """`sums` with a further term of the loss, in nats a token."""
    weighted = term * sums.tokens
    return sums._replace(objective=sums.objective + weighted, term=weighted)
