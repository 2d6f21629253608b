"""Schedules against closed forms, optax's own, and what must hold for any of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from scalelab.optim.schedules import SCHEDULES

H = {"peak_lr": 0.2, "warmup_steps": 10, "steps": 100, "decay_share": 0.2, "final_share": 0.1}
CURVES = {name: jax.jit(jax.vmap(schedule, in_axes=(0, None))) for name, schedule in SCHEDULES.items()}
LENGTH = 130  # of every curve, so that each schedule compiles once


def curve(name, **changes):
    """LR of steps 0 … LENGTH - 1 as float64."""
    h = {key: jnp.float32(value) for key, value in (H | changes).items()}
    return np.asarray(CURVES[name](jnp.arange(LENGTH), h), np.float64)


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_is_linear_from_its_first_step(name):
    """The first step already learns (LR / warm-up, not 0), and the last of the warm-up has the peak."""
    np.testing.assert_allclose(curve(name)[:10], 0.2 * np.arange(1, 11) / 10, rtol=1e-6)


def test_cosine_at_its_edges_and_middle():
    lr = curve("cosine")
    np.testing.assert_allclose(lr[[9, 10]], 0.2, rtol=1e-6)
    np.testing.assert_allclose(lr[55], 0.2 * (0.1 + 0.9 / 2), rtol=1e-6)
    np.testing.assert_allclose(lr[100:], 0.02, rtol=1e-6)


def test_cosine_is_optax_of_the_same_step_after_warmup_and_of_the_next_within():
    """optax starts its warm-up at LR 0, which wastes the first batch; ours is one step ahead until the peak."""
    lr = curve("cosine")
    theirs = np.asarray(jax.vmap(optax.warmup_cosine_decay_schedule(0.0, 0.2, 10, 100, 0.02))(jnp.arange(LENGTH + 1)))
    np.testing.assert_allclose(lr[:10], theirs[1:11], rtol=1e-5)
    np.testing.assert_allclose(lr[10:], theirs[10:LENGTH], rtol=1e-5)


def test_wsd_piece_by_piece():
    lr = curve("wsd", final_share=0.0)
    np.testing.assert_allclose(lr[9:81], 0.2, rtol=1e-6)
    np.testing.assert_allclose(lr[80:101], 0.2 * np.arange(20, -1, -1) / 20, atol=1e-8)
    assert (lr[100:] == 0).all()
    assert lr[99] > 0  # the last step of the run still learns


def test_wsd_without_a_decay_is_constant_to_the_last_step():
    np.testing.assert_allclose(curve("wsd", decay_share=0.0)[9:100], 0.2, rtol=1e-6)


def test_wsd_branches_share_their_trunk():
    """Hägele et al. 2024: a longer run is the same run until the shorter one's decay begins."""
    short, long = curve("wsd", steps=50, decay_share=0.2), curve("wsd", steps=100, decay_share=0.1)
    np.testing.assert_array_equal(short[:41], long[:41])
    assert short[41] < long[41]


steps = some.integers(1, LENGTH)
share = some.floats(0, 1, width=32)


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None, derandomize=True)
@given(steps=steps, warmup=some.integers(0, LENGTH), decay=share, final=share)
def test_any_schedule_rises_then_falls_within_its_bounds(name, steps, warmup, decay, final):
    warmup = min(warmup, steps)
    lr = curve(name, steps=steps, warmup_steps=warmup, decay_share=decay, final_share=final) / 0.2
    assert np.isfinite(lr).all()
    assert (lr >= -1e-6).all()
    assert (lr <= 1 + 1e-6).all()
    assert (lr[:steps] > 0).all()
    top = int(np.argmax(lr))
    assert (np.diff(lr[: top + 1]) >= -1e-6).all()
    assert (np.diff(lr[top:]) <= 1e-6).all()
    if warmup < steps:
        np.testing.assert_allclose(lr[steps:], final, atol=1e-5)
    if name == "cosine" or warmup <= (1 - decay) * steps:
        assert lr.max() > 1 - 1e-5 or warmup == steps


def test_numbers_are_traced():
    """One compilation for every horizon, peak and share."""
    before = {name: f._cache_size() for name, f in CURVES.items()}
    for name in CURVES:
        curve(name, peak_lr=1.0, steps=77, warmup_steps=3, decay_share=0.5, final_share=0.0)
        curve(name, peak_lr=2.0, steps=50, warmup_steps=0)
    assert all(f._cache_size() <= max(before[name], 1) for name, f in CURVES.items())
