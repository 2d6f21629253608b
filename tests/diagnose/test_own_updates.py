"""What a user's own optimizer makes of gradients: optax's own are sound, and each slip in one is named."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab.diagnose.checks.state.own_averages import check_own_averages
from scalelab.diagnose.probes.leaves.impulse import describe_answer, probe_impulse
from scalelab.diagnose.verdict import Verdict
from tests.diagnose.evidences import healthy
from tests.diagnose.subjects import make_subject
from tests.quick import others_slow

DECLARED = {"optim__beta1": 0.9, "optim__beta2": 0.95, "optim__eps": 1e-6}


def by_path(change):
    return optax.stateless(lambda u, _: jax.tree_util.tree_map_with_path(change, u))


def with_state(b1, b2, first, second, kept=None):
    """Adam's direction with other shares of the gradient and of its square; `kept`: of the old average, else b1."""
    kept = b1 if kept is None else kept

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"m": zeros, "v": zeros, "t": jnp.zeros([], jnp.int32)}

    def update(grads, state, params=None):
        t = state["t"] + 1
        m = jax.tree.map(lambda m, g: kept * m + first * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: b2 * v + second * g * g, state["v"], grads)
        out = jax.tree.map(lambda m, v: m / (1 - b1**t) / (jnp.sqrt(v / (1 - b2**t)) + 1e-6), m, v)
        return out, {"m": m, "v": v, "t": t}

    return optax.GradientTransformation(init, update)


def with_squares_of_the_mean(b1, b2, names=("mu", "nu")):
    """Adam's direction whose second moment is fed with the first."""

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return dict.fromkeys(names, zeros) | {"t": jnp.zeros([], jnp.int32)}

    def update(grads, state, params=None):
        t, (mu, nu) = state["t"] + 1, (state[name] for name in names)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, grads)
        nu = jax.tree.map(lambda v, m: b2 * v + (1 - b2) * m * m, nu, mu)
        out = jax.tree.map(lambda m, v: m / (1 - b1**t) / (jnp.sqrt(v / (1 - b2**t)) + 1e-8), mu, nu)
        return out, dict(zip(names, (mu, nu), strict=True)) | {"t": t}

    return optax.GradientTransformation(init, update)


def a_step_late():
    """Adam's direction of the moments before the step's gradient is in them."""
    adam = optax.scale_by_adam(0.9, 0.95, eps=1e-6)

    def update(grads, state, params=None):
        late, _ = adam.update(jax.tree.map(jnp.zeros_like, grads), state, params)
        return late, adam.update(grads, state, params)[1]

    return optax.GradientTransformation(adam.init, update)


def of_magnitudes():
    """Adam's direction with the mean of magnitudes where that of squares belongs."""

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"m": zeros, "v": zeros}

    def update(grads, state, params=None):
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * jnp.abs(g), state["v"], grads)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + 1e-8), m, v), {"m": m, "v": v}

    return optax.GradientTransformation(init, update)


CHAINS = {
    "of_magnitudes": of_magnitudes,
    "a_step_late": a_step_late,
    "adam": lambda: optax.scale_by_adam(0.9, 0.95, eps=1e-6),
    "amsgrad": lambda: optax.scale_by_amsgrad(0.9, 0.95, eps=1e-6),
    "yogi": lambda: optax.scale_by_yogi(0.9, 0.95),
    "lion": lambda: optax.scale_by_lion(0.9, 0.95),
    "trace": lambda: optax.trace(0.9),
    "rms_and_momentum": lambda: optax.chain(optax.scale_by_rms(0.95), optax.trace(0.9)),
    "slower_below": lambda: optax.chain(
        optax.scale_by_adam(0.9, 0.95), by_path(lambda path, x: 0.5 * x if "embed" in jax.tree_util.keystr(path) else x)
    ),
    "summed_squares": lambda: with_state(0.9, 0.95, 0.1, 1.0),
    "summed_gradients": lambda: with_state(0.9, 0.95, 1.0, 0.05),
    "squares_of_the_mean": lambda: with_squares_of_the_mean(0.9, 0.95),
    "adamomentum": lambda: with_squares_of_the_mean(0.9, 0.95, ("exp_avg", "exp_avg_sq")),
    "belief": lambda: optax.scale_by_belief(0.9, 0.95),
    "nothing_kept": lambda: with_state(0.9, 0.95, 0.1, 0.05, kept=0.0),
    "half_kept": lambda: with_state(0.9, 0.95, 0.1, 0.05, kept=0.5),
    "betas_exchanged": lambda: optax.scale_by_adam(0.95, 0.9, eps=1e-6),
    "eps_under_the_root": lambda: optax.scale_by_adam(0.9, 0.95, eps=0.0, eps_root=1e-6),
    "every_fourth": lambda: optax.MultiSteps(optax.scale_by_adam(0.9, 0.95), 4).gradient_transformation(),
    "slow_table": lambda: optax.chain(
        optax.scale_by_adam(0.9, 0.95),
        by_path(lambda path, x: 1e-3 * x if "embed" in jax.tree_util.keystr(path) else x),
    ),
}
SOUND = ("adam", "amsgrad", "yogi", "lion", "trace", "rms_and_momentum", "slower_below", "adamomentum", "belief")
STAYING = ("adam", "adamomentum", "slower_below")
FAULTS = {
    "summed_squares": ("moments_wrong", "summed, not averaged"),
    "summed_gradients": ("moments_wrong", "summed, not averaged"),
    "squares_of_the_mean": ("moments_wrong", "averages the squares of 1.mu, by 0.95 a step"),
    "nothing_kept": ("moments_wrong", "keeps nothing of those before"),
    "half_kept": ("moments_wrong", "keeps 0.5 of what stood there, not 0.9"),
    "betas_exchanged": ("moments_wrong", "that is the other beta"),
    "eps_under_the_root": ("eps_dominates", "acts like one of 0.0009"),
    "of_magnitudes": ("moments_wrong", "averages magnitudes of gradients by beta2"),
    "a_step_late": ("update_wrong", "changes nothing in the update of its own step"),
    "every_fourth": ("update_wrong", "nothing at 75% of the steps"),
    "slow_table": ("leaf_out_of_scale", "moves embed.w by 0.001 of the LR"),
}


def build(name):
    return lambda declared, o, h, lr: CHAINS[name]()


for _name in CHAINS:
    globals()[f"chain_{_name}"] = build(_name)


def judge(name):
    own = f"{__name__}:chain_{name}"
    subject = make_subject(optim__name=own, optim__peak_lr=1e-2, **DECLARED)
    evidence = healthy(optim__name=own, **DECLARED)
    evidence = dataclasses.replace(evidence, probes={"step": 1} | probe_impulse(subject))
    return [each for each in check_own_averages(evidence) if isinstance(each, Verdict)]


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name in STAYING, SOUND))
def test_optimizers_of_a_library_have_no_verdict(name):
    assert judge(name) == []


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name not in ("summed_squares", "half_kept"), FAULTS))
def test_a_slip_is_named(name):
    cause, words = FAULTS[name]
    (verdict,) = judge(name)
    assert verdict.cause == cause and words in verdict.evidence, verdict


def kept(**arrays):
    evidence = healthy(optim__name="mine:own", **DECLARED)
    probes = {"step": 1} | {f"kept/{name}": array for name, array in arrays.items()}
    found = check_own_averages(dataclasses.replace(evidence, probes=probes))
    return [(each.cause, each.evidence) for each in found if isinstance(each, Verdict)]


def test_an_array_that_takes_the_share_of_a_beta_and_keeps_another_is_named():
    squares = (2, 0.95, 0.05)
    ((cause, text),) = kept(m=(1, 0.0, 0.1), v=squares)
    assert cause == "moments_wrong" and "keeps nothing of those before" in text and "optim.beta1=0.9" in text
    ((cause, text),) = kept(m=(1, 0.9, 0.1), v=(2, 0.5, 0.05))
    assert cause == "moments_wrong" and "optim.beta2=0.95" in text
    # an average; the last gradient beside it; Lion's one average, by beta2; a share that the optimizer finds by itself
    for sound in ({"m": (1, 0.9, 0.1)}, {"m": (1, 0.9, 0.1), "last": (1, 0.0, 1.0)}, {"m": (1, 0.9, 1e-5)},
                  {"last": (1, 0.0, 0.5)}):  # fmt: skip
        assert kept(**sound, v=squares) == [], sound
    assert kept(m=(1, 0.95, 0.05)) == []


def test_an_average_a_sum_and_neither_are_told_apart():
    """(1 - b) g b^t is an average, g b^t a sum; a largest value so far is neither."""
    course = 0.9 ** np.arange(9)
    assert describe_answer(0.1 * course, 0.2 * course) == pytest.approx((1, 0.9, 0.1))
    assert describe_answer(course, 4 * course) == pytest.approx((2, 0.9, 1.0))
    once = np.eye(9)[0]
    assert describe_answer(0.1 * once, 0.2 * once) == pytest.approx((1, 0.0, 0.1)), "nothing is left of it"
    assert describe_answer(np.ones(9), 4 * np.ones(9)) is None
    assert describe_answer(0.1 * course, 0.1 * course) is None
