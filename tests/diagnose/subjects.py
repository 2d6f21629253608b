"""Subjects of the direct tests without a run: a small model's state on noisy weights, and a batch of random tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from scalelab import config as config_lib
from scalelab.config import Layout, override
from scalelab.configs import tiny
from scalelab.diagnose.probes.subject import Subject
from scalelab.train.step import program
from tests.train.states import init_state

SMALL = {
    "model.d_model": 16, "model.n_layers": 2, "model.n_heads": 4, "model.seq_len": 24, "train.global_batch": 4,
    "model.vocab_size": 32, "train.steps": 100,
}  # fmt: skip
SEPARATOR = 0


def make_subject(step=0, padded=False, noise=0.3, **changes):
    """A subject of configs/tiny.py at SMALL size; keys are written with two underscores for the dot."""
    overrides = SMALL | {key.replace("__", "."): value for key, value in changes.items()}
    config = config_lib.resolve(override(tiny.get_config(), overrides))
    static = dataclasses.replace(config_lib.static(config), layout=Layout(), layers=False)
    h = config_lib.replace_hparams(config_lib.hparams(config), {"dataset.separator": SEPARATOR})
    h, rng = program.traced_hparams(h), np.random.default_rng(0)

    def noisy(w):
        values = np.asarray(w)  # by numpy: jax would compile each operation for each shape
        added = noise * rng.standard_normal(w.shape) * (np.std(values) + 0.1)
        return jax.device_put((values + added.astype(w.dtype)).astype(w.dtype), w.sharding)

    state = init_state(static, h)
    state = state._replace(params=jax.tree.map(noisy, state.params), step=jnp.int32(step))
    tokens = rng.integers(0, static.model.vocab_size, (static.global_batch, static.model.seq_len + 1))
    tokens[rng.random(tokens.shape) < 0.1] = SEPARATOR
    if padded:
        tokens[1, 9:] = -1
    return Subject(static, h, step, state, jnp.asarray(tokens, jnp.int32), None)
