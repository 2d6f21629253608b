"""The number formats of a run's step, for its record: read off the jaxpr of the step that is run."""

import contextlib
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from scalelab.config import Hparams, Static, flatten_hparams
from scalelab.parallel import mesh as mesh_lib
from scalelab.precision.formats_in_jaxpr import collect_formats
from scalelab.sharding import BATCH_AXES
from scalelab.train.step import state as state_lib
from scalelab.train.step import step as step_lib
from scalelab.train.step.metrics import refuse_unloggable
from scalelab.train.step.program import hparam_shapes


def step_formats(static: Static, h: Hparams) -> dict[str, Any]:
    """Formats by role. `compute`: operands of the model's products with their shares of its FLOPs; other roles: dtypes.

    Kernels without a jaxpr (flash attention on a GPU) are not counted. Parameters and moments are listed as stored.
    """
    # Without batch warm-up, measured layers, micro-batches run again and the user's metrics: their loops have no length
    # in the program, and the formats are the same.
    once = dataclasses.replace(static.guard, skip="step")
    plain = dataclasses.replace(static, batch_ramp=(), layers=False, own_metrics="", own_eval_metrics="", guard=once)
    return _traced_step_formats(plain, tuple(flatten_hparams(h)))


@functools.cache
def check_user_metrics(static: Static, keys: tuple[str, ...]) -> None:
    """Trace `train.metrics` and `eval.metrics` on shapes; BadInput where one fails or returns what can't be logged.

    `keys`: those of the hparams.
    """
    h = hparam_shapes(keys)
    state, tokens, mesh = _shapes(static)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        if static.own_metrics:
            refuse_unloggable(jax.eval_shape(step_lib.jit_train_step(static), state, tokens, h)[1])
        if static.own_eval_metrics:
            batches = jax.eval_shape(lambda tokens: tokens[None], tokens)
            jax.eval_shape(functools.partial(step_lib.evaluation_values, static), state, batches, h)


def _shapes(static: Static) -> tuple[Any, jax.ShapeDtypeStruct, Any]:
    """(state, tokens of a step, the mesh or None), as shapes with shardings."""
    tokens = jax.ShapeDtypeStruct((static.global_batch, static.model.seq_len + 1), jnp.int32)
    if static.layout.devices == 1:
        return state_lib.state_shapes(static), tokens, None
    mesh = mesh_lib.make_mesh(static.layout)
    sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    tokens = jax.ShapeDtypeStruct(tokens.shape, tokens.dtype, sharding=sharding)
    return state_lib.sharded_state_shapes(static, mesh), tokens, mesh


@functools.cache  # the trials of a sweep share the program
def _traced_step_formats(static: Static, keys: tuple[str, ...]) -> dict[str, Any]:
    state, traced, metrics = _trace_step(static, hparam_shapes(keys))
    refuse_unloggable(metrics)
    formats, _ = collect_formats(traced.jaxpr)
    total = sum(formats.flops.values())
    return {
        "parameters": _array_dtypes(state.params),
        "compute": {form: round(flops / total, 4) for form, flops in sorted(formats.flops.items())},
        "accumulation": sorted(formats.products),
        "gradients": sorted(formats.marked["gradients"]),
        "reductions": sorted(formats.sums),
        "moments": _array_dtypes(state.opt_state),
        "logits": sorted(formats.marked["logits"]),
        "loss": sorted(formats.marked["loss"]),
    }


def _trace_step(static: Static, h: Hparams) -> tuple[Any, Any, Any]:
    """(state as shapes, the step's jaxpr, its metrics as shapes), on the layout's mesh."""
    state, tokens, mesh = _shapes(static)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        traced = step_lib.jit_train_step(static).trace(state, tokens, h)
    return state, traced.jaxpr, traced.out_info[1]


def _array_dtypes(tree: Any) -> list[str]:
    """The dtypes of a tree's arrays; scalars are counters and the like."""
    return sorted({str(leaf.dtype) for leaf in jax.tree.leaves(tree) if leaf.ndim})
