"""AdamW against the paper's recurrence in float64, and numbers that are traced."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab.optim.chain import OPTIMIZERS, adamw

STEPS = 30
H = {"clip_norm": 1.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
MULTIPLIERS = {"w": 0.25, "g": 1.0, "table": 1.0}
DECAY = {"w": True, "g": False, "table": True}


def problem(scale):
    """Random parameters and STEPS gradients of global norm about 5 `scale`, in float64."""
    random = np.random.default_rng(0)
    sizes = {"w": (3, 4), "g": (4,), "table": (2, 5)}
    params = {k: random.normal(size=size) for k, size in sizes.items()}
    return params, [{k: scale * random.normal(size=size) for k, size in sizes.items()} for _ in range(STEPS)]


def fp32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def by_recurrence(params, gradients, h, learning_rates):
    """Kingma & Ba 2015, Alg. 1, with Loshchilov & Hutter 2019, Alg. 2, line 12: decay beside the step, not in the moments."""
    m, v = ({k: np.zeros_like(p) for k, p in params.items()} for _ in range(2))
    for t, (gradient, lr) in enumerate(zip(gradients, learning_rates, strict=True), start=1):
        norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
        new = {}
        for k, p in params.items():
            g = gradient[k] * min(1.0, h["clip_norm"] / norm)
            m[k] = h["beta1"] * m[k] + (1 - h["beta1"]) * g
            v[k] = h["beta2"] * v[k] + (1 - h["beta2"]) * g**2
            m_hat, v_hat = m[k] / (1 - h["beta1"] ** t), v[k] / (1 - h["beta2"] ** t)
            step = MULTIPLIERS[k] * m_hat / (np.sqrt(v_hat) + h["eps"])
            new[k] = p - lr * (step + (h["weight_decay"] * p if DECAY[k] else 0))
        params = new
    return params


@jax.jit
def by_chain(params, gradients, h, learning_rates):
    def step(carry, at):
        params, state = carry
        gradient, lr = at
        updates, state = adamw(h, lr, MULTIPLIERS, DECAY).update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    start = params, adamw(h, 0.0, MULTIPLIERS, DECAY).init(params)
    return jax.lax.scan(step, start, (gradients, learning_rates))[0][0]


@pytest.mark.parametrize(
    ("scale", "changes"),
    [
        (1.0, {}),  # every gradient is clipped
        (0.01, {}),  # none is
        (0.2, {}),  # some are
        (0.01, {"eps": 0.01, "weight_decay": 0.0}),
        (1.0, {"beta1": 0.0, "beta2": 0.5, "weight_decay": 1.0, "clip_norm": 3.0}),
    ],
)
def test_thirty_steps_are_the_papers(scale, changes):
    h = H | changes
    params, gradients = problem(scale)
    rates = 0.02 * np.cos(np.arange(STEPS) / STEPS)
    expected = by_recurrence(params, gradients, h, rates)
    stacked = jax.tree.map(lambda *g: np.stack(g), *gradients)
    after = by_chain(*(fp32(x) for x in (params, stacked, h, rates)))
    for k in params:
        moved = np.abs(expected[k] - params[k]).max()
        np.testing.assert_allclose(after[k], expected[k], atol=1e-5 * moved + 5e-7, err_msg=k)


def test_one_compilation_serves_every_value():
    """The chain is built inside the step, so a traced hyperparameter must never meet Python's `if`."""
    traces = []

    @jax.jit
    def step(gradient, h, lr):
        traces.append(h)
        chain = OPTIMIZERS["adamw"](h, lr, MULTIPLIERS, DECAY)
        params = jax.tree.map(jnp.ones_like, gradient)
        return chain.update(gradient, chain.init(params), params)[0]["w"]

    gradient = fp32(problem(1.0)[1][0])
    others = {"clip_norm": 2.0, "beta1": 0.5, "beta2": 0.9, "eps": 1e-2, "weight_decay": 0.0}
    one, two = (step(gradient, fp32(h), jnp.float32(lr)) for h, lr in ((H, 0.1), (others, 0.2)))
    assert len(traces) == 1
    assert not np.allclose(one, two)


def test_first_step_is_the_sign_of_the_gradient():
    """Closed form: after one step m_hat / sqrt(v_hat) = sign(g), whatever the betas, the clip and the gradient's size."""
    gradient = fp32(problem(7.0)[1][0])
    h = H | {"weight_decay": 0.0, "eps": 1e-20}
    chain = adamw(h, 0.5, MULTIPLIERS, DECAY)
    updates, _ = chain.update(gradient, chain.init(gradient), gradient)
    for k, g in gradient.items():
        np.testing.assert_allclose(updates[k], -0.5 * MULTIPLIERS[k] * np.sign(g), rtol=1e-5)


def test_zero_gradients_decay_matrices_and_nothing_else():
    params = fp32(problem(1.0)[0])
    chain = adamw(H, 0.5, MULTIPLIERS, DECAY)
    updates, _ = chain.update(jax.tree.map(jnp.zeros_like, params), chain.init(params), params)
    for k, p in params.items():
        np.testing.assert_allclose(updates[k], -0.5 * 0.1 * p if DECAY[k] else np.zeros_like(p), rtol=1e-6)
