"""A sweep that has ended may grow: by seeds, or by values; what is new trains in a pack of its own."""

import json

import pytest

from scalelab import config as config_lib
from scalelab.sweep.run import keep_begun_packs, run_sweep
from tests.sweep.here import train_packs_here
from tests.sweep.test_extending import VALUES


@pytest.fixture(autouse=True)
def in_this_process():
    with train_packs_here():
        yield


@pytest.fixture(scope="module")
def base():
    return config_lib.load("configs/tiny.py", VALUES)


def trials(base, seeds):
    return {f"s{seed}": config_lib.resolve(config_lib.override(base, {"train.seed": seed})) for seed in seeds}


def losses(folder, names):
    return {name: json.loads((folder / "runs" / name / "record.json").read_text())["val_loss"] for name in names}


@pytest.mark.full
def test_a_finished_sweep_grows_by_seeds(base, tmp_path):
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    run_sweep(whole, trials(base, range(3)))
    run_sweep(grown, trials(base, range(2)))
    first = losses(grown, ("s0", "s1"))
    verdicts = run_sweep(grown, trials(base, range(3)))
    assert set(verdicts.values()) == {"done"}
    assert losses(grown, ("s0", "s1")) == first
    assert losses(grown, ("s0", "s1", "s2")) == losses(whole, ("s0", "s1", "s2"))
    packs = json.loads((grown / "sweep.json").read_text())["packs"]
    (key, old), (further, new) = packs.items()
    assert (old, new, further) == (["s0", "s1"], ["s2"], f"{key}-2")
    assert run_sweep(grown, trials(base, range(3))) == verdicts  # again: nothing moves
    assert json.loads((grown / "sweep.json").read_text())["packs"] == packs


@pytest.mark.full
def test_a_sweep_that_was_called_with_fewer_trials_in_between_still_knows_its_packs(base, tmp_path):
    run_sweep(tmp_path, trials(base, range(2)))
    run_sweep(
        tmp_path, trials(base, range(2)) | {"other": config_lib.override(trials(base, [0])["s0"], {"model.d_model": 8})}
    )
    run_sweep(tmp_path, {"other": config_lib.override(trials(base, [0])["s0"], {"model.d_model": 8})})
    verdicts = run_sweep(tmp_path, trials(base, range(3)))  # s0 and s1 are in no list now, and have their pack
    assert set(verdicts.values()) == {"done"}
    packs = json.loads((tmp_path / "sweep.json").read_text())["packs"]
    assert sorted(packs.values()) == [["s0", "s1"], ["s2"]]


def test_a_pack_without_checkpoints_is_formed_anew(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"trials": {}, "packs": {"k": ["a"]}}))
    assert keep_begun_packs(tmp_path, {"k": ["a", "b"]}) == {"k": ["a", "b"]}
    (tmp_path / "packs" / "k" / "checkpoints").mkdir(parents=True)
    assert keep_begun_packs(tmp_path, {"k": ["a", "b"]}) == {"k": ["a"], "k-2": ["b"]}
    (tmp_path / "packs" / "k-2" / "checkpoints").mkdir(parents=True)
    (tmp_path / "sweep.json").write_text(json.dumps({"trials": {}, "packs": {"k": ["a"], "k-2": ["b"]}}))
    assert keep_begun_packs(tmp_path, {"k": ["a", "b", "c"]}) == {"k": ["a"], "k-2": ["b"], "k-3": ["c"]}
