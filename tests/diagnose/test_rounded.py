"""Weights rounded to few bits: a leaf that no update reached is told from those that the format holds."""

import json
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.train.checkpoints.restore import read_arrays
from scalelab.train.single import train_single
from tests.diagnose.saved_steps import edit_arrays
from tests.train.resume.test_compatibility import config

UP = "params.blocks.mlp.up.w"


@pytest.mark.full
def test_a_leaf_that_no_update_reached_is_named_and_one_that_moves_is_not(tmp_path, capsys):
    changed = {"model__n_layers": 2, "model__seq_len": 64, "train__global_batch": 8, "optim__peak_lr": 0.01}
    train_single(config(**changed, precision__name="bf16_master"), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "stuck")
    before = read_arrays(tmp_path / "run" / "checkpoints" / "2" / "state")
    edit_arrays(tmp_path / "stuck", 4, lambda arrays: {UP: before[f"run.{UP}"]})
    found = {}
    for name in ("run", "stuck"):
        capsys.readouterr()
        main(["diagnose", str(tmp_path / name), "--fast", "--json=-"])
        found[name] = json.loads(capsys.readouterr().out)
    causes = {name: {verdict["cause"]: verdict for verdict in each["verdicts"]} for name, each in found.items()}
    assert "leaf_stuck" not in causes["run"] and "layers/1/mlp/up/w" in causes["stuck"]["leaf_stuck"]["evidence"]
    assert "every leaf moves, where its format does not hold it" in " ".join(found["run"]["judged"])
    assert any("heads and rows" in gap["missing"] for gap in found["run"]["lines"]["leaves"]["not_judged"])
