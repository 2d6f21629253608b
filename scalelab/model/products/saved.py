"""What a backward keeps of a block: products in the format of activations, and of what lies between them the inputs.

A product comes in fp32 and is cast after it. Under `model.remat=dots` the cast one is saved: it is what the backward
reads, at half the bytes under 16-bit policies. Norms and activations keep their inputs, in the format of these, under
every `model.remat`; jax by itself would keep several fp32 arrays of theirs. What they compute is computed again from
the same numbers, so nothing changes but memory.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

# names in the program, by which policies of `jax.checkpoint` know values
PRODUCT, STATISTIC, EXCHANGED = "product", "statistic", "exchanged"

_KEEPS_ALL: contextvars.ContextVar[bool] = contextvars.ContextVar("keeps_all", default=False)
_save_named = jax.checkpoint_policies.save_only_these_names


def name_product(y: jax.Array) -> jax.Array:
    """The result of a product in the format that is saved: `save_products` keeps it."""
    return checkpoint_name(y, PRODUCT)


def name_statistic(x: jax.Array) -> jax.Array:
    """A small result of a pass over much, such as a norm's factors: `keep_inputs` keeps it too."""
    return checkpoint_name(x, STATISTIC)


def name_exchanged(x: jax.Array) -> jax.Array:
    """What came from other devices by an all-to-all: every policy keeps it, so that no backward sends it again."""
    return checkpoint_name(x, EXCHANGED)


save_exchanged = _save_named(EXCHANGED)


def keep_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose backward keeps its arguments and what it names: whole weights are gathered again."""
    return jax.checkpoint(function, policy=_save_named(PRODUCT, STATISTIC, EXCHANGED), prevent_cse=False)


def save_products(primitive: Any, *values: Any, **parameters: Any) -> Any:
    """A policy of `jax.checkpoint`: results of products are saved, as they were cast; those in parts once added up.

    Named ones are the model's (`name_product`). A `dot_general` without a name is one of a user's block; of a named
    one nothing in the backward reads the fp32 result, and jax drops what nothing reads.
    """
    if primitive.name == "reshard":
        return bool(values[0].sharding.spec.unreduced)
    place = parameters.get("out_sharding")
    in_parts = primitive.name == "dot_general" and place is not None and bool(place.spec.unreduced)
    policies = _save_named(PRODUCT, EXCHANGED), jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return not in_parts and any(policy(primitive, *values, **parameters) for policy in policies)


def keep_inputs(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function`, whose backward keeps only its inputs and the statistics it names, and computes the rest again.

    Without a barrier: the forward and backward of a model's blocks are loops of their own on accelerators, so that XLA
    has nothing to join. Where one loop holds both (a block that is recomputed, a CPU's unrolled blocks) it joins them.
    With barriers it held no less: 76.7 GiB, not 76.2, of configs/medium.py under dots, compiled for an H100.
    """
    if _KEEPS_ALL.get():
        return function
    return jax.checkpoint(function, policy=_save_named(STATISTIC), prevent_cse=False)


@contextlib.contextmanager
def keep_all() -> Iterator[None]:
    """A context in which `keep_inputs` changes nothing: to count what a backward that recomputes a block holds."""
    token = _KEEPS_ALL.set(True)
    try:
        yield
    finally:
        _KEEPS_ALL.reset(token)
