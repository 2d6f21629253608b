"""Stages of a pipeline against one device: loss and gradients, on four fake devices in a process of their own.

`make test-parallel` compares more schedules, each with other axes.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.train.runs import ROOT

# Four stages in a row: what goes to the wrong neighbour or waits in the wrong slot is seen. Two with two rounds each.
LAYOUTS = [{"stage": 4, "microbatches": 6}, {"stage": 2, "data": 2, "rounds": 2, "microbatches": 4}]
PROGRAM = """
import functools, json, sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from scalelab.experiments.studies.fsdp.rows import loss_and_gradients, worst_leaf
from scalelab.parallel import mesh as mesh_lib
from scalelab.parallel.pipeline import reorder_layers
from scalelab.sharding import BATCH_AXES
from scalelab.train.step import state as state_lib
from tests.train.step.test_step import setting

SIZES = {"model.d_model": 16, "model.n_heads": 2, "model.d_head": 8, "model.d_ff": 32, "model.seq_len": 16,
         "model.vocab_size": 32, "model.n_layers": 4}
batch = np.random.default_rng(0).integers(0, 32, (24, 17)).astype(np.int32)
run = jax.jit(loss_and_gradients, static_argnums=0)
static, h = setting(**SIZES)
random = np.random.default_rng(1)  # to draw them as the model does is a program more to compile
draw = lambda x: (0.3 * random.standard_normal(x.shape)).astype(x.dtype)
params = jax.tree.map(draw, state_lib.state_shapes(static).params)
loss, grads, _ = jax.device_get(run(static, params, batch, h))
for layout in json.loads(sys.argv[1]):
    static, h = setting(**SIZES | {f"parallel.{key}": value for key, value in layout.items()})
    mesh, specs = mesh_lib.make_mesh(static.layout), state_lib.state_specs(static).params
    with jax.set_mesh(mesh):
        put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
        placed = jax.tree.map(put, reorder_layers(params, specs, static.layout), specs)
        found, of_mesh, _ = run(static, placed, put(batch, PartitionSpec(BATCH_AXES, None)), h)
        of_mesh = reorder_layers(jax.device_get(of_mesh), specs, static.layout, back=True)
    print(json.dumps([abs(float(found / loss) - 1), worst_leaf(grads, jax.device_get(of_mesh), 1e-3)]))
"""


@pytest.mark.full
def test_a_pipeline_has_the_loss_and_the_gradients_of_one_device():
    env = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(LAYOUTS)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(LAYOUTS), done.stderr[-2000:]
    for off, apart in rows:
        assert off <= 2e-6 and apart <= 3e-5, rows
