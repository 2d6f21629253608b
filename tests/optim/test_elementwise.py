"""RMSProp, NAdamW, Lion, AdEMAMix and Adalayer against their papers' recurrences in float64; and what each keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.config import group_hparams
from scalelab.optim import ademamix
from scalelab.optim.registry import OPTIMIZERS
from tests.optim.frame import STEPS, assert_follows, by_chain, clipped, decays, kept_bytes, problem, rates, setting
from tests.quick import cross, one_in, others_slow


def moved(h, declared, params, gradients, lrs, direction):
    """Clip, the direction of (name, gradient, t) and decoupled decay: what all of these have in common."""
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        gradient = clipped(gradient, h)
        decay = {k: float(h.optim.weight_decay) if k in decays(declared) else 0.0 for k in params}
        params = {k: p - lr * (direction(k, gradient[k], t) + decay[k] * p) for k, p in params.items()}
    return params


def rmsprop(h, declared):
    """Tieleman & Hinton 2012, slide 29, with eps as torch has it."""
    v = dict.fromkeys(declared, 0.0)

    def direction(k, g, t):
        v[k] = h.optim.beta2 * v[k] + (1 - h.optim.beta2) * g**2
        return g / (np.sqrt(v[k]) + h.optim.eps)

    return direction


def nadamw(h, declared):
    """Dozat 2016, Alg. 2, with one mu for all t."""
    m, v = dict.fromkeys(declared, 0.0), dict.fromkeys(declared, 0.0)
    b1, b2 = h.optim.beta1, h.optim.beta2

    def direction(k, g, t):
        m[k], v[k] = b1 * m[k] + (1 - b1) * g, b2 * v[k] + (1 - b2) * g**2
        ahead = b1 * m[k] / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        return ahead / (np.sqrt(v[k] / (1 - b2**t)) + h.optim.eps)

    return direction


def lion(h, declared):
    """Chen et al. 2023, Alg. 2."""
    m = dict.fromkeys(declared, 0.0)

    def direction(k, g, t):
        c = h.optim.beta1 * m[k] + (1 - h.optim.beta1) * g
        m[k] = h.optim.beta2 * m[k] + (1 - h.optim.beta2) * g
        return np.sign(c)

    return direction


def by_ademamix(h, declared):
    """Pagliardini et al. 2024, Alg. 1 and the two schedulers of section 3.1, beta3's as printed there."""
    m1, m2, v = (dict.fromkeys(declared, 0.0) for _ in range(3))
    b1, b2, b3, steps = h.optim.beta1, h.optim.beta2, h.optim.beta3, h.train.steps

    def direction(k, g, t):
        alpha = min(t * h.optim.alpha / steps, h.optim.alpha)
        logs = np.log(b1) * np.log(b3) / ((1 - t / steps) * np.log(b3) + t / steps * np.log(b1))
        slow = min(np.exp(logs), b3)
        m1[k], v[k] = b1 * m1[k] + (1 - b1) * g, b2 * v[k] + (1 - b2) * g**2
        m2[k] = slow * m2[k] + (1 - slow) * g
        return (m1[k] / (1 - b1**t) + alpha * m2[k]) / (np.sqrt(v[k] / (1 - b2**t)) + h.optim.eps)

    return direction


def adalayer(h, declared):
    """Zhao et al. 2024: v is a number for each layer's tensor."""
    m, v = dict.fromkeys(declared, 0.0), dict.fromkeys(declared, 0.0)
    b1, b2 = h.optim.beta1, h.optim.beta2

    def direction(k, g, t):
        layers = list(g) if declared[k].stack else [g]
        squares = np.array([np.sum(one**2) / one.size for one in layers])
        m[k], v[k] = b1 * m[k] + (1 - b1) * g, b2 * v[k] + (1 - b2) * squares
        rows = m[k].reshape(len(layers), -1) / (1 - b1**t)
        return (rows / (np.sqrt(v[k] / (1 - b2**t)) + h.optim.eps)[:, None]).reshape(g.shape)

    return direction


ORACLES = {"rmsprop": rmsprop, "nadamw": nadamw, "lion": lion, "ademamix": by_ademamix, "adalayer": adalayer}


SCALES = [(0.3, {}), (0.01, {"optim__eps": 1e-3, "optim__weight_decay": 0.0}), (3.0, {"optim__beta2": 0.8})]


@pytest.mark.parametrize(
    ("name", "scale", "changes"),
    others_slow(
        lambda name, scale, changes: scale != (0.01 if name == "lion" else 3.0),  # Lion has no eps
        cross(ORACLES, one_in(3, SCALES)),
    ),
    ids=str,
)
def test_thirty_steps_are_the_papers(name, scale, changes):
    changes = {key: value for key, value in changes.items() if name != "lion" or key != "optim__eps"}
    static, h = setting(name, **changes, **({"train__steps": STEPS - 10} if name == "ademamix" else {}))
    declared, params, gradients = problem(scale)
    exact = jax.tree.map(float, h)
    expected = moved(h, declared, params, gradients, rates(0.02), ORACLES[name](exact, declared))
    assert_follows(expected, by_chain(static, h, params, gradients, rates(0.02))[0], params)


def test_the_half_life_of_ademamixs_slow_moment_grows_evenly():
    """Appendix A.1: from beta1's to beta3's, where ln(beta) x half-life = -ln 2."""
    h = group_hparams({"optim.beta1": jnp.float32(0.9), "optim.beta3": jnp.float32(0.999)})
    decay_rates = jax.vmap(lambda share: ademamix.slow_decay(share, h))(jnp.array([0.0, 0.25, 0.5, 1.0]))
    lives = np.log(0.5) / np.log(np.float64(decay_rates))
    first, last = np.log(0.5) / np.log([0.9, 0.999])
    np.testing.assert_allclose(lives, first + (last - first) * np.array([0.0, 0.25, 0.5, 1.0]), rtol=1e-4)


def test_adalayer_of_single_numbers_is_adam():
    """Invariant: a layer of one number has Adam's second moment."""
    _, params, gradients = problem(0.3)
    one = {k: np.full_like(p, 1.0) for k, p in params.items()}
    equal = [{k: np.full_like(g, g.flat[0]) for k, g in each.items()} for each in gradients]
    actual = []
    for name in ("adalayer", "adamw"):
        static, h = setting(name, optim__weight_decay=0.0)
        actual.append(by_chain(static, h, one, equal, rates(0.02))[0])
    assert_follows({k: np.float64(x) for k, x in actual[1].items()}, actual[0], one)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_keeps_is_what_it_says(name):
    assert kept_bytes(name) == kept_bytes(name, stated=True)
