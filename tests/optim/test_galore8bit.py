"""8-bit GaLore against GaLore itself: the same until moments are coded, and its state in bytes."""

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import Optim, group_hparams
from scalelab.model.declare import Declaration
from scalelab.optim.galore import GALORE
from scalelab.optim.galore8bit import GALORE8BIT, low_declaration

HIDDEN = Declaration((2, 96, 128), ("embed",), ("mlp",), stack=("layers",))
GAIN = Declaration((2, 96), (), ("embed",), "gain", stack=("layers",))
H = group_hparams({"optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-6, "optim.low_rank_scale": 0.25})
OPTIONS = Optim("galore8bit", rank=64, every=100)


def test_it_is_galore_but_for_the_rounding_of_projection_and_moments():
    """Ten steps on gradients of rank 8 with one direction each: some percent off (8-bit Adam alone is 2 % off)."""
    random = np.random.default_rng(0)
    h = jax.tree.map(jnp.float32, H)
    transforms = [one.build({"w": HIDDEN}, OPTIONS, h, jnp.float32(1)) for one in (GALORE, GALORE8BIT)]
    states, moves = [one.init({"w": jnp.zeros(HIDDEN.shape)}) for one in transforms], [0.0, 0.0]
    base = random.normal(size=(2, 96, 8)) @ random.normal(size=(2, 8, 128))
    updates = [jax.jit(one.update) for one in transforms]
    for _ in range(10):
        grads = {"w": jnp.asarray(base + 0.1 * random.normal(size=HIDDEN.shape), jnp.float32)}
        for i in (0, 1):
            moved, states[i] = updates[i](grads, states[i])
            moves[i] = moves[i] + np.float64(moved["w"])
    assert np.linalg.norm(moves[1] - moves[0]) < 0.1 * np.linalg.norm(moves[0])


def test_state_in_bytes():
    """Two bytes a number of P, and 2 (1 + 4/256) a number of P^T G; small tensors as in fp32."""
    assert low_declaration(HIDDEN, OPTIONS).shape == (2, 64, 128)
    coded = 2 * 2 * (64 * 128 // 256) * (256 + 4)
    assert GALORE8BIT.state_bytes(HIDDEN, OPTIONS) == 2 * 2 * 96 * 64 + coded
    assert GALORE8BIT.state_bytes(GAIN, OPTIONS) == 8 * GAIN.size
    state = jax.eval_shape(lambda: GALORE8BIT.build({"w": HIDDEN, "g": GAIN}, OPTIONS, H, jnp.float32(1)).init({}))
    arrays = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state) if x.ndim)
    assert arrays == GALORE8BIT.state_bytes(HIDDEN, OPTIONS) + GALORE8BIT.state_bytes(GAIN, OPTIONS)
