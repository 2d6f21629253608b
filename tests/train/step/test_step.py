"""The step: accumulation, skipping, many steps in one dispatch, precision, and golden numbers."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.model import transformer
from scalelab.testing.golden import GOLDEN
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import compute_gradients, loss_sums
from scalelab.train.step.report.report import STEP_METRICS
from scalelab.train.step.step import evaluation_loss, many_steps, train_step
from tests.train.runs import ROOT
from tests.train.states import init_state

SEQ_LEN, BATCH, K = 16, 8, 4


@functools.cache
def setting(**changes):
    """(static, traced hparams) of a one-layer model of width 16 on 8 sequences of 16 tokens."""
    config = tiny.get_config()
    overrides = {
        "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": SEQ_LEN, "model.vocab_size": 32,
        "train.global_batch": BATCH, "train.steps": 50, "schedule.warmup_steps": 4, "train.z_loss": 1e-3,
    }  # fmt: skip
    config = config_lib.resolve(config_lib.override(config, overrides | dict(changes)))
    h = config_lib.replace_hparams(config_lib.hparams(config), {"log.every_steps": 1})
    return config_lib.static(config), jax.tree.map(jnp.float32, h)


STATIC, H = setting()
step = jax.jit(train_step, static_argnums=0)
steps = jax.jit(many_steps, static_argnums=0)
init = jax.jit(state_lib.init_state, static_argnums=0)


def batches(k=K, vocab=32, seed=0):
    """Text with something to learn: each token is the last one plus one or two, [k, B, S + 1]."""
    random = np.random.default_rng(seed)
    return jnp.asarray(np.cumsum(random.integers(1, 3, (k, BATCH, SEQ_LEN + 1)), axis=-1) % vocab, jnp.int32)


@functools.cache
def trained():
    """A state some steps into training, so that no moment is zero, and the batches that led there."""
    return steps(STATIC, init(STATIC, H), batches(), jnp.int32(K), H)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def relative(a, b):
    difference = sum(
        np.sum(np.square(np.float64(x) - np.float64(y))) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )
    return float(np.sqrt(difference / sum(np.sum(np.square(np.float64(y))) for y in jax.tree.leaves(b))))


@pytest.mark.full
@pytest.mark.parametrize("accumulate", [2, 8])
def test_accumulation_is_the_big_batch_with_ragged_ignored_positions(accumulate):
    tokens = np.array(batches()[0])
    tokens[0] = -1  # a whole micro-batch of 8 with nothing left
    tokens[1, 5:], tokens[2, 3], tokens[7, 2:9] = -1, -1, -1
    params, z_weight = trained()[0].params, jnp.float32(0.1)
    whole = jax.jit(compute_gradients, static_argnums=0)
    sums, grads = whole(STATIC, params, tokens, z_weight)
    split = dataclasses.replace(STATIC, accumulate=accumulate)
    split_sums, split_grads = whole(split, params, tokens, z_weight)
    assert sums.tokens == split_sums.tokens == (tokens[:, 1:] >= 0).sum()
    assert relative(split_sums, sums) < 2e-6
    assert relative(split_grads, grads) < 2e-6


@pytest.mark.full
def test_the_gradient_is_that_of_the_mean_over_tokens_that_count():
    tokens = np.array(batches()[0])
    tokens[3, 4:] = -1
    params = trained()[0].params

    @jax.jit
    @jax.grad
    def expected(params):
        log_p = jax.nn.log_softmax(transformer.next_token_logits(STATIC.model, params, jnp.maximum(tokens[:, :-1], 0)))
        picked = jnp.take_along_axis(log_p, jnp.maximum(tokens[:, 1:, None], 0), -1)[..., 0]
        return -jnp.mean(picked, where=tokens[:, 1:] >= 0)

    _, grads = compute_gradients(STATIC, params, tokens, jnp.float32(0))
    assert relative(grads, expected(params)) < 2e-6


def test_metrics_are_what_they_say():
    state, tokens = trained()[0], batches(seed=1)[0]
    new, metrics = step(STATIC, state, tokens, H)
    assert set(STEP_METRICS) <= set(metrics)
    sums, grads = jax.jit(compute_gradients, static_argnums=0)(STATIC, state.params, tokens, H.train.z_loss)

    def norm(tree):
        return np.sqrt(sum(np.sum(np.float64(x) ** 2) for x in jax.tree.leaves(tree)))

    np.testing.assert_allclose(metrics["train_loss"], sums.nll / sums.tokens, rtol=1e-6)  # without the z-loss
    assert sums.objective > sums.nll
    np.testing.assert_allclose(metrics["grad_norm"], norm(grads), rtol=1e-5)
    moved = jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), new.params, state.params)
    np.testing.assert_allclose(metrics["update_norm"], norm(moved), rtol=1e-4)
    np.testing.assert_allclose(metrics["param_norm"], norm(new.params), rtol=1e-6)
    assert new.step == state.step + 1


POISONS = [
    *({"train.z_loss": value} for value in (np.inf, np.nan, 3e38)),
    *({"optim.peak_lr": value} for value in (np.inf, np.nan, -np.inf)),
    {"optim.weight_decay": np.nan},
    {"optim.beta1": np.inf, "schedule.beta1_start": np.inf},
]


@pytest.mark.parametrize("poison", POISONS, ids=str)
def test_a_step_that_is_not_finite_changes_nothing_but_counters(poison):
    """Inf, NaN, a finite loss whose gradient overflows; an LR, decay or momentum that would poison every parameter."""
    state = trained()[0]
    after, metrics = step(
        STATIC, state, batches(seed=1)[0], config_lib.replace_hparams(H, jax.tree.map(jnp.float32, poison))
    )
    assert_same((after.params, after.opt_state), (state.params, state.opt_state))
    assert (after.step, after.skipped, after.streak) == (state.step + 1, state.skipped + 1, state.streak + 1)
    assert metrics["update_norm"] == 0
    again, _ = step(
        STATIC, after, batches(seed=2)[0], config_lib.replace_hparams(H, {"train.z_loss": jnp.float32(jnp.inf)})
    )
    assert (again.skipped, again.streak) == (2, 2)
    good, metrics = step(STATIC, again, batches(seed=1)[0], H)
    assert (good.step, good.skipped, good.streak) == (state.step + 3, 2, 0)
    assert np.isfinite(metrics["train_loss"])
    assert metrics["update_norm"] > 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((good.params, good.opt_state)))


def divides(declared, o, h, lr):
    """A user's own optimizer, with an update that is infinite where beta2 is 0."""
    return optax.stateless(lambda grads, _: jax.tree.map(lambda g: g / h.optim.beta2, grads))


@pytest.mark.full
def test_an_own_optimizers_update_that_is_not_finite_is_skipped_by_the_packed_trial_that_made_it():
    static, h = setting(**{"optim.name": f"{__name__}:divides", "optim.peak_lr": 1e-2, "optim.beta2": 0.9})
    state = jax.jit(state_lib.init_state, static_argnums=0)(static, h)
    both = jax.tree.map(lambda v: jnp.stack([v, v]), h)
    both = config_lib.replace_hparams(both, {"optim.beta2": jnp.float32([0.9, 0.0])})
    packed = jax.jit(jax.vmap(functools.partial(train_step, static), in_axes=(None, None, 0)))
    after, metrics = packed(state, batches()[0], both)
    assert np.isfinite(metrics["train_loss"]).all() and np.isfinite(metrics["grad_norm"]).all()
    assert after.skipped.tolist() == after.streak.tolist() == [0, 1]
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], after.params) for i in (0, 1))
    assert_same(second, state.params)
    assert relative(first, state.params) > 1e-6 and all(np.isfinite(x).all() for x in jax.tree.leaves(first))


def test_broken_parameters_are_counted_not_spread():
    state = trained()[0]
    broken = state._replace(
        params=state.params | {"final_norm": {"g": state.params["final_norm"]["g"].at[0].set(jnp.nan)}}
    )
    after, metrics = step(STATIC, broken, batches(seed=1)[0], H)
    assert np.isnan(metrics["train_loss"])
    assert_same((after.params, after.opt_state), (broken.params, broken.opt_state))
    assert after.skipped == 1


def test_a_batch_with_nothing_to_predict_has_loss_zero():
    state = trained()[0]
    after, metrics = step(STATIC, state, jnp.full((BATCH, SEQ_LEN + 1), -1, jnp.int32), H)
    assert (metrics["train_loss"], metrics["grad_norm"], after.skipped) == (0, 0, 1)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after.params, after.opt_state)))


def test_many_steps_are_single_steps():
    state, log = trained()
    alone = init(STATIC, H)
    for i, tokens in enumerate(batches()):
        alone, metrics = step(STATIC, alone, tokens, H)
        for name, value in metrics.items():
            np.testing.assert_allclose(log[name][i], value, rtol=1e-5, err_msg=f"{name} of step {i}")
    assert state.step == alone.step == K
    assert relative(state.params, alone.params) < 1e-6


@pytest.mark.full
def test_fewer_steps_than_batches_leave_the_rest_untouched():
    two, log = steps(STATIC, init(STATIC, H), batches(), jnp.int32(2), H)
    compiled = steps._cache_size()
    assert two.step == 2
    np.testing.assert_array_equal(log["train_loss"][:2], trained()[1]["train_loss"][:2])
    assert not np.any(log["train_loss"][2:])
    other = batches().at[2:].set(0)  # what stands in the batches not taken is of no consequence
    assert_same(steps(STATIC, init(STATIC, H), other, jnp.int32(2), H)[0], two)
    rest, _ = steps(STATIC, two, jnp.roll(batches(), -2, axis=0), jnp.int32(2), H)
    assert_same(rest, trained()[0])
    assert steps._cache_size() == compiled  # n is traced


def test_hparams_are_traced():
    step(STATIC, trained()[0], batches()[0], jax.tree.map(lambda v: v / 2, H))
    compiled = step._cache_size()
    step(STATIC, trained()[0], batches()[0], jax.tree.map(lambda v: v / 3, H))
    assert step._cache_size() == compiled


def test_evaluate_weighs_tokens_not_batches():
    val = np.array(batches(3))
    val[0, 1:], val[2, :, 4:] = -1, -1
    params = trained()[0].params
    sums = [loss_sums(STATIC, params, jnp.asarray(part), 0.5) for part in val]
    expected = sum(float(s.nll) for s in sums) / sum(float(s.tokens) for s in sums)
    np.testing.assert_allclose(
        jax.jit(evaluation_loss, static_argnums=0)(STATIC, trained()[0], val, H), expected, rtol=1e-6
    )


@pytest.mark.full
def test_bf16_learns_with_fp32_parameters_and_moments():
    static, h = setting(**{"precision.name": "bf16", "optim.peak_lr": 3e-2})
    state, losses = init(static, h), []
    for _ in range(10):
        state, log = steps(static, state, batches(), jnp.int32(K), h)
        losses.append(float(log["train_loss"].mean()))
    assert losses[0] > np.log(32) - 0.3
    assert losses[-1] < losses[0] - 1
    floats = [
        x.dtype for x in jax.tree.leaves((state.params, state.opt_state)) if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    assert set(floats) == {jnp.dtype(jnp.float32)}
    assert log["train_loss"].dtype == jnp.float32
    assert state.skipped == 0


def test_digest_sees_names_values_and_order():
    params = {"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)}
    digests = [
        state_lib.params_digest(p)
        for p in (
            params,
            {"b": params["b"], "a": params["a"]},
            {"a": params["b"], "b": params["a"]},
            {"a": params["a"], "c": params["b"]},
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_what_is_logged_changes_no_bit_and_norms_in_between_are_nan():
    start = init(STATIC, H)
    every, log = steps(STATIC, start, batches(), jnp.int32(3), H)
    every_second = config_lib.replace_hparams(H, {"log.every_steps": jnp.float32(2)})
    rare, sparse = steps(STATIC, start, batches(), jnp.int32(3), every_second)
    assert_same(rare, every)
    for name in ("update_norm", "param_norm"):
        np.testing.assert_array_equal(np.isnan(sparse[name][:3]), [True, False, True])
        assert sparse[name][1] == log[name][1] > 0


def test_a_state_for_tests_is_that_of_a_run():
    states = init_state(STATIC, H), init(STATIC, H)
    pairs = zip(*(jax.tree.leaves(state) for state in states), strict=True)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def test_golden_metrics_of_two_steps():
    config = config_lib.resolve(tiny.get_config())
    static, h = (
        config_lib.static(config),
        config_lib.replace_hparams(config_lib.hparams(config), {"log.every_steps": 1}),
    )
    h = jax.tree.map(jnp.float32, h)
    rows = np.arange(2 * 16)[:, None] * 7 + np.arange(129)[None] ** 2
    tokens = jnp.asarray(rows.reshape(2, 16, 129) % 251, jnp.int32)
    _, log = steps(static, init(static, h), tokens, jnp.int32(2), h)
    result = {name: tuple(float(x) for x in log[name]) for name in GOLDEN}
    np.testing.assert_allclose(
        [result[name] for name in GOLDEN],
        list(GOLDEN.values()),
        rtol=1e-5,
        err_msg="The arithmetic of the default step changed. If you meant to change what is computed (initialisation, "
        "model, loss, optimizer, schedule, or a default in configs/), say so in the commit and set GOLDEN of scalelab/"
        f"testing/golden.py to {result}. A refactoring or a faster kernel must leave these numbers alone.",
    )


@pytest.mark.slow
def test_golden_metrics_of_the_code_that_a_user_runs():
    """Without what tests/conftest.py tells XLA in order to compile sooner."""
    code = "from tests.train.step import test_step; test_step.test_golden_metrics_of_two_steps()"
    environment = os.environ | {"XLA_FLAGS": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
