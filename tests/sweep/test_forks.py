"""Forks resolve to the trials they stand for, and candidates count what the run's record will say."""

import pathlib
import shutil

import pytest

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.sweep import forks, trials
from scalelab.sweep.scaling import ladder

GRID = """
from scalelab.configs import tiny

def get_config():
    return tiny.get_config()

def sweep(h):
    sizes = h.sweep("model.d_model", [32, 48]), h.sweep("train.steps", [200, 400])
    return h.product([*sizes, h.sweep("optim.peak_lr", [1e-2])])
"""


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.py"
    path.write_text(GRID)
    return path


def values(config):
    """All of them, whoever set them."""
    return {key: value for key, value in config_lib.leaves(config).items() if key != "log.set_by"}


def test_a_fork_is_the_trial(grid, tmp_path):
    runs = trials.load_trials(grid, {})
    paths = forks.write_forks(tmp_path / "next", grid, runs, {name: f"Run {name}." for name in runs})
    assert len(paths) == 4
    for path, (name, trial) in zip(paths, runs.items(), strict=True):
        fork = config_lib.load(path)
        assert set(config_lib.config_value_origins(fork).values()) == {"the config file", "default"}
        assert values(fork) == values(trial) and config_lib.identity(fork) == config_lib.identity(trial)
        assert f"Run {name}." in path.read_text() and f"--config={path}" in path.read_text()


def test_a_fork_of_a_shipped_config_finds_it_by_name_wherever_the_fork_lies(tmp_path):
    base = pathlib.Path(config_lib.find_config_file("tiny"))
    trial = config_lib.load(base, {"model.d_model": 96})
    (path,) = forks.write_forks(tmp_path / "here", base, {"wide": trial})
    moved = shutil.move(path, tmp_path / "wide.py")
    assert values(config_lib.load(moved)) == values(trial)
    assert str(base.parent) not in moved.read_text() and '".."' not in moved.read_text()


def test_candidates_count_parameters_tokens_and_flops(grid):
    runs = trials.load_trials(grid, {})
    columns = forks.candidate_columns(runs, "non_embedding")
    for i, trial in enumerate(runs.values()):
        d, steps = trial.model.d_model, trial.train.steps
        d_ff = -(-8 * d // 24) * 8
        assert columns["N"][i] == 2 * (4 * d * d + 3 * d * d_ff + 2 * d) + d  # two blocks, their gains, the last gain
        assert columns["D"][i] == steps * 16 * 128
        assert columns["C"][i] == pytest.approx(ladder.flops_per_step(trial) * steps)
        assert (columns["width"][i], columns["depth"][i]) == (d, 2)
    with pytest.raises(BadInput, match="one of total, active, non_embedding, kaplan, chinchilla"):
        forks.candidate_columns(runs, "all")


def test_a_fork_keeps_what_would_be_derived_anew_from_what_it_sets(grid, tmp_path):
    """base_d_head follows base_width where nobody says it; here it is said, and equals what the base file derives."""
    trial = config_lib.resolve(config_lib.override(config_lib.load(grid), {"parametrization.base_width": 32}))
    assert trial.parametrization.base_d_head == 16
    (path,) = forks.write_forks(tmp_path, grid, {"fork": trial})
    assert values(config_lib.load(path)) == values(trial)
