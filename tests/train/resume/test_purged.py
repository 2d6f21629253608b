"""Runs whose checkpoints are gone: nothing that they logged is erased, and a finished one keeps its last step."""

import shutil

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.quick import one_in
from tests.train.runs import SMALL

SHORT = ["--config.model.n_layers=1", "--config.train.steps_per_dispatch=2", "--config.checkpoint.every_steps=2"]
SHORT += ["--config.eval.every_steps=2", "--config.log.every_steps=1", "--config.schedule.name=constant"]
STEPS = 6


def train(folder, *options, command="train", config="configs/tiny.py"):
    return main([command, f"--config={config}", f"--workdir={folder}", *SMALL, *SHORT, *options])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert train(folder, f"--config.train.steps={STEPS}") == 0
    return folder


@pytest.fixture
def purged(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    return tmp_path / "run"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}


@pytest.mark.full
@pytest.mark.parametrize(
    "record", one_in(2, [{"status": "stopped"}, {"status": "running", "steps": 0}]), ids=["saved", "killed"]
)
def test_a_run_that_is_to_go_on_is_refused_and_keeps_every_byte(purged, record, capsys):
    records.write_json(purged / "record.json", records.read_record(purged) | record)
    before = content(purged)
    assert train(purged, "--config.train.steps=9") == 2
    error = capsys.readouterr().err
    assert f"was trained up to step {STEPS} and has no checkpoint any more" in error
    assert "put its checkpoints back, use another --workdir" in error and content(purged) == before


@pytest.mark.full
def test_a_run_killed_before_its_first_save_was_over_begins_anew(purged):
    records.write_json(purged / "record.json", records.read_record(purged) | {"status": "running", "steps": 0})
    records.rewind_metrics(purged, 4)
    assert train(purged, "--config.train.steps=2") == 0
    assert [line["step"] for line in records.read_metrics(purged) if "train_loss" in line] == [1, 2]


@pytest.mark.full
def test_a_finished_run_names_the_step_of_its_record_and_no_digest(purged, finished, capsys):
    before = content(purged)
    assert train(purged, f"--config.train.steps={STEPS}", "--json") == 0
    output = capsys.readouterr()
    assert f"done at step {STEPS}" in output.err and "its checkpoints are gone" in output.err
    assert '"params_digest": null' in output.out and content(purged) == before
    assert train(finished, f"--config.train.steps={STEPS}") == 0
    assert f"done at step {STEPS}" in capsys.readouterr().err


@pytest.mark.full
def test_a_trial_of_a_sweep_likewise(tmp_path, capsys):
    grid = tmp_path / "seeds.py"
    grid.write_text(
        "from scalelab.configs.tiny import get_config\n\ndef sweep(h):\n    return h.sweep('train.seed', [0])\n"
    )
    folder = tmp_path / "out"
    assert train(folder, "--config.train.steps=2", command="sweep", config=grid) == 0
    (trial,) = (folder / "runs").iterdir()
    shutil.rmtree(next((folder / "packs").iterdir()) / "checkpoints")
    before = content(trial)
    capsys.readouterr()
    assert train(folder, "--config.train.steps=4", command="sweep", config=grid) == 2
    assert "was trained up to step 2 and has no checkpoint any more" in capsys.readouterr().err
    assert content(trial) == before
