"""FSDP's gradients as TPUs add them up, in parts that devices send each other: one device's, in half the bytes."""

import json
import os
import subprocess
import sys

import pytest

from tests.train.runs import ROOT

# On fake CPUs: only this choice is made as for a TPU, whose kernels don't run here.
AS_ON_A_TPU = """
import json, sys
from scalelab import sharding
sharding.target_platform = lambda: "tpu"
"""
GRADIENTS = (
    AS_ON_A_TPU
    + """
from checks.numerics.parallelism import layouts
from scalelab.experiments.studies.fsdp import rows
for name in sys.argv[2].split(","):
    variant = {"model.tied_head": False, "train.accumulate": 2}
    row = rows.compare_layout(name, layouts.LAYOUTS[name], variant, sys.argv[1], costly=False)
    print(json.dumps([row["loss_rel_diff"], row["grad_rel_diff"]]))
"""
)
COLLECTIVES = (
    AS_ON_A_TPU
    + """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from scalelab.config import Layout
from scalelab.model.products.operands import ProductAxes
from scalelab.model.products.product import weight_product
from scalelab.parallel import mesh as mesh_lib
from scalelab.plan.compiled import program
from scalelab.precision.policy import POLICIES

mesh = mesh_lib.make_mesh(Layout(fsdp=8))
names = (("embed", "mlp"), PartitionSpec("fsdp", None)), (("mlp", "embed"), PartitionSpec(None, "fsdp"))
for axes, split in names:
    def loss(w, x):
        y = weight_product(x, w, None, ProductAxes(1, axes, ("batch", "context", None)), POLICIES["fp32"])
        return jnp.sum(jnp.square(y))
    w = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, split))
    x = jax.ShapeDtypeStruct((8, 16, 64), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("fsdp")))
    with jax.set_mesh(mesh):
        text = jax.jit(jax.grad(loss)).lower(w, x).compile().as_text()
    print(json.dumps([[row.kind, row.sent_bytes] for row in program.read_collectives(text)]))
"""
)


def lines(program, *arguments):
    """What a program prints on eight fake devices, a JSON value a line."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


FEW, MORE = "fsdp+tensor+sequence", "fsdp,hsdp,fsdp+tensor,context+fsdp+tensor+sequence,zero2,gpipe+fsdp"


@pytest.mark.parametrize(
    ("precision", "layouts", "most"),
    [
        ("fp32", FEW, (2e-6, 3e-6)),
        pytest.param("fp32", MORE, (2e-6, 3e-6), marks=pytest.mark.slow),
        pytest.param("bf16", f"{FEW},{MORE}", (1e-2, 1e-2), marks=pytest.mark.slow),
    ],
)
def test_loss_and_gradients_are_those_of_one_device(precision, layouts, most):
    """Within the tolerances of checks/numerics/parallelism."""
    for loss, gradients in lines(GRADIENTS, precision, layouts):
        assert loss <= most[0] and gradients <= most[1]


@pytest.mark.full
def test_a_gradient_is_sent_in_the_bytes_of_a_reduce_scatter():
    """Whichever axis of the weight is split. The weight is gathered once; nothing else is larger than a number."""
    once = 64 * 64 * 4 * 7 / 8
    for rows in lines(COLLECTIVES):
        large = {kind: size for kind, size in rows if size > 8}
        assert large == {"all-gather": once, "all-to-all": once}
