"""Attention of devices that share a sequence: equal to one device's, and equal work for each of them."""

import collections
import json
import os
import subprocess
import sys

import jax
import jax.extend
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from scalelab.jaxprs import matmul_flops
from scalelab.model.attention import ring
from scalelab.model.attention.kernels import compute_attention
from scalelab.model.attention.mask import MaskInfo, Scoring
from scalelab.parallel.mesh import MESH_AXES
from scalelab.sharding import activation_spec

PROGRAM = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType
from scalelab.model.attention import kernels, order, ring
from scalelab.model.attention.mask import MaskInfo, Scoring
from scalelab.model.attention.positions.relative import RelativeInputs
from scalelab.parallel.mesh import MESH_AXES
from scalelab.sharding import activation_spec

ring.block_size = lambda: 4
random = np.random.default_rng(0)
draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
length, worst = 48, {}
q, k, v, weights = draw(2, length, 4, 8), draw(2, length, 2, 8), draw(2, length, 2, 8), draw(2, length, 4, 8)
far = RelativeInputs(draw(2, length, 4, 8), draw(length, 4, 8))
documents = jnp.asarray(np.cumsum(random.random((2, length)) < 0.1, axis=1), jnp.int32)

def run(q, k, v, far, weights, documents, window, is_global):
    mask = MaskInfo(documents, is_global)
    def loss(q, k, v, far):
        y = kernels.compute_attention(q, k, v, Scoring(0.3, mask, window, far), "plain")
        return (y * weights).sum(), y
    grads, y = jax.grad(loss, (0, 1, 2, 3), has_aux=True)(q, k, v, far)
    return y, grads

run = jax.jit(run, static_argnums=6)
CASES = {  # devices, distances, documents, window, whether the layer is global
    "causal": (2, None, None, 0, None), "window": (4, None, documents, 5, None),
    "distances in a global layer": (3, far, documents, 11, True), "wide window": (4, None, None, 21, False),
}
for name, (n, far, segments, window, is_global) in CASES.items():
    one = run(q, k, v, far, weights, segments, window, is_global)
    sizes = [n if axis == "context" else 1 for axis in MESH_AXES]
    mesh = jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES), devices=jax.devices()[:n])
    with jax.set_mesh(mesh):
        names = ("batch", "context", "heads", None)
        deal, back = (np.asarray(order.deal(np.arange(length)[None], back=b))[0] for b in (False, True))
        put = lambda x, spec: jax.device_put(np.asarray(x), spec)  # from the host: nothing to compile
        split = lambda x: None if x is None else put(np.asarray(x)[:, deal], activation_spec(*names[: x.ndim]))
        given = far and RelativeInputs(split(far.q_BSNH), put(far.r_TNH, activation_spec(None, "heads", None)))
        flag = None if is_global is None else put(is_global, jax.P())
        y, grads = run(split(q), split(k), split(v), given, split(weights), split(segments), window, flag)
        r = far and grads[3].r_TNH
        grads = jax.tree.map(lambda x: x if x is r else np.asarray(x)[:, back], grads)
        many, hidden = (np.asarray(y)[:, back], grads), split(q[:, :, 0])
        restored, dealt = jax.jit(lambda x: (order.restore(x), order.redeal(order.restore(x))))(hidden)
        assert (np.asarray(restored) == q[:, :, 0]).all() and (np.asarray(dealt) == np.asarray(hidden)).all()
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True)
    worst[name] = max(float(abs(a - np.asarray(b)).max() / abs(a).max()) for a, b in pairs)
print(json.dumps(worst))
"""


@pytest.mark.full
def test_the_ring_has_the_output_and_the_gradients_of_one_device():
    """Documents, windows, both kinds of layers and distances; chunks of 12, 8 and 6 tokens in blocks of 4, 4 and 6."""
    env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    worst = json.loads(done.stdout)
    assert len(worst) == 4 and max(worst.values()) < 3e-6, worst


def computed_blocks(n, chunk, block, window):
    """{(turn, device): blocks (of queries, of keys) in the sequence}, read off the schedule."""
    blocks, computed = chunk // block, {}

    def in_sequence(device, local):
        return (2 * n - 1 - device if local >= blocks else device) * blocks + local % blocks

    for device in range(n):
        computed[0, device] = [
            tuple(in_sequence(device, x) for x in pair) for pair in ring.own_pairs(chunk, block, window).tolist()
        ]
        for stretch in ring.ring_stretches(n, chunk, block, window):
            for turn in stretch.turns:
                other = (device - turn) % n
                pairs = ring.turn_pairs(stretch, other < device, blocks).tolist()
                computed[turn, device] = [(in_sequence(device, i), in_sequence(other, j)) for i, j in pairs]
    return computed


@pytest.mark.parametrize(("n", "chunk", "block"), [(2, 8, 4), (3, 4, 4), (5, 12, 4)])
def test_each_visible_block_is_computed_once_and_each_turn_is_equal_work(n, chunk, block):
    computed = computed_blocks(n, chunk, block, 0)
    total = collections.Counter(pair for pairs in computed.values() for pair in pairs)
    side = 2 * n * chunk // block
    assert total == collections.Counter((i, j) for i in range(side) for j in range(i + 1))
    for turn in range(n):
        assert len({len(computed[turn, device]) for device in range(n)}) == 1


@pytest.mark.parametrize(("window", "turns"), [(1, {0}), (2, {0, 1, 7}), (17, {0, 1, 7}), (18, {0, 1, 2, 6, 7})])
def test_a_window_is_whole_and_its_keys_travel_no_further(window, turns):
    n, chunk, block = 8, 16, 4
    computed = computed_blocks(n, chunk, block, window)
    total = collections.Counter(pair for pairs in computed.values() for pair in pairs)
    length = 2 * n * chunk
    needed = {(i // block, j // block) for i in range(length) for j in range(max(0, i - window + 1), i + 1)}
    assert needed <= set(total) and max(total.values()) == 1
    assert {turn for turn, _ in computed} == turns
    whole = sum(len(pairs) for pairs in computed_blocks(n, chunk, block, 0).values())
    assert len(total) < whole / 2


def traced(kernel="plain", segments=False):
    """(forward, backward): jaxprs of attention over 8 devices that share sequences, with or without documents."""
    n, length, heads, width = 8, 16_384, 2, 16
    sizes = [n if axis == "context" else 1 for axis in MESH_AXES]
    mesh = AbstractMesh(tuple(sizes), MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES))
    split = jax.sharding.NamedSharding(mesh, activation_spec("batch", "context", "heads", None))
    x = jax.ShapeDtypeStruct((1, length, heads, width), np.float32, sharding=split)
    by_token = jax.sharding.NamedSharding(mesh, activation_spec("batch", "context"))
    documents = jax.ShapeDtypeStruct((1, length), np.int32, sharding=by_token) if segments else None

    def attend(q, k, v, documents):
        return compute_attention(q, k, v, Scoring(0.3, MaskInfo(documents)), kernel)

    def pull(q, k, v, documents, dy):
        return jax.vjp(lambda *x: attend(*x, documents), q, k, v)[1](dy)

    with jax.sharding.use_abstract_mesh(mesh):
        return jax.make_jaxpr(attend)(x, x, x, documents), jax.make_jaxpr(pull)(x, x, x, documents, x)


def test_a_device_multiplies_half_of_the_square():
    """FLOPs of the traced program, forward and backward: each device's, as all run it. The mean is causality's."""
    n, length, heads, width = 8, 16_384, 2, 16
    forward, backward = traced()
    mean = 4 * heads * width * (length * (length + 1) / 2) / n
    for program, products in ((forward, 2), (backward, 7)):
        assert matmul_flops(program.jaxpr) == pytest.approx(mean * products / 2, rel=0.02)


def exchanges(jaxpr):
    """(name, type) of what devices exchange in a jaxpr, bodies of loops included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("ppermute", "all_gather"):
            yield from ((equation.primitive.name, x.aval.dtype.name) for x in equation.invars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from exchanges(inner)


@pytest.mark.parametrize("kernel", ["plain", "cudnn", "splash"])
def test_documents_are_gathered_and_travel_in_no_chain_of_their_own(kernel):
    """XLA moves such a chain to a loop of its own, beside that of the keys: fake devices then mix both up and crash."""
    for program in traced(kernel, segments=True):
        assert set(exchanges(program.jaxpr)) == {("ppermute", "float32"), ("all_gather", "int32")}
    for program in traced(kernel):
        assert set(exchanges(program.jaxpr)) == {("ppermute", "float32")}
