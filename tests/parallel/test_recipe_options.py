"""What published recipes differ in, on meshes against one device: a norm over split heads, biases of some projections."""

import json
import os
import subprocess
import sys

import pytest

from tests.train.runs import ROOT

VARIANT = {
    "family": "llama", "model.n_kv_heads": 4, "model.qk_norm": True, "model.qk_norm_over": "projection",
    "model.qkv_bias": True, "model.norm": "layernorm_nobias", "model.mlp": "relu", "model.tied_head": True,
    "model.logit_scale": "rsqrt_width", "model.projection_std": 0.2, "model.depth_scaled_init": True,
}  # fmt: skip
PROGRAM = """
import functools, json, sys
import jax
from jax.sharding import NamedSharding, PartitionSpec
from experiments.parallelism import rows
from scalelab.config import Layout
from scalelab.model.placement import BATCH
from scalelab.parallel import mesh as mesh_lib, pipeline
from scalelab.train import state as state_lib
import dataclasses

variant, layout = json.loads(sys.argv[1]), Layout(**json.loads(sys.argv[2]))
static, _ = rows.static_of(variant, layout, "fp32")
model = dataclasses.replace(static.model, sequence_parallel=False)
params, loss, grads = rows.alone(dataclasses.replace(static, layout=Layout(), model=model))
mesh, specs = mesh_lib.make(layout), state_lib.specs(static)
with jax.set_mesh(mesh):
    held = pipeline.reorder(params, specs.params, layout)
    placed = jax.device_put(held, jax.tree.map(lambda s: NamedSharding(mesh, s), specs.params))
    batch = jax.device_put(rows.tokens(), NamedSharding(mesh, PartitionSpec(BATCH, None)))
    found_loss, found = jax.jit(functools.partial(rows.loss_and_gradients, static))(placed, batch)
found = pipeline.reorder(jax.device_get(found), specs.params, layout, back=True)
worst = rows.worst_leaf(grads, found, rows.ZERO["fp32"])
spec = specs.params["blocks"]["attention"]["k_norm"]["g"]
print(json.dumps({"loss": abs(float(found_loss) / loss - 1), "grads": worst, "k_norm": str(spec)}))
"""


@pytest.mark.parametrize(
    "layout",
    [
        {"fsdp": 2, "context": 2, "tensor": 2, "sequence": True},
        pytest.param({"stage": 2, "fsdp": 2, "tensor": 2, "microbatches": 4}, marks=pytest.mark.slow),
    ],
    ids=lambda layout: "+".join(layout),
)
def test_loss_and_gradients_are_those_of_one_device(layout):
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8"
    command = [sys.executable, "-c", PROGRAM, json.dumps(VARIANT), json.dumps(layout)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags})
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["loss"] <= 2e-6 and found["grads"] <= 3e-6, found
    assert "'tensor'" in found["k_norm"]  # the gain of split heads lies with them
