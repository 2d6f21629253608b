"""The TPU's attention kernel on a mesh: each device's own sequences and heads, interpreted on eight fake devices."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import functools
import jax, numpy as np
from scalelab.config import Layout
from scalelab.model.attention import kernels
from scalelab.model.attention.mask import Scoring
from scalelab.parallel import mesh

kernels.KERNELS["splash"] = functools.partial(kernels.splash_attention, interpret=True)
random = np.random.default_rng(0)
q = random.normal(size=(4, 128, 4, 128)).astype(np.float32)
k, v = (random.normal(size=(4, 128, 2, 128)).astype(np.float32) for _ in range(2))

def loss(how, q, k, v):
    return (kernels.compute_attention(q, k, v, Scoring(0.1), how) ** 2).sum()

one = jax.jit(jax.value_and_grad(functools.partial(loss, "plain"), (0, 1, 2)))(q, k, v)
with jax.set_mesh(mesh.make_mesh(Layout(data=2, fsdp=2, tensor=2))):
    place = lambda x: jax.device_put(x, jax.P(("data", "fsdp", "expert"), "context", "tensor", None))
    many = jax.jit(jax.value_and_grad(functools.partial(loss, "splash"), (0, 1, 2)))(place(q), place(k), place(v))
for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
    np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
print("equal")
"""


@pytest.mark.full
def test_splash_on_a_mesh_has_the_loss_and_the_gradients_of_one_device():
    env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stderr[-3000:]
