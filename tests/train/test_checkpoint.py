"""An asynchronous save holds the values of its own step, whatever runs before it is written."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.train.checkpoint import Checkpoints, restore_one
from scalelab.train.state import TrainState


def big_state(value: float) -> TrainState:
    """64 MB, so that writing takes much longer than the next steps."""
    weights, moments = {"w": jnp.full((16, 1024, 1024), value)}, {"mu": jnp.full((4,), value)}
    return TrainState(jnp.int32(0), weights, moments, jnp.int32(0), jnp.int32(0))


@functools.partial(jax.jit, donate_argnums=0)
def donating_step(state: TrainState) -> TrainState:
    return jax.tree.map(lambda x: x + 1, state)


def test_the_step_of_the_next_test_really_works_in_place():
    state = big_state(1.0)
    before = state.params["w"].unsafe_buffer_pointer()
    assert donating_step(state).params["w"].unsafe_buffer_pointer() == before


def test_a_save_under_way_is_not_overwritten_by_the_next_donating_steps(tmp_path):
    checkpoints, state = Checkpoints(tmp_path / "c"), big_state(1.0)
    checkpoints.save(1, {"run": state})
    for _ in range(5):  # written in place into the very buffers that were saved, were they not copied
        state = donating_step(state)
    jax.block_until_ready(state)
    checkpoints.close()
    step, restored = restore_one(tmp_path / "c", "run", jax.eval_shape(lambda: big_state(0.0)))
    assert step == 1
    np.testing.assert_array_equal(restored.params["w"], np.float32(1.0))
    np.testing.assert_array_equal(restored.opt_state["mu"], np.float32(1.0))


def small_state(value: float) -> TrainState:
    return TrainState(jnp.int32(0), {"w": jnp.full((3,), value)}, (), jnp.int32(0), jnp.int32(0))


def test_the_last_n_and_every_multiple_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", keep_last=2, keep_every=40)
    for step in range(10, 110, 10):
        checkpoints.save(step, {"run": small_state(step)})
    checkpoints.close()
    assert sorted(int(p.name) for p in (tmp_path / "c").iterdir() if p.name.isdigit()) == [40, 80, 90, 100]


def test_one_trial_is_restored_out_of_a_packs_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(7, {"a": small_state(1.0), "b": small_state(2.0)})
    checkpoints.close()
    step, state = restore_one(tmp_path / "c", "b", jax.eval_shape(lambda: small_state(0.0)))
    assert step == 7
    np.testing.assert_array_equal(state.params["w"], np.full(3, 2.0, np.float32))


def test_no_checkpoint_is_none(tmp_path):
    assert restore_one(tmp_path / "absent", "run", small_state(0.0)) is None
    (tmp_path / "empty").mkdir()
    assert restore_one(tmp_path / "empty", "run", small_state(0.0)) is None
