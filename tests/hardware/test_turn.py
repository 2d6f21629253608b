"""A function that runs where a traced flag holds, alone and for packed trials."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.hardware.tactics.turn import run_if


def add_product(total, x):
    return total + x @ x


@pytest.mark.parametrize("flag", [False, True])
def test_the_start_stays_unless_the_flag_holds(flag):
    start, x = jnp.ones((2, 2)), jnp.arange(4.0).reshape(2, 2)
    result = jax.jit(run_if, static_argnums=1)(jnp.bool_(flag), add_product, start, x)
    np.testing.assert_array_equal(result, start + x @ x if flag else start)


def test_each_packed_trial_has_its_own_flag_and_none_runs_where_no_trial_wants_it():
    turns = []

    def noted(total, x):
        jax.debug.callback(turns.append, x[0])
        return total + x

    packed = jax.jit(jax.vmap(lambda flag, x: run_if(flag, noted, jnp.zeros(2), x)))
    x = jnp.ones((3, 2))
    np.testing.assert_array_equal(packed(jnp.array([True, False, True]), x)[:, 0], [1, 0, 1])
    jax.effects_barrier()
    assert turns
    turns.clear()
    assert not packed(jnp.zeros(3, bool), x).any()
    jax.effects_barrier()
    assert not turns
