"""How weights that are kept in bf16 between steps, without an fp32 copy, take up updates that bf16 can't hold.

    nearest      an update below half a unit in the last place (1/512 to 1/256 of the weight) is lost
    stochastic   up or down with the probability of its distance, so the mean is exact (Gupta et al. 2015, section 3)
    kahan        what the rounding lost is kept in a second bf16 array and added at the next step (Zamirai et al. 2020,
                 "Revisiting BFloat16 Training", Alg. 2 and 3: both ways)

Random bits follow from the run's seed, the step, a parameter's name and its layer, not from the mesh or from what is
updated together.
"""

import zlib
from typing import Any

import jax
import jax.numpy as jnp

ROUNDING_STREAM = 0x726E64  # "rnd": of the seed's random numbers
STACKED = "blocks"  # how the groups are named whose parameters are stacked along layers (`model/stacks.py`)


def step_key(seed: jax.Array, step: jax.Array) -> jax.Array:
    """The key of a step's random bits."""
    stream = jax.random.fold_in(jax.random.key(jnp.asarray(seed, jnp.uint32)), ROUNDING_STREAM)
    return jax.random.fold_in(stream, step)


def round_stochastically(x: jax.Array, bits: jax.Array) -> jax.Array:
    """x (fp32) in bf16: of both neighbours the farther one with the probability of its distance; `bits`: uint16.

    The bits are added to those that bf16 lacks, and the carry decides. Values that are not finite stay what they are.
    """
    whole = jax.lax.bitcast_convert_type(x, jnp.uint32) + bits.astype(jnp.uint32)
    rounded = jax.lax.bitcast_convert_type((whole >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), rounded, x.astype(jnp.bfloat16))


def round_tree(params: Any, key: jax.Array, layer: Any = None) -> Any:
    """fp32 parameters (a dict of groups) in bf16, rounded stochastically.

    `layer`: the index, in its stack, of the first of the stacked layers in `params` (default: 0).
    """

    def round_leaf(path: Any, x: jax.Array) -> jax.Array:
        own = jax.random.fold_in(key, zlib.crc32(jax.tree_util.keystr(path).encode()))
        if not path[0].key.startswith(STACKED):
            return round_stochastically(x, jax.random.bits(own, x.shape, jnp.uint16))
        layers = (0 if layer is None else layer) + jnp.arange(x.shape[0])
        keys = jax.vmap(lambda index: jax.random.fold_in(own, index))(layers)
        bits = jax.vmap(lambda one: jax.random.bits(one, x.shape[1:], jnp.uint16))(keys)
        return round_stochastically(x, bits)

    return jax.tree_util.tree_map_with_path(round_leaf, params)


def split_tree(params: Any) -> tuple[Any, Any]:
    """fp32 parameters as (nearest in bf16, what that lost in bf16)."""
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    lost = jax.tree.map(lambda x, w: (x - w.astype(jnp.float32)).astype(jnp.bfloat16), params, rounded)
    return rounded, lost


def join_trees(rounded: Any, lost: Any) -> Any:
    """The inverse of `split_tree`, to 16 bits of mantissa."""
    return jax.tree.map(lambda w, c: w.astype(jnp.float32) + c.astype(jnp.float32), rounded, lost)


def cast_for_storage(tree: Any, form: str) -> Any:
    """The tree as stored between steps: fp32 arrays, not scalars, cast to `form`."""
    if form == "float32":
        return tree
    return jax.tree.map(lambda x: x.astype(form) if x.ndim and x.dtype == jnp.float32 else x, tree)


def upcast(tree: Any, form: str) -> Any:
    """The inverse of `cast_for_storage`: arrays stored in `form`, cast to fp32."""
    return tree if form == "float32" else jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == form else x, tree)
