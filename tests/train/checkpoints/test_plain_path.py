"""Folders whose names Orbax would take for a pattern: what is saved there can be restored, and is that folder's own."""

import os

import numpy as np
import pytest

from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.checkpoints.plain_path import plain_path


@pytest.mark.parametrize("name", ["run [1]", "a\\b", "run*", "what?", "a**b"])
def test_a_step_saved_under_any_name_is_restored(tmp_path, name):
    states = {"run": {"w": np.arange(6.0, dtype=np.float32)}}
    beside = tmp_path / "run2" / "3.tmp" / "state" / "ocdbt.process_0"  # matches run*
    beside.mkdir(parents=True)
    with Checkpoints(tmp_path / name) as checkpoints:
        checkpoints.save(3, states)
        checkpoints.wait()
        loaded = checkpoints.load(states)
        np.testing.assert_array_equal(loaded.states["run"]["w"], states["run"]["w"])
    with Checkpoints(tmp_path / name) as checkpoints:  # as another process
        assert checkpoints.load(states).step == 3
    assert list(beside.iterdir()) == []


@pytest.mark.full
def test_the_link_goes_with_its_user(tmp_path):
    class User:
        pass

    users = [User()]  # not a local of its own: a plugin that reads this frame's locals would keep it alive
    assert plain_path(tmp_path / "run", users[0]) == tmp_path / "run"
    link = plain_path(tmp_path / "run [1]", users[0])
    assert os.readlink(link) == str(tmp_path / "run [1]")
    users.clear()  # nothing else refers to it, so that no garbage need be collected: seconds where programs are held
    assert not link.parent.exists()
