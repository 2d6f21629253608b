"""The optimizer's update of a part of the parameters: one layer of the blocks, or what stands outside them.

A part's chain keeps the arrays of the whole state that belong to its parameters, under the same paths; of stacked ones
a single layer. Arrays that belong to no parameter (step counts) are read by every part and written by the last one.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from scalelab.config import Static
from scalelab.config.mixture_text import StackText, format_stacks
from scalelab.errors import BadInput
from scalelab.model.stacks import stacks
from scalelab.optim.chain import build_optimizer_chain
from scalelab.optim.optimizer import Tree
from scalelab.optim.registry import OPTIMIZERS, find_optimizer
from scalelab.optim.schedules import Hparams


def refuse_inseparable(static: Static) -> None:
    """BadInput where the update of a parameter depends on gradients of others, or nobody knows whether it does."""
    o = static.optim
    if o.name not in OPTIMIZERS:
        why = "may read gradients of several layers at once"
    elif find_optimizer(o.name).curvature:
        why = "estimates the curvature of all layers at once"
    elif o.clip != "global":
        raise BadInput(
            f"train.updates='per_layer' with optim.clip={o.clip!r}: it keeps statistics over whole gradients; "
            "nearest: optim.clip=global"
        )
    else:
        return
    raise BadInput(f"train.updates='per_layer': optim.name={o.name!r} {why}; nearest: optim.name=adamw")


def select(names: Collection[str], tree: Tree) -> Tree:
    """The subtree of these groups of parameters."""
    return {name: tree[name] for name in tree if name in names}


def one_layer(static: Static) -> Static:
    """`static` with one block a stack, whose factors on LR, decay and eps are those of a block of the whole model."""
    shape, single = static.model, tuple(StackText(stack.block, 1) for stack in stacks(static.model))
    base: Any = shape.base_layers * len(single) / shape.n_layers  # the ratio of depths stays what it is
    few = dataclasses.replace(shape, n_layers=len(single), base_layers=base, block=format_stacks(single))
    return dataclasses.replace(static, model=few)


def part_chain(
    static: Static, h: Hparams, lr: jax.Array, names: Sequence[str], factor: jax.Array
) -> optax.GradientTransformationExtraArgs:
    """The chain of the parameters in `names`, whose gradients are scaled by `factor` in place of the clip."""
    clipped = optax.stateless(lambda grads, _: jax.tree.map(lambda g: factor * g, grads))
    return build_optimizer_chain(static, h, lr, names, clipped)


def read_part(opt_state: Tree, like: Tree, layer: Any) -> Tree:
    """The arrays of the whole state at the paths of `like`; stacked ones at `layer`."""
    arrays = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(opt_state)}

    def read(path: Any, wanted: jax.ShapeDtypeStruct) -> jax.Array:
        x = arrays[jax.tree_util.keystr(path)]
        if x.shape == wanted.shape:
            return x
        assert layer is not None and x.shape[1:] == wanted.shape[1:], (path, x.shape, wanted.shape)
        return jax.lax.dynamic_slice_in_dim(x, layer, 1)

    return fetch(jax.tree_util.tree_map_with_path(read, like))


def fetch(tree: Tree) -> Tree:
    """The tree with those arrays copied to the device that lie in the host's memory, as their types say."""
    return jax.tree.map(lambda x: jax.device_put(x, jax.memory.Space.Device) if _is_on_host(x) else x, tree)


def _is_on_host(x: Any) -> bool:
    return jax.typeof(x).memory_space == jax.memory.Space.Host


def write_part(opt_state: Tree, part: Tree, layer: Any = None, last: bool = False) -> Tree:
    """The whole state with this part's arrays in their places, in the formats that it has; `last`: also the counts."""
    arrays = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(part)}

    def write(path: Any, old: jax.Array) -> jax.Array:
        new = arrays.get(jax.tree_util.keystr(path))
        belongs = any(isinstance(key, jax.tree_util.DictKey) for key in path)
        if new is None or not (belongs or last):
            return old
        new = new.astype(old.dtype)
        new = jax.device_put(new, jax.memory.Space.Host) if _is_on_host(old) else new
        return new if new.shape == old.shape else jax.lax.dynamic_update_slice_in_dim(old, new, layer, 0)

    return jax.tree_util.tree_map_with_path(write, opt_state)


def sum_squares(tree: Tree) -> jax.Array:
    """The sum of squares of all numbers, in fp32."""
    return sum((jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)), jnp.zeros(()))
