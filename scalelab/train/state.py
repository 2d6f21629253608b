"""Everything a run needs to go on, as one pytree; randomness and data follow from (seed, step)."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scalelab.config import Static
from scalelab.model import parametrization, transformer
from scalelab.optim.chain import OPTIMIZERS
from scalelab.optim.schedules import Hparams
from scalelab.parallel import rules
from scalelab.parallel.processes import whole
from scalelab.precision import loss_scale
from scalelab.precision.policy import POLICIES


class TrainState(NamedTuple):
    """`step` counts batches consumed; a skipped batch counts, but changes neither `params` nor `opt_state`."""

    step: jax.Array  # int32
    params: Any  # nested dict, fp32 but under policy bf16_master
    opt_state: Any
    skipped: jax.Array  # int32, batches skipped so far
    streak: jax.Array  # int32, batches skipped in a row up to now
    precision: Any = ()  # what the precision policy keeps: a LossScale, or nothing


def optimizer(static: Static, h: Hparams, lr: jax.Array) -> Any:
    """The run's optax chain for traced hparams at learning rate `lr`."""
    shape = static.model
    return OPTIMIZERS[static.optimizer](h, lr, parametrization.lr_multipliers(shape), parametrization.decay_mask(shape))


def init(static: Static, h: Hparams) -> TrainState:
    """A fresh state; parameters are drawn from the stream `seed`."""
    params = transformer.init(static.model, jax.random.key(jnp.asarray(h["seed"], jnp.uint32)))
    zero, policy = jnp.zeros((), jnp.int32), POLICIES[static.precision]
    opt_state = stored(optimizer(static, h, jnp.zeros(())).init(params), policy.moments)
    scale = loss_scale.init() if policy.scaled_loss else ()
    return TrainState(zero, stored(params, policy.parameters), opt_state, zero, zero, scale)


def stored(tree: Any, form: str) -> Any:
    """A tree as it is kept from step to step: its fp32 arrays, not its scalars, in `form`."""
    if form == "float32":
        return tree
    return jax.tree.map(lambda x: x.astype(form) if x.ndim and x.dtype == jnp.float32 else x, tree)


def wide(tree: Any, form: str) -> Any:
    """The same for use: arrays kept in `form` in fp32."""
    return tree if form == "float32" else jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == form else x, tree)


def specs(static: Static, h: Mapping[str, float]) -> Any:
    """How each part of a state lies on the mesh of `static.layout`: a TrainState of specs."""
    shape, layout, like = static.model, static.layout, shapes(static, h)
    kept = rules.moments(shape, layout)
    whole = PartitionSpec()
    opt_state = optax.tree_utils.tree_map_params(
        optimizer(static, {key: jnp.asarray(value) for key, value in h.items()}, jnp.zeros(())),
        lambda _, spec: spec, like.opt_state, kept, transform_non_params=lambda _: whole,
    )  # fmt: skip
    precision = jax.tree.map(lambda _: whole, like.precision)
    each: Any = (whole, rules.parameters(shape, layout), opt_state, whole, whole, precision)
    return TrainState(*each)


def shapes(static: Static, h: Mapping[str, float]) -> TrainState:
    """The shapes and dtypes of a state; nothing is computed."""
    return jax.eval_shape(lambda: init(static, {key: jnp.asarray(value) for key, value in h.items()}))


def placed(static: Static, h: Mapping[str, float], mesh: Mesh) -> TrainState:
    """The shapes and dtypes of a state, each with its sharding on `mesh`: what a checkpoint is restored onto."""
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
        shapes(static, h), specs(static, h),
    )  # fmt: skip


def digest(params: Any) -> str:
    """SHA-256 over all parameters: names and bytes, in the tree's (sorted) order. On a mesh all of its processes have to ask."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sha.update(jax.tree_util.keystr(path).encode())
        sha.update(np.ascontiguousarray(whole(leaf)).tobytes())
    return sha.hexdigest()
