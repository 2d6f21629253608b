"""Tests of this project: `make test`."""

import config
import functions
import study

from scalelab.__main__ import main
from scalelab.testing import check_law, check_optimizer


def test_the_config_resolves_and_the_grid_is_complete(capsys):
    assert main(["config", "--config=config.py", "optim"]) == 0
    assert "functions:soft_signs" in capsys.readouterr().out
    assert len(config.LEARNING_RATES) * len(config.SEEDS) == 6


def test_our_functions_meet_their_contracts():
    check_law(functions.tokens_only)
    check_optimizer("functions:soft_signs", peak_lr=1e-3, own={"gamma": 0.025})


def test_the_study_trains_the_grid_and_names_the_best_of_it(tmp_path):
    short = ["--config.train.steps=4", "--config.eval.every_steps=4", "--config.data.source=synthetic"]
    lines = study.main(short, f"{tmp_path}/study")
    assert any(f"optim.peak_lr = {lr:g}" in lines[0] for lr in config.LEARNING_RATES)


def test_it_trains(tmp_path):
    short = ["--config.train.steps=4", "--config.eval.every_steps=4", "--config.data.source=synthetic"]
    assert main(["train", "--config=config.py", f"--workdir={tmp_path}/run", *short]) == 0
    assert (tmp_path / "run" / "record.json").exists()
