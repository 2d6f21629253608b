"""A flagged step is taken again: a term of the loss whose arithmetic fails once, as a broken core's would."""

import importlib

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.train.run.test_alarms import SMALL

CORE = """
import jax, jax.numpy as jnp
wrong, calls = [], []

def factor(x):
    calls.append(1)
    return jnp.float32(1e12 if len(calls) in wrong else 1.0)

def term(a):
    squares = jnp.mean(jnp.square(a.logits().astype(jnp.float32)))
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return 1e-6 * squares * jax.pure_callback(factor, shape, jax.lax.stop_gradient(squares))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A module of one term, so that runs share their program."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "broken_core.py").write_text(CORE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("broken_core")


def train(folder, core, wrong, **changes):
    """Train 30 steps, 5 a dispatch; in `wrong` are the calls, from 1, in which the core computes nonsense."""
    core.wrong[:], core.calls[:] = wrong, []
    keys = SMALL | {"train.steps": 30, "eval.every_steps": 30, "guard.sigmas": 6.0, "guard.rerun": True} | changes
    keys["train.loss"] = "broken_core:term"
    words = ["train", "--config=configs/tiny.py", f"--workdir={folder}"]
    return main([*words, *(f"--config.{key}={value}" for key, value in keys.items())]), folder


def events(run, kind="guard"):
    return [event for event in records.read_events(run) if event["kind"] == kind]


@pytest.mark.full
def test_a_fault_that_passes_is_the_hardwares_and_the_run_goes_on_as_if_it_had_not_been(tmp_path, core):
    code, faulty = train(tmp_path / "faulty", core, [18])
    assert code == 0
    (event,) = [event for event in events(faulty) if event["signal"] == "hardware"]
    assert "give other bits" in event["text"] and "they are those of the second" in event["text"]
    assert "the run goes on with the second" in event["text"]
    _, sound = train(tmp_path / "sound", core, [])
    assert [line["train_loss"] for line in records.read_metrics(faulty) if "train_loss" in line] == [
        line["train_loss"] for line in records.read_metrics(sound) if "train_loss" in line
    ]
    assert not [event for event in events(sound) if event["signal"] == "hardware"]


@pytest.mark.full
def test_a_bad_batch_gives_the_same_bits_twice_and_changes_nothing(tmp_path, core):
    """A flag of the data: noise beyond half a standard deviation."""
    flagged = {"guard.sigmas": 0.5}
    _, kept = train(tmp_path / "kept", core, [], **flagged)
    _, plain = train(tmp_path / "plain", core, [], **flagged, **{"guard.rerun": False})
    assert events(kept, "rerun") and events(kept) and not events(plain, "rerun")
    assert not [event for event in events(kept) if event["signal"] == "hardware"]
    lines = [[line for line in records.read_metrics(run) if "grad_norm" in line] for run in (kept, plain)]
    assert [line["grad_norm"] for line in lines[0]] == [line["grad_norm"] for line in lines[1]]


@pytest.mark.full
def test_under_watch_the_fault_is_said_and_nothing_changed(tmp_path, core, capsys):
    code, run = train(tmp_path / "watched", core, [18], **{"guard.policy": "watch"})
    (event,) = [event for event in events(run) if event["signal"] == "hardware"]
    assert code == 0 and "the run goes on with the first" in event["text"]
    assert "leave out" in capsys.readouterr().err


@pytest.mark.full
def test_a_core_that_never_computes_the_same_ends_a_run_whose_guard_acts(tmp_path, core, capsys):
    code, _ = train(tmp_path / "broken", core, [18, 22, 29])
    assert code == 1 and "others again" in capsys.readouterr().err


@pytest.mark.full
def test_the_copy_is_counted_in_the_plan(capsys):
    arguments = ["plan", "--config=configs/tiny.py", "--hardware=cpu", "--json"]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    assert main([*arguments, "--config.guard.rerun=true"]) == 0
    assert "kept state" in capsys.readouterr().out and "kept state" not in plain
