"""Adam, AdamW, SGD and momentum in all their conventions against recurrences in float64; and numbers that are
traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.config import replace_hparams
from scalelab.model.declare import named_leaves
from scalelab.optim.chain import build_optimizer_chain
from tests.optim.frame import assert_follows, by_chain, clipped, decays, nested, problem, rates, setting
from tests.quick import cross, one_in, others_slow


def by_adam(h, declared, params, gradients, lrs, coupled=False, corrected=True):
    """Kingma & Ba 2015, Alg. 1; decay beside the step (Loshchilov & Hutter 2019, Alg. 2, line 12) or in the gradient
    (line 6)."""
    b1, b2, eps, decay = (float(getattr(h.optim, k)) for k in ("beta1", "beta2", "eps", "weight_decay"))
    m, v = ({k: np.zeros_like(p) for k, p in params.items()} for _ in range(2))
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        gradient, new = clipped(gradient, h), {}
        for k, p in params.items():
            lam = decay if k in decays(declared) else 0.0
            g = gradient[k] + (lam * p if coupled else 0.0)
            m[k] = b1 * m[k] + (1 - b1) * g
            v[k] = b2 * v[k] + (1 - b2) * g**2
            m_hat, v_hat = (m[k] / (1 - b1**t), v[k] / (1 - b2**t)) if corrected else (m[k], v[k])
            new[k] = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + (0.0 if coupled else lam * p))
        params = new
    return params


def by_momentum(h, declared, params, gradients, lrs, nesterov=False, averaged=False):
    """Polyak 1964; Sutskever et al. 2013, eq. 3 and 4, in terms of the looked-ahead parameters; beta1 = 0 is SGD."""
    b, decay = float(h.optim.beta1), float(h.optim.weight_decay)
    m = {k: np.zeros_like(p) for k, p in params.items()}
    for gradient, lr in zip(gradients, lrs, strict=True):
        gradient, new = clipped(gradient, h), {}
        for k, p in params.items():
            g = gradient[k] + (decay * p if k in decays(declared) else 0.0)
            g = (1 - b) * g if averaged else g
            m[k] = b * m[k] + g
            new[k] = p - lr * (b * m[k] + g if nesterov else m[k])
        params = new
    return params


OF_ADAM = [
    (10.0, {}),  # every gradient is clipped
    (0.01, {}),  # none is
    (0.3, {}),  # some are
    (0.1, {"optim__eps": 0.01, "optim__weight_decay": 0.0}),
    (1.0, {"optim__beta1": 0.0, "optim__beta2": 0.5, "optim__weight_decay": 1.0, "optim__clip_norm": 3.0}),
    (0.1, {"optim__bias_correction": False}),
]


@pytest.mark.parametrize(
    ("name", "scale", "changes"),
    others_slow(
        lambda name, scale, changes: name == "adamw" or scale in (0.1, 0.3),
        cross(one_in(2, ["adamw", "adam"]), OF_ADAM),
    ),
    ids=str,
)
def test_thirty_steps_of_adam_are_the_papers(name, scale, changes):
    static, h = setting(name, **changes)
    declared, params, gradients = problem(scale)
    corrected = changes.get("optim__bias_correction", True)
    expected = by_adam(h, declared, params, gradients, rates(0.02), name == "adam", corrected)
    assert_follows(expected, by_chain(static, h, params, gradients, rates(0.02))[0], params)


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_thirty_steps_of_momentum(nesterov, averaged):
    static, h = setting("momentum", optim__nesterov=nesterov, optim__averaged=averaged, optim__weight_decay=0.1)
    declared, params, gradients = problem()
    expected = by_momentum(h, declared, params, gradients, rates(0.05), nesterov, averaged)
    assert_follows(expected, by_chain(static, h, params, gradients, rates(0.05))[0], params)


def test_thirty_steps_of_sgd():
    static, h = setting("sgd", optim__weight_decay=0.1)
    declared, params, gradients = problem()
    expected = by_momentum(replace_hparams(h, {"optim.beta1": 0.0}), declared, params, gradients, rates(0.05))
    assert_follows(expected, by_chain(static, h, params, gradients, rates(0.05))[0], params)


def test_the_two_momenta_differ_by_the_learning_rate_alone():
    """m of the EMA form is 1 - beta1 times heavy ball's; without decay, and with the LR that much higher, the steps are
    equal."""
    _, params, gradients = problem()
    actual = []
    for averaged, lr in ((False, 0.01), (True, 0.01 / (1 - 0.9))):
        static, h = setting("momentum", optim__averaged=averaged, optim__weight_decay=0.0)
        actual.append(by_chain(static, h, params, gradients, rates(lr))[0])
    assert_follows({k: np.float64(x) for k, x in actual[0].items()}, actual[1], params)


def test_one_compilation_serves_every_value():
    """The chain is built inside the step, so a traced hyperparameter must never meet Python's `if`."""
    static, h = setting("adamw")
    traces = []

    @jax.jit
    def step(gradient, h, lr):
        traces.append(h)
        transform = build_optimizer_chain(static, h, lr)
        params = jax.tree.map(jnp.ones_like, gradient)
        return named_leaves(transform.update(gradient, transform.init(params), params)[0])["head.w"]

    gradient = nested(problem()[2][0])
    changes = {"clip_norm": 2.0, "beta1": 0.5, "beta2": 0.9, "eps": 1e-2, "weight_decay": 0.0}
    others = replace_hparams(h, {f"optim.{name}": value for name, value in changes.items()})
    one, two = (
        step(gradient, jax.tree.map(jnp.float32, each), jnp.float32(lr)) for each, lr in ((h, 0.1), (others, 0.2))
    )
    assert len(traces) == 1
    assert not np.allclose(one, two)


def test_zero_gradients_decay_matrices_and_nothing_else():
    declared, params, gradients = problem()
    zeros = [{k: 0 * g for k, g in gradients[0].items()}]
    for changes, spared in (({}, set()), ({"optim__decay_embeddings": False}, {"embed.w"})):
        static, h = setting("adamw", **changes)
        after, _ = by_chain(static, h, params, zeros, [0.5])
        for k, p in params.items():
            remaining = 1 - 0.5 * 0.1 if k in decays(declared) - spared else 1.0
            np.testing.assert_allclose(after[k], remaining * p, rtol=1e-6, atol=1e-8, err_msg=k)


def test_groups_multiply_learning_rates():
    """Closed form: the first step of Adam is the sign of the gradient, whatever its size."""
    declared, params, gradients = problem(0.1)
    static, h = setting("adamw", optim__groups="embed=0.5,vector=3", optim__weight_decay=0.0, optim__eps=1e-20)
    after, _ = by_chain(static, h, params, gradients[:1], [0.01])
    for k, d in declared.items():
        factor = 0.5 if "vocab" in d.ins else 1.0 if d.ins else 3.0
        np.testing.assert_allclose(after[k], params[k] - 0.01 * factor * np.sign(gradients[0][k]), rtol=1e-5, atol=1e-6)
