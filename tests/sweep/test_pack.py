"""Packed trials against the same trials alone: bit for bit in turn, to 1e-5 under vmap, whatever the neighbours do."""

import pathlib

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.sweep import status
from scalelab.sweep.run import run_sweep
from scalelab.train.single import train_single
from tests.train.runs import command, finish, run_here, untimed

TINY = {
    "model.d_model": 16, "model.seq_len": 32, "train.global_batch": 4, "train.steps": 30, "eval.batches": 2,
    "eval.every_steps": 30, "checkpoint.every_steps": 20, "train.steps_per_dispatch": 5,
}  # fmt: skip
POINTS = {"low": {"optim.peak_lr": 3e-3}, "high": {"optim.peak_lr": 2e-2}, "other": {"train.seed": 5}}


def trials(**changes):
    return {
        name: config_lib.resolve(override(tiny.get_config(), TINY | changes | point)) for name, point in POINTS.items()
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Each trial trained alone."""
    folders = {name: tmp_path_factory.mktemp("alone") / name for name in POINTS}
    for name, config in trials().items():
        train_single(config, folders[name])
    return folders


def test_in_turn_every_trial_equals_itself_alone_bit_for_bit(tmp_path, alone):
    assert set(run_sweep(tmp_path, trials(**{"sweep.pack": "turn"})).values()) == {"done"}
    for name in POINTS:
        assert untimed(tmp_path / "runs" / name) == untimed(alone[name])


@pytest.mark.slow
def test_under_vmap_every_trial_equals_itself_alone_to_1e_5(tmp_path, alone):
    run_sweep(tmp_path, trials(**{"sweep.pack": "vmap"}))
    for name in POINTS:
        packed, single = untimed(tmp_path / "runs" / name), untimed(alone[name])
        assert [line["step"] for line in packed] == [line["step"] for line in single]
        for a, b in zip(packed, single, strict=True):
            np.testing.assert_allclose([a[k] for k in a], [b[k] for k in a], rtol=1e-5)


def test_the_choice_is_recorded(tmp_path):
    run_sweep(tmp_path, trials(**{"train.steps": 5}))
    assert records.read_json(tmp_path / "runs" / "low" / "record.json")["pack"]["packing"] == "turn"  # auto, on CPU


@pytest.mark.full
@pytest.mark.parametrize("pack", ["turn", pytest.param("vmap", marks=pytest.mark.slow)])
def test_a_trial_that_diverges_is_marked_and_its_neighbours_are_untouched(tmp_path, alone, pack):
    spoiled = trials(**{"sweep.pack": pack})
    spoiled["high"].train.z_loss = float("1e38")  # overflows at once: no step of this trial is ever finite
    verdicts = run_sweep(tmp_path, spoiled)
    assert verdicts == {"low": "done", "high": "diverged", "other": "done"}
    kinds = [event["kind"] for event in records.read_events(tmp_path / "runs" / "high")]
    assert kinds.count("diverged") == 1 and "skip" in kinds
    for name in ("low", "other"):
        losses = [[line.get("train_loss") for line in untimed(f)] for f in (tmp_path / "runs" / name, alone[name])]
        np.testing.assert_allclose(np.array(losses[0], float), np.array(losses[1], float), rtol=1e-5)


def test_a_finished_sweep_is_not_run_again(tmp_path):
    run_sweep(tmp_path, trials(**{"train.steps": 5}))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json*")}
    run_sweep(tmp_path, trials(**{"train.steps": 5}))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json*")}


@pytest.mark.full
def test_the_command_its_status_and_one_trial_continued_alone(tmp_path, alone, capsys):
    file = tmp_path / "grid.py"
    file.write_text(
        "from scalelab.configs import tiny\nget_config = tiny.get_config\n"
        "def sweep(h): return h.chain([h.sweep('optim.peak_lr', [3e-3, 2e-2]), h.sweep('train.seed', [5])])\n"
    )
    overrides = [f"--config.{key}={value}" for key, value in TINY.items()]
    folder = tmp_path / "sweep"
    process = command(f"--config={file}", f"--workdir={folder}", *overrides, "--json", name="sweep")
    result = finish(process)
    assert {row["status"] for row in result["trials"]} == {"done"}
    assert result["answer"]["by"] == ["optim.peak_lr"] and len(result["answer"]["settings"]) == 3
    assert "One seed: no interval" in result["answer"]["sentences"][0]
    names = [row["name"] for row in status.read_trial_rows(folder)]
    for name, twin in zip(names, POINTS, strict=True):
        assert untimed(folder / "runs" / name) == untimed(alone[twin])
    assert main(["sweep", f"--workdir={folder}", "--status"]) == 0
    out = capsys.readouterr().out
    assert out.count("done") == 3 and result["answer"]["sentences"][0] in out
    # One of them goes on alone from the pack's checkpoint, under its own config and more steps, on another cosine.
    result = run_here(
        f"--config={file}",
        f"--workdir={folder / 'runs' / names[0]}",
        *overrides,
        "--config.optim.peak_lr=0.003",
        "--config.train.steps=40",
        "--allow-change=train.steps",
        "--json",
    )
    assert (result["resumed_from"], result["final_step"]) == (30, 40)
