"""Weights in bf16: rounding up and down in proportion, and an update that is lost to nearest but not to these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.precision import rounding
from scalelab.train.step.step import train_step
from tests.train.step.test_step import batches, init, setting


def test_both_neighbours_in_proportion_and_nothing_else():
    """All 65,536 draws of each value: the mean is the value exactly, and so is the share of the farther neighbour."""
    x = np.float32([1.0, 1.0 + 2.0**-9, -1.0 - 3 * 2.0**-10, 3e-5, 2.0**-130, -0.0, 100.1])
    bits = jnp.arange(2**16, dtype=jnp.uint16)
    draws = np.float64(jax.vmap(lambda b: rounding.round_stochastically(jnp.asarray(x), b))(bits).astype(jnp.float32))
    np.testing.assert_allclose(draws.mean(axis=0), np.float64(x), rtol=1e-12)
    down = np.float64((x.view(np.uint32) & 0xFFFF0000).view(np.float32))
    up = np.float64(((x.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32))
    assert ((draws == down) | (draws == up)).all()
    assert set(draws[:, 0]) == {1.0} and np.mean(draws[:, 1] > 1) == 0.25


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so(value):
    got = rounding.round_stochastically(jnp.full(4, value, jnp.float32), jnp.uint16([0, 1, 2**15, 2**16 - 1]))
    np.testing.assert_array_equal(np.float32(got), np.full(4, value, np.float32))


@pytest.mark.full
def test_a_layer_alone_gets_the_bits_of_its_place_in_the_stack():
    params = {"blocks": {"w": jax.random.normal(jax.random.key(0), (3, 64))}, "head": {"w": jnp.full(64, 1.001)}}
    key = rounding.step_key(jnp.uint32(1), jnp.int32(5))
    whole = rounding.round_tree(params, key)
    for layer in range(3):
        alone = rounding.round_tree({"blocks": {"w": params["blocks"]["w"][layer : layer + 1]}}, key, layer)
        np.testing.assert_array_equal(np.float32(alone["blocks"]["w"][0]), np.float32(whole["blocks"]["w"][layer]))
    other = rounding.round_tree(params, rounding.step_key(jnp.uint32(1), jnp.int32(6)))
    assert np.any(np.float32(other["head"]["w"]) != np.float32(whole["head"]["w"]))


def test_what_rounding_lost_comes_back_to_sixteen_bits():
    x = {"w": jax.random.normal(jax.random.key(0), (1000,))}
    w, lost = rounding.split_tree(x)
    assert w["w"].dtype == lost["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(rounding.join_trees(w, lost)["w"], x["w"], rtol=2.0**-16)


@pytest.mark.full
@pytest.mark.parametrize("policy", ["bf16_kahan", pytest.param("bf16_master", marks=pytest.mark.slow)])
def test_small_updates_add_up_or_are_lost(policy):
    """Twenty steps of AdamW at a rate of 1e-5, a hundredth of half a spacing of 1: gains of one, the norms', tell."""
    changes = {"precision.name": policy, "optim.peak_lr": 1e-5, "optim.weight_decay": 0.0, "schedule.warmup_steps": 0}
    static, h = setting(**changes, **{"schedule.name": "constant", "guard.policy": "off"})
    state, step = init(static, h), jax.jit(lambda s, t: train_step(static, s, t, h)[0])
    first = np.float64(state.params["final_norm"]["g"].astype(jnp.float32))
    for tokens in batches(4):
        for _ in range(5):
            state = step(state, tokens)
    moved = np.float64(state.params["final_norm"]["g"].astype(jnp.float32)) - first
    lost = np.float64(state.precision["final_norm"]["g"].astype(jnp.float32)) if policy == "bf16_kahan" else 0.0
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("bfloat16")}
    if policy == "bf16_master":
        assert not moved.any()
    else:
        assert 5e-5 < np.abs(moved + lost).max() < 2.5e-4 and np.abs(lost).max() > 5e-5
