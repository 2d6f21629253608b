"""An asynchronous save holds the values of its own step; retention and restoring a part; a save that fails says so."""

import errno
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.record import jsonfiles
from scalelab.train.checkpoints import checkpoint, manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints, SaveFailed
from scalelab.train.step.state import TrainState
from tests.train.runs import PATIENCE_S, ROOT


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


@pytest.mark.full
def test_a_save_under_way_is_not_overwritten_by_the_next_donating_steps(tmp_path):
    checkpoints, state = Checkpoints(tmp_path / "c"), big_state(1.0)
    checkpoints.save(1, {"run": state})
    for _ in range(5):  # written in place into the very buffers that were saved, were they not copied
        state = donating_step(state)
    jax.block_until_ready(state)
    checkpoints.close()
    restored = last(tmp_path / "c", {"run": jax.eval_shape(lambda: big_state(0.0))})["run"]
    np.testing.assert_array_equal(restored.params["w"], np.float32(1.0))
    np.testing.assert_array_equal(restored.opt_state["mu"], np.float32(1.0))


def small_state(value: float) -> TrainState:
    return TrainState(jnp.int32(0), {"w": jnp.full((3,), value, jnp.float32)}, (), jnp.int32(0), jnp.int32(0))


SHAPES = jax.eval_shape(lambda: small_state(0.0))


def saved(folder: pathlib.Path, *steps: int, **options) -> Checkpoints:
    """Small states of value `step`, committed."""
    checkpoints = Checkpoints(folder, **options)
    for step in steps:
        checkpoints.save(step, {"run": small_state(step)})
    checkpoints.wait()
    return checkpoints


def last(folder: pathlib.Path, like: dict) -> dict:
    return Checkpoints(folder).load(like).states


def test_the_last_n_and_every_multiple_are_kept(tmp_path):
    saved(tmp_path, *range(10, 110, 10), keep_last=2, keep_every=40)
    assert manifest.list_steps(tmp_path) == [40, 80, 90, 100] == sorted(int(p.name) for p in tmp_path.iterdir())


def test_retention_counts_only_steps_that_look_intact_and_deletes_no_others(tmp_path):
    saved(tmp_path, 1, 2, 3, keep_last=3)
    (tmp_path / "3" / "state" / "_METADATA").unlink()
    (tmp_path / "9").mkdir()  # of a newer number than the steps that follow, and worth nothing
    saved(tmp_path, 4, keep_last=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3", "4", "9"]
    saved(tmp_path, 5, keep_last=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3", "5", "9"]


def test_one_trial_is_restored_out_of_a_packs_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, {"a": small_state(1.0), "b": small_state(2.0)})
    checkpoints.close()
    assert Checkpoints(tmp_path).latest() == 7
    restored = last(tmp_path, {"b": SHAPES})
    assert list(restored) == ["b"]
    np.testing.assert_array_equal(restored["b"].params["w"], np.full(3, 2.0, np.float32))


def test_the_parameters_are_restored_alone(tmp_path):
    saved(tmp_path, 7)
    restored = last(tmp_path, {"run": {"params": SHAPES.params}})
    assert list(restored["run"]) == ["params"]
    np.testing.assert_array_equal(restored["run"]["params"]["w"], np.full(3, 7.0, np.float32))


def test_no_checkpoint_is_none(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "absent", tmp_path / "empty"):
        assert Checkpoints(folder).latest() is None and Checkpoints(folder).load(None) is None
    assert not (tmp_path / "absent").exists()


OTHERS = {
    "run.params.w: float32[3], now float32[4]": SHAPES._replace(params={"w": jax.ShapeDtypeStruct((4,), jnp.float32)}),
    "run.params.w: float32[3], now bfloat16[3]": SHAPES._replace(params={"w": jax.ShapeDtypeStruct((3,),
        jnp.bfloat16)}),
    "run.params.w: float32[3], now absent": SHAPES._replace(params={}),
    "run.params.v: absent, now float32[3]": SHAPES._replace(params=SHAPES.params | {"v": SHAPES.params["w"]}),
    "run.opt_state.mu: absent, now float32[3]": SHAPES._replace(opt_state={"mu": SHAPES.params["w"]}),
}  # fmt: skip


@pytest.mark.parametrize("line", OTHERS)
def test_other_names_shapes_or_dtypes_are_refused_old_against_new_and_nothing_is_cast(tmp_path, line):
    checkpoints = saved(tmp_path, 7)
    with pytest.raises(BadInput) as error:
        checkpoints.restore(7, {"run": OTHERS[line]})
    assert line in str(error.value) and len(str(error.value).splitlines()) == 2


def test_a_name_that_begins_like_another_is_another(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, {"a": small_state(1.0), "ab": small_state(2.0)})
    checkpoints.wait()
    assert float(checkpoints.restore(7, {"a": SHAPES})["a"].params["w"][0]) == 1.0


SHARDED = """
import sys, pathlib, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from scalelab.train.checkpoints.checkpoint import Checkpoints
devices, w = np.array(jax.devices()), np.arange(64, dtype=np.float32).reshape(8, 8)
def on(shape, spec):
    mesh = Mesh(devices[: int(np.prod(shape))].reshape(shape), ("a", "b"))
    return NamedSharding(mesh, P(*spec))
c = Checkpoints(pathlib.Path(sys.argv[1]))
c.save(1, {"run": {"w": jax.device_put(w, on((8, 1), "a"))}})
c.wait()
for sharding in (on((4, 2), "ab"), on((1, 4), (None, "b")), on((2, 1), ()), None):
    like = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding)
    got = c.restore(1, {"run": {"w": like}})["run"]["w"]
    np.testing.assert_array_equal(got, w)
    assert got.sharding == sharding if sharding else len(got.sharding.device_set) == 1
    print(jax.device_count(), got.sharding)
"""


@pytest.mark.full
def test_saved_on_eight_devices_it_is_restored_on_any_mesh(tmp_path):
    env = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED, str(tmp_path)], env=env, cwd=ROOT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line[0] for line in done.stdout.splitlines()] == ["8"] * 4


# --- a disk that does not do what it should ---------------------------------------------------------------------------


def fail(checkpoints: Checkpoints, step: int) -> str:
    """Save until the failure surfaces: in this save, the next, or the close. Returns the message."""
    with pytest.raises(SaveFailed) as error:
        checkpoints.save(step, {"run": small_state(step)})
        checkpoints.save(step + 1, {"run": small_state(step)})
    return str(error.value)


def test_a_folder_that_became_a_file_is_an_error_and_the_last_good_step_is_named(tmp_path):
    checkpoints = saved(tmp_path / "c", 1, 2)
    (tmp_path / "c").rename(tmp_path / "elsewhere")
    (tmp_path / "c").touch()
    assert "could not be saved" in fail(checkpoints, 3)
    (tmp_path / "c").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "c")
    os.chmod(tmp_path / "c", 0o555)
    if os.access(tmp_path / "c", os.W_OK):  # root may do as it likes
        (tmp_path / "c").rename(tmp_path / "elsewhere")
        (tmp_path / "c").symlink_to(tmp_path / "gone")
        assert "could not be saved" in fail(checkpoints, 4)
        (tmp_path / "c").unlink()
        (tmp_path / "elsewhere").rename(tmp_path / "c")
    else:
        assert fail(checkpoints, 4).endswith("the last good one is step 2")
    os.chmod(tmp_path / "c", 0o755)
    checkpoints.save(5, {"run": small_state(5)})  # and once the disk is well again, saving goes on
    checkpoints.close()
    assert float(last(tmp_path / "c", {"run": SHAPES})["run"].params["w"][0]) == 5.0


@pytest.mark.parametrize("call", ["write_manifest", "fsync", "prune_steps"])
def test_an_error_in_the_background_is_raised_by_the_next_save(tmp_path, monkeypatch, call):
    checkpoints = saved(tmp_path, 1)

    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest, call, broken)
    checkpoints.save(2, {"run": small_state(2)})
    with pytest.raises(
        SaveFailed, match=r"step 2 could not be saved .*No space left on device.*; the last good one is step [12]"
    ):
        checkpoints.save(3, {"run": small_state(3)})
    monkeypatch.undo()
    assert not manifest.find_step_problems(tmp_path / "1")


def test_close_raises_what_no_later_save_could(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)
    monkeypatch.setattr(manifest, "write_manifest", lambda *_, **__: 1 / 0)
    checkpoints.save(2, {"run": small_state(2)})
    with pytest.raises(SaveFailed, match="division"):
        checkpoints.close()


def test_what_orbax_adds_at_its_close_does_not_hide_the_failed_save(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ValueError("orbax is sorry")

    monkeypatch.setattr(manifest, "write_manifest", broken)
    for closing in (Checkpoints.close, lambda checkpoints: checkpoints.save(3, {"run": small_state(3)})):
        with pytest.raises(SaveFailed, match="step 2 could not be saved"), Checkpoints(tmp_path / "c") as checkpoints:
            monkeypatch.setattr(checkpoints.orbax, "close", broken)
            checkpoints.save(2, {"run": small_state(2)})
            closing(checkpoints)


def test_a_slow_disk_blocks_the_next_save_not_the_steps_and_no_queue_grows(tmp_path, monkeypatch):
    gate, hashed = threading.Event(), []
    real = manifest.write_manifest

    def slow(draft, step, *rest, **more):
        hashed.append(step)
        assert gate.wait(PATIENCE_S)
        return real(draft, step, *rest, **more)

    monkeypatch.setattr(manifest, "write_manifest", slow)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"run": small_state(1)})  # returns though nothing is committed
    assert manifest.list_steps(tmp_path) == []
    second = threading.Thread(target=checkpoints.save, args=(2, {"run": small_state(2)}))
    second.start()
    second.join(0.2)
    assert second.is_alive() and hashed in ([], [1])
    gate.set()
    second.join()
    checkpoints.close()
    assert manifest.list_steps(tmp_path) == [1, 2] == hashed


# --- what stands in the way, what passes, and what is not worth keeping
# ------------------------------------------------


def junk(folder: pathlib.Path) -> list[pathlib.Path]:
    """Links and files under the very names that saves need."""
    outside = folder.parent / "precious"
    outside.mkdir(parents=True)
    (outside / "manifest.json").touch()
    folder.mkdir(exist_ok=True)
    (folder / "1.tmp").symlink_to(outside)
    (folder / "2.tmp").touch()
    (folder / "2").write_text("a file of somebody's")
    (folder / "3").symlink_to(outside)
    (folder / "4").mkdir()
    (folder / "4" / "notes.txt").touch()
    (folder / "latest").symlink_to(folder / "gone")
    return [outside / "manifest.json", folder / "2.stray", folder / "3.stray", folder / "4.stray" / "notes.txt"]


def test_links_and_files_in_the_folder_are_stepped_around_and_lost_to_nobody(tmp_path):
    folder, warnings = tmp_path / "c", []
    stored = junk(folder)
    checkpoints = saved(folder, 1, 2, 3, 4, 5, keep_last=2, warn=warnings.append)
    checkpoints.close()
    assert manifest.list_steps(folder) == [4, 5] and not manifest.find_step_problems(folder / "4")
    assert all(path.exists() for path in stored) and not list(folder.glob("*.tmp"))
    assert [text.split(" is where step ")[0] for text in warnings] == [str(folder / step) for step in "234"]
    (folder / "5.damaged").symlink_to(tmp_path / "precious")  # where a fallback wants to put the step
    manifest.set_aside(folder / "5")
    assert manifest.list_steps(folder) == [4] and stored[0].exists()


def skipping(value: float, streak: int) -> TrainState:
    return small_state(value)._replace(streak=jnp.int32(streak))


def test_retention_keeps_each_trials_newest_healthy_step_whatever_came_after(tmp_path):
    """a is poisoned after step 2, b skips batches from step 3 to 5, and after that a is still what it was."""
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    for step in range(1, 7):
        a = small_state(np.nan if step > 2 else 1.0)
        checkpoints.save(step, {"a": a, "b": skipping(1.0, step - 2 if 3 <= step <= 4 else 0)})
        checkpoints.wait()
        assert manifest.list_steps(tmp_path) == {1: [1], 2: [2], 3: [2, 3], 4: [2, 4], 5: [2, 5], 6: [2, 6]}[step]
    health = {step: manifest.read_manifest(tmp_path / str(step))["health"] for step in (2, 6)}
    assert health[2] == {"a": "healthy", "b": "healthy"}
    assert health[6] == {"a": "suspect: parameters or moments are not finite", "b": "healthy"}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_error_that_passes_is_tried_again_at_every_step_of_a_save(tmp_path, monkeypatch, number):
    """Each of the calls of a save fails once: its hashes, manifest, rename and the removal of old steps."""
    monkeypatch.setattr(jsonfiles, "RETRY_WAITS_S", (0, 0, 0))
    checkpoints, failed = saved(tmp_path, 1, keep_last=1), set()

    def flaky(name, real):
        def call(*arguments, **more):
            place = name, str(arguments[0])
            if place not in failed and (name != "fsync" or len(failed) < 12):
                failed.add(place)
                raise OSError(number, os.strerror(number))
            return real(*arguments, **more)

        return call

    for owner, name in ((os, "fsync"), (pathlib.Path, "rename"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, flaky(name, getattr(owner, name)))
    checkpoints.save(2, {"run": small_state(2)})
    checkpoints.wait()
    monkeypatch.undo()
    assert {name for name, _ in failed} == {"fsync", "rename", "rmtree"}
    assert manifest.list_steps(tmp_path) == [2] and not manifest.find_step_problems(tmp_path / "2")


def test_a_save_lost_to_such_an_error_is_a_warning_two_in_a_row_are_the_end_and_the_last_is_tried_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoint, "RETRY_WAITS_S", (0, 0, 0))
    warnings, bad = [], []
    checkpoints = saved(tmp_path, 1, keep_last=9, warn=warnings.append)
    real = checkpoints.orbax.wait_until_finished

    def flaky():
        real()
        if bad and threading.current_thread().name == "commit":  # as Orbax tells it: text from tensorstore
            bad.pop()
            raise ValueError("UNKNOWN: Error writing file: Input/output error")

    monkeypatch.setattr(checkpoints.orbax, "wait_until_finished", flaky)
    for step in (2, 3, 4):
        bad[:] = [step] if step == 2 else []
        checkpoints.save(step, {"run": small_state(step)})
        checkpoints.wait()
    assert manifest.list_steps(tmp_path) == [1, 3, 4] and len(warnings) == 1
    assert "step 2 could not be saved" in warnings[0] and "the last good one is step 1" in warnings[0]
    bad[:] = [1, 1]
    checkpoints.save(5, {"run": small_state(5)}, last=True)
    assert manifest.list_steps(tmp_path)[-1] == 5 and not bad
    bad[:] = [1, 1]
    checkpoints.save(6, {"run": small_state(6)})
    checkpoints.save(7, {"run": small_state(7)})
    with pytest.raises(SaveFailed, match=r"step 7 could not be saved .*Input/output error"):
        checkpoints.save(8, {"run": small_state(8)})
