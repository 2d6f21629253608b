"""The ring whose parts are a fused kernel's: equal to one device's, forward and backward, on fake devices."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import functools, json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType
from scalelab.model.attention import kernels, order
from scalelab.model.attention.fused import cudnn, ring, splash
from scalelab.model.attention.mask import MaskInfo, Scoring
from scalelab.parallel.mesh import MESH_AXES
from scalelab.sharding import activation_spec
from tests.model.attention import cudnn_by_hand

calls = [cudnn_by_hand.ByHand(function) for function in (cudnn_by_hand.forward, cudnn_by_hand.backward)]
for name, call in zip(cudnn.PRIMITIVES, calls, strict=True):
    setattr(cudnn.jax_cudnn, name, call)
ring.PARTS["splash"] = functools.partial(splash.splash_parts, interpret=True)

def run(kernel, window, q, k, v, weights, documents, is_global):
    def loss(q, k, v):
        y = kernels.compute_attention(q, k, v, Scoring(0.1, MaskInfo(documents, is_global), window), kernel)
        return (y * weights).sum(), y
    grads, y = jax.grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
    return y, *grads

run = jax.jit(run, static_argnums=(0, 1))

def difference(kernel, n, length, width, documents, window, is_global):
    random = np.random.default_rng(n)
    draw = lambda heads: np.asarray(random.normal(size=(2, length, heads, width)), np.float32)
    arrays = draw(4), draw(2), draw(2), draw(4)
    segments = None if documents is None else np.cumsum(random.random((2, length)) < documents, axis=1, dtype=np.int32)
    one = run("plain", window, *arrays, segments, is_global)
    sizes = [n if axis == "context" else 1 for axis in MESH_AXES]
    kinds = (AxisType.Explicit,) * len(MESH_AXES)
    with jax.set_mesh(jax.make_mesh(sizes, MESH_AXES, axis_types=kinds, devices=jax.devices()[:n])):
        names = ("batch", "context", "heads", None)
        dealt, back = (np.asarray(order.deal(np.arange(length)[None], back=b))[0] for b in (False, True))
        put = lambda x: None if x is None else jax.device_put(x[:, dealt], activation_spec(*names[: x.ndim]))
        flag = None if is_global is None else jax.device_put(np.asarray(is_global), jax.P())
        many = run(kernel, window, *map(put, arrays), put(segments), flag)
        many = [np.asarray(x)[:, back] for x in many]
    # numpy's maximum is NaN where one is
    return float(np.max([np.abs(a - b).max() / np.abs(a).max() for a, b in zip(one, many, strict=True)]))

print(json.dumps({name: difference(*case) for name, case in json.loads(sys.argv[1]).items()} | {
    "calls": [call.calls for call in calls]}))
"""


def differences(cases):
    env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(cases)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.full
def test_a_ring_of_cudnns_parts_has_the_output_and_the_gradients_of_one_device():
    """cuDNN by hand: no documents, some that end within a chunk, and long ones that go on over several devices."""
    cases = {  # kernel, devices, tokens, d_head, documents that begin a token, window, whether the layer is global
        "causal": ("cudnn", 3, 48, 8, None, 0, None),
        "short documents": ("cudnn", 2, 48, 8, 0.15, 0, None),
        "long documents": ("cudnn", 4, 48, 8, 0.04, 0, None),
        "one document": ("cudnn", 4, 48, 8, 0.0, 0, None),
        "a global layer among windows": ("cudnn", 2, 48, 8, 0.04, 5, True),
        "a windowed layer": ("cudnn", 2, 48, 8, 0.04, 5, False),
    }
    worst = differences(cases)
    # A device calls once for its own tokens and twice in each other turn; a windowed layer takes blocks.
    assert worst.pop("calls") == [sum(n * (2 * n - 1) for n in (3, 2, 4, 4, 2))] * 2
    assert len(worst) == 6 and all(x < 1e-5 for x in worst.values()), worst


@pytest.mark.slow
def test_a_ring_of_splashs_parts_has_the_output_and_the_gradients_of_one_device():
    """The TPU's kernel, interpreted: four chunks of 128 tokens."""
    cases = {
        "causal": ("splash", 2, 512, 128, None, 0, None),
        "documents": ("splash", 2, 512, 128, 0.01, 0, None),
        "a windowed layer": ("splash", 2, 512, 128, 0.01, 200, False),
    }
    worst = differences(cases)
    assert worst.pop("calls") == [0, 0] and all(x < 1e-5 for x in worst.values()), worst
