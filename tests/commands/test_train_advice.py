"""What `scalelab train` says to run next, in the order in which it helps."""

import types

import pytest

from scalelab.commands import train
from scalelab.train.checkpoints import manifest

SUSPECT = "suspect: the last 11 batches were skipped"


def save(folder, states):
    for step, state in states.items():
        place = folder / "checkpoints" / str(step)
        place.mkdir(parents=True)
        manifest.write_manifest(place, step, {}, {}, {"run": {}}, time=0.0, health={"run": state})


@pytest.mark.parametrize("states, way", [
    ({20: "healthy", 40: "healthy", 60: SUSPECT}, "healthy step: scalelab train --workdir={folder} --back-to=40 --lr-"),
    ({60: SUSPECT, 80: SUSPECT}, "then a new run, as no saved step is healthy"),
    ({}, "then a new run, as no step was saved"),
], ids=["a healthy step", "none healthy", "none saved"])  # fmt: skip
def test_a_run_that_blew_up_is_first_diagnosed_and_then_taken_back_to_where_it_was_sound(tmp_path, capsys, states, way):
    folder = tmp_path / "run"
    folder.mkdir()
    save(folder, states)
    seen = {"name": "run", "folder": str(folder), "final_step": 90, "by_source": {}, "val_loss": 48.9, "bpb": 70.0,
            "bpb_bound": "", "to_json": dict}  # fmt: skip
    train._print(types.SimpleNamespace(status="diverged", **seen), None)
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert line.startswith(f"first its cause, and the key to turn: scalelab diagnose {folder}; ")
    assert way.format(folder=folder) in line
    train._print(types.SimpleNamespace(status="done", **seen), None)
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("loss, shown", [(None, ""), (4.5, ", validation loss 4.5000 nats/token, 6.0000 bits/byte")])
def test_a_stopped_run_says_how_to_go_on_and_no_loss_that_it_lacks(capsys, loss, shown):
    seen = types.SimpleNamespace(
        name="run",
        folder="runs/mine",
        status="stopped",
        final_step=20,
        by_source={},
        val_loss=loss,
        bpb=loss and 6.0,
        bpb_bound="",
        to_json=dict,
    )
    train._print(seen, None)
    assert capsys.readouterr().err == f"run: stopped at step 20{shown}; the same command goes on; runs/mine\n"
