"""Sums that blocks give as their second output, beside the residual stream.

They are sums over the tokens of a batch, under names that the block chooses (`give_sum`):
LOSSES of its own in nats, which are added to the objective; COUNTS; and MAXIMA; the last two are not differentiated.
Every one is a sum (or a maximum) over single tokens that count, those whose target is predicted. So it is the same
number however a batch is split over micro-batches, devices and stages of a pipeline, and the objective divides it by
the batch's predicted tokens as it does the head's loss. A product of two means over the batch is not such a sum, nor
may its micro-batches' products be averaged; what is a product within a sequence is one, if each of its tokens gives
the sequence's value.

Shapes: B batch, S sequence, L layers, E whatever a block counts by.
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.sharding import reshard_to, vary_like

Sums = dict[str, dict[str, jax.Array]]  # kind -> name -> sum of one block, or of all blocks [L, …]; {}: there is none

SUMS = "sums"  # among what a block returns beside x_BSD
LOSSES, COUNTS, MAXIMA = SUM_KINDS = ("losses", "counts", "maxima")  # kinds; also flax's collections of them
NOTHING = {LOSSES: 0.0, COUNTS: 0.0, MAXIMA: -float("inf")}  # the sum of no token


def give_sum(module: nn.Module, kind: str, name: str, value: jax.Array, counts_BS: jax.Array | None) -> None:
    """Give a sum of `value` [B, S, …] over the tokens where `counts_BS` is true as a block's second output.

    Called by a module anywhere in the block, once a name. The sum's shape is that of one token's value: a count of
    [B, S, E] is one number for each of E experts.
    """
    if not module.is_mutable_collection(kind):
        return  # a pass that asks for no sums
    value = value if kind == LOSSES else jax.lax.stop_gradient(value)
    value = reshard_to(value.astype(jnp.float32), "batch", "context", *[None] * (value.ndim - 2))
    if counts_BS is not None:
        counts = reshard_to(counts_BS, "batch", "context")
        value = jnp.where(jnp.expand_dims(counts, range(2, value.ndim)), value, NOTHING[kind])
    module.put_variable(kind, name, (jnp.max if kind == MAXIMA else jnp.sum)(value, axis=(0, 1)))


def describe_bad_sum(kind: str, name: str, value: Any, x_BSD: jax.Array, others: Sequence[str]) -> str:
    """Why a block can't give this sum beside the `others` of these names; "" if it can."""
    wanted, shape = "[B, S]" if kind == LOSSES else "[B, S] or [B, S, E]", getattr(value, "shape", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w-]*", name):
        return f"needs a name of letters, digits, _ and -: it is logged as block/{name}"
    if name in others:
        return "comes twice: a sum is given once a block"
    if shape is None or shape[:2] != x_BSD.shape[:2] or len(shape) not in ((2,) if kind == LOSSES else (2, 3)):
        got = type(value).__name__ if shape is None else f"shape {list(shape)}"
        return f"has {got}: a value for each token is expected, {wanted}"
    return ""


def take_sums(written: dict[str, Any]) -> Sums:
    """The sums among what flax's modules wrote, by kind and name."""
    sums: Sums = {}
    for kind in SUM_KINDS:
        for path, value in jax.tree_util.tree_leaves_with_path(written.pop(kind, {})):
            name = path[-1].key
            assert name not in sums.get(kind, {}), f"two modules of a block give the sum {name!r}"
            sums.setdefault(kind, {})[name] = value
    return sums


def join_declared(parts: Sequence[Sums], n_layers: int) -> Sums:
    """The declared sums of all stacks, of `n_layers` layers, from those of each; AssertionError if they contradict."""
    declared: Sums = {}
    for part in parts:
        for kind, each in part.items():
            for name, x in each.items():
                all_layers: Any = jax.ShapeDtypeStruct((n_layers, *x.shape[1:]), x.dtype)
                known = declared.setdefault(kind, {}).setdefault(name, all_layers)
                assert known.shape == all_layers.shape, f"two kinds of blocks give the sum {name!r} in two shapes"
    return declared


def fill_sums(declared: Sums, given: Sums, x_BSD: jax.Array) -> Sums:
    """A layer's sums, with nothing where blocks of other kinds give one; it varies over devices as x_BSD does."""

    def fill(kind: str, name: str, like: jax.Array) -> jax.Array:
        present = given.get(kind, {}).get(name)
        return vary_like(jnp.full(like.shape[1:], NOTHING[kind]), x_BSD) if present is None else present

    return {kind: {name: fill(kind, name, x) for name, x in each.items()} for kind, each in declared.items()}


def combine_sums(a: Sums, b: Sums) -> Sums:
    """The sums of two batches as those of one."""
    return {kind: jax.tree.map(jnp.maximum if kind == MAXIMA else jnp.add, a[kind], b[kind]) for kind in a}


def add_sums_at(total: Sums, index: jax.Array, part: Sums) -> Sums:
    """`total` with the sums of `part` combined into the entry `index` of its first axis."""
    at = {True: lambda x, y: x.at[index].max(y), False: lambda x, y: x.at[index].add(y)}
    return {kind: jax.tree.map(at[kind == MAXIMA], total[kind], part[kind]) for kind in total}


def no_sums(declared: Sums, *layers: int) -> Sums:
    """The sums of no batch, like those of `transformer.block_sums`; `layers`: leading axes in the place of theirs."""
    shape = lambda x: (*layers, *x.shape[1:]) if layers else x.shape  # noqa: E731
    return {kind: jax.tree.map(lambda x: jnp.full(shape(x), NOTHING[kind]), declared[kind]) for kind in declared}  # noqa: B023


def sums_cotangent(sums: Sums, share: jax.Array) -> Sums:
    """The cotangent of sums whose losses times `share` are added to what is differentiated."""
    return {
        kind: {name: jnp.zeros_like(x) + (share if kind == LOSSES else 0.0) for name, x in each.items()}
        for kind, each in sums.items()
    }
