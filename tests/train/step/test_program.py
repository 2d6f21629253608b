"""What programs take and give."""

import jax
import numpy as np

from scalelab.train.step.program import sequential_program
from tests.train.states import init_state
from tests.train.step.test_step import STATIC, H


def test_a_state_of_numpy_arrays_joins_bound_to_the_device():
    """As a program of packed trials gives it, and as those of a mesh take it."""
    state = jax.device_get(init_state(STATIC, H))
    (joined,) = sequential_program(STATIC, [H]).join([state])
    for ours, given in zip(jax.tree.leaves(joined), jax.tree.leaves(state), strict=True):
        assert isinstance(ours, jax.Array) and ours.committed
        np.testing.assert_array_equal(ours, given)
