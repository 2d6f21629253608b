"""What the tests of optimizers share: a small model's declarations, fixed gradients, and the chain run over them.

An oracle is a function (params, gradients, h, learning rates) -> params in numpy float64: nested dicts are flat here,
by name.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.model.declare import named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import registry
from scalelab.optim.chain import build_optimizer_chain
from tests.rounding import FP32

STEPS = 30
SMALL = {"model.d_model": 16, "model.n_layers": 2, "model.n_heads": 2, "model.vocab_size": 24, "model.seq_len": 16}


@functools.cache
def setting(name, **changes):
    """(static, h) of a two-layer model of width 16; changes as group__key=value."""
    config = tiny.get_config()
    config.optim.peak_lr = None
    values = SMALL | {"optim.name": name} | {key.replace("__", "."): value for key, value in changes.items()}
    config = config_lib.resolve(config_lib.override(config, values))
    return config_lib.static(config), jax.tree.map(np.float32, config_lib.hparams(config))


@functools.cache
def problem(scale=1.0, steps=STEPS, layers=2):
    """(declarations, params, gradients) by name: random, in float64, of another size for every parameter."""
    del layers
    declared, random = named_leaves(parameter_declarations(setting("adamw")[0].model)), np.random.default_rng(0)
    params = {k: 0.3 * random.normal(size=d.shape) for k, d in declared.items()}
    sizes = {k: scale * 10 ** random.uniform(-2, 0) for k in declared}
    gradients = [{k: sizes[k] * random.normal(size=d.shape) for k, d in declared.items()} for _ in range(steps)]
    return declared, params, gradients


def nested(flat):
    """{"a.b": x} -> {"a": {"b": x}} in fp32."""
    tree = {}
    for name, leaf in flat.items():
        *path, last = name.split(".")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = jnp.asarray(leaf, jnp.float32)
    return tree


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(static, watch, params, gradients, h, rates, extra):
    def step(carry, at):
        params, state = carry
        gradient, lr, extra = at
        updates, state = build_optimizer_chain(static, h, lr).update(gradient, state, params, **extra)
        return (optax.apply_updates(params, updates), state), watch(state)

    return jax.lax.scan(step, (params, build_optimizer_chain(static, h, 0.0).init(params)), (gradients, rates, extra))


def by_chain(static, h, params, gradients, rates, extra=None, watch=None):
    """Parameters by name, and the state, after the chain was given these gradients one after the other.

    `extra`: keyword arguments of the updates, each a tree of arrays with a leading axis of steps.
    `watch`: in place of the state, what this function returned of the state after each step, stacked.
    """
    stacked = nested({k: np.stack([g[k] for g in gradients]) for k in params})
    rates = jnp.asarray(rates, jnp.float32)
    (after, state), watched = _run(static, watch or _nothing, nested(params), stacked, h, rates, extra or {})
    return named_leaves(after), watched if watch else state


def _nothing(state):
    del state


def assert_follows(expected, actual, params, tolerance=1e-5, atol=3 * (STEPS + 1) ** 0.5 * FP32):
    """Each parameter's total update is the oracle's, relative to its size; `atol` is fp32's rounding of the parameter.

    It is rounded at first and after each step, by at most 2^-24 of it; of independent errors the squares add up: three
    standard deviations.
    """
    for k in params:
        moved, wanted = np.float64(actual[k]) - params[k], expected[k] - params[k]
        size = np.linalg.norm(wanted)
        assert np.linalg.norm(moved - wanted) <= tolerance * size + atol * np.linalg.norm(params[k]), (
            k,
            np.linalg.norm(moved - wanted) / size,
        )


def clipped(gradient, h):
    """The gradients as the chain's clip leaves them."""
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
    return {k: g * min(1.0, float(h.optim.clip_norm) / norm) for k, g in gradient.items()}


def rates(lr):
    """STEPS learning rates around `lr`."""
    return lr * np.cos(np.arange(STEPS) / STEPS)


def decays(declared):
    """The names that weight decay applies to: whatever has an input."""
    return {name for name, d in declared.items() if d.ins}


def kept_bytes(name, stated=False, **changes):
    """{parameter: bytes kept of it between steps}, found in the chain's state or as the optimizer says; step counts
    aside."""
    static, h = setting(name, **changes)
    declared = named_leaves(parameter_declarations(static.model))
    if stated:
        member, rest = registry.find_optimizer(name), registry.OPTIMIZERS["adamw"]
        return {k: (member if member.claims(d) else rest).state_bytes(d, static.optim) for k, d in declared.items()}
    empty = jax.eval_shape(
        lambda: build_optimizer_chain(static, h, 0.0).init(nested({k: np.zeros(d.shape) for k, d in declared.items()}))
    )
    total = dict.fromkeys(declared, 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(empty):
        place = ".".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)) + "."
        for k in declared:
            total[k] += leaf.size * leaf.dtype.itemsize if place.startswith(k + ".") else 0
    return total
