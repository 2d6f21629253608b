"""Runs on one batch in full: a small transformer followed by its sharpness, and the largest rates that train it."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.data.batches.batches import train_batches
from scalelab.diagnose.probes.sharpness import largest_eigenvalue
from scalelab.train.single import load_run_dataset
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import compute_gradients
from scalelab.train.step.update.curvature import hessian_product

ROWS, SEQ_LEN, WIDTH = 32, 16, 16
EVERY, CHECKS = 150, 20  # steps between measurements, and their number
MOMENTUM, BETA2, EPS = 0.9, 0.999, 1e-8
# optimizer: (sharpness x LR at the edge, learning rates)
EDGES = {"gradient descent": (2.0, (0.04, 0.08, 0.16)), "momentum 0.9": (2 + 2 * MOMENTUM, (0.01, 0.03)),
         "Adam": ((2 + 2 * MOMENTUM) / (1 - MOMENTUM), (1e-3, 3e-3))}  # fmt: skip
SMALL_BATCH, BATCH_LR = 2, 0.08  # sequences, of ROWS
WARMUP, WARMUP_STEPS = 100, 200
WARMUP_RATES = tuple(0.16 * 2.0**power for power in range(8))


@functools.cache
def build_setting() -> tuple[Any, config_lib.Hparams, Any]:
    """(static, traced hparams, dataset) of configs/tiny.py with one layer of width 16."""
    values = {"model.d_model": WIDTH, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": SEQ_LEN,
              "train.global_batch": ROWS}  # fmt: skip
    config = config_lib.resolve(config_lib.override(tiny.get_config(), values))
    traced = jax.tree.map(jnp.float32, config_lib.hparams(config))
    return config_lib.static(config), traced, load_run_dataset(config)


def start(seed: int) -> tuple[Any, jax.Array]:
    """First weights and the batch [B, S + 1] of a seed."""
    static, h, data = build_setting()
    tokens = jnp.asarray(train_batches(data, SEQ_LEN, ROWS, seed).batch(0))
    return state_lib.init_state(static, config_lib.replace_hparams(h, {"train.seed": jnp.uint32(seed)})).params, tokens


def mean_loss(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    """(loss in nats/token, gradient)."""
    sums, grads = compute_gradients(build_setting()[0], params, tokens, jnp.float32(0))
    return sums.objective / sums.tokens, grads


def find_sharpness(params: Any, tokens: jax.Array, roots: jax.Array | float = 1.0) -> float:
    """The largest eigenvalue of R H R, with R = diag(roots), H the Hessian of the mean loss on `tokens`."""
    flat, _ = ravel_pytree(params)
    return largest_eigenvalue(lambda v: roots * _hessian_vector(params, roots * v, tokens), flat.size)


@jax.jit
def _hessian_vector(params: Any, vector: jax.Array, tokens: jax.Array) -> jax.Array:
    _, restore = ravel_pytree(params)
    return ravel_pytree(hessian_product(build_setting()[0], params, restore(vector), tokens))[0]


def make_rule(optimizer: str, lr: float | jax.Array | optax.Schedule) -> optax.GradientTransformation:
    """The optimizer of this name, as in the papers: no decay, no clip."""
    if optimizer == "Adam":
        return optax.adam(lr, MOMENTUM, BETA2, EPS)
    return optax.sgd(lr, momentum=MOMENTUM if optimizer.startswith("momentum") else None)


def adam_roots(opt_state: Any) -> jax.Array:
    """(sqrt(v_hat) + eps) ** -1/2 of Adam's state: the factor on each side of the preconditioned Hessian."""
    adam = opt_state[0]
    return (jnp.sqrt(ravel_pytree(adam.nu)[0] / (1 - BETA2**adam.count)) + EPS) ** -0.5


def follow(optimizer: str, lr: float, seed: int, batch: int = ROWS) -> dict[str, Any]:
    """Losses, and sharpness (preconditioned under Adam) of the whole batch, every EVERY steps from step 0 on."""
    params, tokens = start(seed)
    rule = make_rule(optimizer, lr)

    @jax.jit
    def advance(params: Any, state: Any, key: jax.Array) -> tuple[Any, Any, jax.Array]:
        def step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            params, state = carry
            rows = tokens if batch == ROWS else tokens[jax.random.choice(key, ROWS, (batch,), replace=False)]
            loss, grads = mean_loss(params, rows)
            updates, state = rule.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, state), losses = jax.lax.scan(step, (params, state), jax.random.split(key, EVERY))
        return params, state, losses.mean()

    state, losses, values = rule.init(params), [], [find_sharpness(params, tokens)] if optimizer != "Adam" else []
    for check in range(CHECKS):
        params, state, loss = advance(params, state, jax.random.fold_in(jax.random.key(seed), check))
        losses.append(float(loss))
        values.append(find_sharpness(params, tokens, adam_roots(state) if optimizer == "Adam" else 1.0))
    return {"losses": losses, "sharpness": values}


def late(run: Mapping[str, Any]) -> float:
    """The median sharpness of the last half of a run."""
    return float(np.median(run["sharpness"][-CHECKS // 2 :]))


def largest_rates(optimizer: str, seed: int) -> dict[str, float]:
    """The largest of WARMUP_RATES whose last 20 steps all lie below half the first loss, with and without warm-up."""
    params, tokens = start(seed)

    @functools.partial(jax.jit, static_argnums=1)
    @functools.partial(jax.vmap, in_axes=(0, None))
    def train(lr: jax.Array, warmup: int) -> jax.Array:
        rule = make_rule(optimizer, optax.linear_schedule(0.0, lr, warmup) if warmup else lr)

        def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
            params, state = carry
            loss, grads = mean_loss(params, tokens)
            updates, state = rule.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        return jax.lax.scan(step, (params, rule.init(params)), None, length=WARMUP_STEPS)[1]

    largest = {}
    for name, warmup in (("with", WARMUP), ("without", 0)):
        losses = np.asarray(train(jnp.asarray(WARMUP_RATES, jnp.float32), warmup))
        trained = (losses[:, -20:].max(axis=1) < losses[0, 0] / 2).tolist()  # false where it is not a number
        largest[name] = max(
            (lr for lr, is_trained in zip(WARMUP_RATES, trained, strict=True) if is_trained), default=0.0
        )
    return largest
