"""A tiny config's compiled half for tests of the planner, and the arrays that a backward really keeps."""

import dataclasses
import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.configs import base
from scalelab.model import transformer
from scalelab.model.attention.documents import Batch
from scalelab.parallel import pipeline, rules
from scalelab.parallel.mesh import MESH_AXES
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.sharding import BATCH_AXES
from scalelab.train.step.gradients import PassInputs, micro_batch_objective


def static_of(layout=None, batch=8, model=None, **values):
    """`static` of a two-layer model of width 32; keys of `values` have `__` for the dot."""
    layout = layout or Layout()
    tree = base.get_config()
    tree.model.update({"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 64, "seq_len": 16} | (model or {}))
    placed = {f"parallel.{key}": value for key, value in dataclasses.asdict(layout).items()}
    sizes = {"train.global_batch": batch, **placed}
    over = sizes | {key.replace("__", "."): value for key, value in values.items()}
    return config_lib.static(config_lib.resolve(config_lib.override(tree, over)))


def kept(static, params, tokens):
    """Arrays that the backward of a micro-batch keeps, computed, but those that are a parameter, bit by bit."""

    def leaves(params, tokens):
        def differentiated(p):
            return micro_batch_objective(static, PassInputs(p, jnp.float32(0)), Batch(tokens), jnp.float32(1))[0]

        return jax.tree.leaves(jax.vjp(differentiated, params)[1])

    with product_precision(POLICIES[static.precision]):
        outputs = jax.jit(leaves)(params, tokens)
    known = [np.asarray(p) for p in jax.tree.leaves(params)]

    def is_parameter(x):
        return any(x.shape == p.shape and x.dtype == p.dtype and np.array_equal(np.asarray(x), p) for p in known)

    return [x for x in outputs if not is_parameter(x)]


def drawn(static):
    """Parameters of which none equals another, and a batch of tokens; nothing is compiled for them."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda d: rng.normal(size=d.shape).astype(np.float32), transformer.parameter_declarations(static.model)
    )
    shape = static.global_batch, static.model.seq_len + 1
    return params, rng.integers(0, static.model.vocab_size, shape).astype(np.int32)


def pipelined(static):
    """`pipeline.pipeline_gradients` of a layout with stages, traced for a mesh that isn't here."""
    sizes = tuple(getattr(static.layout, axis) for axis in MESH_AXES)
    mesh = AbstractMesh(sizes, MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES))

    def like(shape, kind, spec):
        return jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, spec))

    specs = rules.parameter_specs(static.model, static.layout)
    declared = transformer.parameter_declarations(static.model)
    params = jax.tree.map(lambda d, spec: like(d.shape, jnp.float32, spec), declared, specs)
    tokens = like((static.global_batch, static.model.seq_len + 1), jnp.int32, PartitionSpec(BATCH_AXES, None))
    number = jax.ShapeDtypeStruct((), jnp.float32)
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(functools.partial(pipeline.pipeline_gradients, static)).trace(
            params, Batch(tokens), number, number
        )


def on_eight(layouts, *remats):
    """What `tests/plan/eight.py` says of each layout, in one process of its own with eight fake devices."""
    environment = os.environ | {"XLA_FLAGS": os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-m", "tests.plan.eight", ";".join(layouts), *remats]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(layouts, map(json.loads, done.stdout.splitlines()), strict=True))
