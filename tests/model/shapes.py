"""Tiny models of every preset, and random tokens for them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from scalelab import config as config_lib
from scalelab.config import ModelShape
from scalelab.configs import base
from scalelab.model import transformer
from scalelab.precision.policy import FP32
from tests.rounding import sum_error

PRESETS = ("llama", "gpt2", "chinchilla")
TINY = {"d_model": 32, "n_layers": 2, "n_heads": 4}


def shape(preset: str = "llama", parametrization: str = "standard", base_width: int = 64, **changes) -> ModelShape:
    """The static shape of a preset at 2 layers of width 32, vocabulary 31 and 12 tokens, unless told otherwise."""
    changes = {"vocab_size": 31, "seq_len": 12} | changes
    bases = {key: changes.pop(key) for key in ("base_layers", "base_d_head") if key in changes}
    config = base.get_config()
    config.model = getattr(base, preset)(*(changes.pop(key, default) for key, default in TINY.items()))
    config.parametrization.update(name=parametrization, base_width=base_width, **bases)
    config.model.update(changes)
    return config_lib.static(config_lib.resolve(config)).model


def tokens(of: ModelShape, batch: int = 2, seed: int = 0) -> jax.Array:
    """Random tokens [batch, seq_len + 1]."""
    return jnp.asarray(np.random.default_rng(seed).integers(0, of.vocab_size, (batch, of.seq_len + 1)))


def random_params(of: ModelShape, seed: int = 0, noise: float = 0.3):
    """Parameters as declared plus noise, so that no bias, gain or position is at a value that hides it."""
    random = np.random.default_rng(seed)

    def draw(d):
        return jnp.asarray(d.fill + random.normal(0, math.hypot(noise, d.std or 0), d.shape), jnp.float32)

    return jax.tree.map(draw, transformer.parameter_declarations(of))


@functools.partial(jax.jit, static_argnums=(0, 4))
def loss_and_grads(of: ModelShape, params, tokens_BS: jax.Array, z_weight=0.0, policy=FP32):
    """Mean loss of `tokens` [B, S + 1] and its gradient."""

    def mean(params):
        sums = transformer.summed_loss(of, params, tokens_BS[:, :-1], tokens_BS[:, 1:], z_weight, policy)
        return sums.objective / sums.tokens

    return jax.value_and_grad(mean)(params)


def chain_terms(of: ModelShape) -> int:
    """Terms of the sums that stand one after another between a token and its logits."""
    attention = 2 * of.d_model + of.d_head + 2 * of.seq_len + of.n_heads * of.d_head  # norm, q, scores, softmax, v, o
    return of.n_layers * (attention + 2 * of.d_model + of.d_ff) + 2 * of.d_model


def logit_error(of: ModelShape, logits) -> float:
    """Bound of the difference between two computations of these logits in fp32."""
    return sum_error(chain_terms(of), np.abs(logits).max())


def distance(a, b) -> float:
    """Norm of the difference of two trees over the norm of the second."""
    norms = [
        (np.sum(np.square(np.float64(x) - np.float64(y))), np.sum(np.square(np.float64(y))))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]
    difference, size = map(sum, zip(*norms, strict=True))
    return float(np.sqrt(difference / size))
