"""How a stage's arrays are handed to it: lowered for a mesh that isn't here, nothing is compiled."""

import functools
import re

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from scalelab.config import Layout
from scalelab.model.placement import BATCH
from scalelab.parallel import pipeline, rules
from scalelab.parallel.mesh import AXES
from scalelab.train import state as state_lib
from tests.plan.small import static_of


def test_a_stage_gathers_nothing_where_its_arrays_are_handed_in_and_out():
    """Dimensions left open ("?") keep the splits of fsdp and tensor; a closed one that names no axis is gathered whole."""
    layout = Layout(stage=2, fsdp=4, tensor=2, microbatches=2)
    static = static_of(layout, model={"n_layers": 2}, batch=16)
    mesh = AbstractMesh(tuple(getattr(layout, a) for a in AXES), AXES, axis_types=(AxisType.Explicit,) * len(AXES))

    def like(x, spec):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    params = jax.tree.map(like, state_lib.shapes(static).params, rules.parameters(static.model, layout))
    tokens = like(jax.ShapeDtypeStruct((16, static.model.seq_len + 1), jnp.int32), PartitionSpec(BATCH, None))
    number = jax.ShapeDtypeStruct((), jnp.float32)
    run = jax.jit(functools.partial(pipeline.gradients, static))
    with jax.sharding.use_abstract_mesh(mesh):
        text = run.trace(params, tokens, number, number).lower(lowering_platforms=("cpu",)).as_text()
    borders = [line for line in text.splitlines() if 'manual_axes={"stage"}' in line]
    assert len(borders) == 1
    shardings = re.findall(r"<@mesh, \[([^]]*)\]", borders[0])
    assert len(shardings) > 2 * len(jax.tree.leaves(params)) and '{"stage", ?}, {?}, {?}' in shardings
    assert not any("{}" in dimensions for dimensions in shardings)
