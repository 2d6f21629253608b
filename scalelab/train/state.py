"""Everything a run needs to go on, as one pytree; randomness and data follow from (seed, step)."""

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scalelab.config import TRACED, Static
from scalelab.model import transformer
from scalelab.model.transformer import declarations
from scalelab.optim.chain import chain, named
from scalelab.optim.members import find
from scalelab.optim.schedules import Hparams
from scalelab.parallel import rules
from scalelab.parallel.processes import whole


class TrainState(NamedTuple):
    """`step` counts batches consumed; a skipped batch counts, but changes neither `params` nor `opt_state`."""

    step: jax.Array  # int32
    params: Any  # nested dict, fp32
    opt_state: Any
    skipped: jax.Array  # int32, batches skipped so far
    streak: jax.Array  # int32, batches skipped in a row up to now


def init(static: Static, h: Hparams) -> TrainState:
    """A fresh state; parameters are drawn from the stream `seed`."""
    params = transformer.init(static.model, jax.random.key(jnp.asarray(h["seed"], jnp.uint32)))
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, chain(static, h, jnp.zeros(())).init(params), zero, zero)


def shapes(static: Static) -> TrainState:
    """The shapes and dtypes of a state; nothing is computed."""
    h = {key.split(".")[1]: jnp.zeros(()) for key in TRACED}
    return jax.eval_shape(lambda: init(static, h))


def specs(static: Static) -> Any:
    """How each part of a state lies on the mesh of `static.layout`: a TrainState of specs.

    What the optimizer keeps of a parameter is known by the parameter's path in it: like the parameter where it has its
    shape, else as `rules.other` splits it. What has no such path lies whole on every device.
    """
    shape, layout, like = static.model, static.layout, shapes(static)
    whole, declared, kept = PartitionSpec(), named(declarations(shape)), named(rules.moments(shape, layout))

    def of(path: Any, leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
        place = ".".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)) + "."
        name = next((n for n in declared if place.startswith(n + ".")), None)
        if name is None:
            return whole
        return kept[name] if leaf.shape == declared[name].shape else rules.other(declared[name], leaf.shape, layout)

    opt_state = jax.tree_util.tree_map_with_path(of, like.opt_state)
    each: Any = (whole, rules.parameters(shape, layout), opt_state, whole, whole)
    return TrainState(*each)


def placed(static: Static, mesh: Mesh) -> TrainState:
    """The shapes and dtypes of a state, each with its sharding on `mesh`: what a checkpoint is restored onto."""
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
        shapes(static), specs(static),
    )  # fmt: skip


def evaluated(static: Static, state: TrainState, h: Hparams) -> Any:
    """The parameters to evaluate and to hand on: the optimizer's average where it keeps one, else those that are trained."""
    point = find(static.optim.name).evaluated
    return state.params if point is None else point(state.params, state.opt_state, h)


def digest(params: Any) -> str:
    """SHA-256 over all parameters: names and bytes, in the tree's (sorted) order. On a mesh all of its processes have to ask."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sha.update(jax.tree_util.keystr(path).encode())
        sha.update(np.ascontiguousarray(whole(leaf)).tobytes())
    return sha.hexdigest()
