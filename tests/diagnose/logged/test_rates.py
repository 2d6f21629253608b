"""Settings: a peak LR against the optimizer's own and against siblings, on both sides."""

import json
import shutil

import pytest

from scalelab.record import records
from scalelab.train.single import train_single
from tests.diagnose.evidences import causes, doctor, healthy
from tests.diagnose.logged.runs import diagnosed, small_config


@pytest.fixture(scope="module")
def steep(tmp_path_factory):
    """A run of 60 steps at 10,000 times AdamW's own LR."""
    folder = tmp_path_factory.mktemp("steep") / "run"
    train_single(small_config(optim__peak_lr=30.0, log__every_steps=10), folder)
    return folder


def test_ten_thousand_times_the_own_lr_is_the_first_cause_and_its_cure_is_a_good_one(steep, capsys):
    verdicts, _, judged, code = diagnosed(steep, capsys)
    assert code == 1 and next(iter(verdicts)) == "lr_too_high" and "init_wrong" not in verdicts
    assert verdicts["lr_too_high"]["knob"] == "optim.peak_lr=0.003"
    assert "10,000 times" in verdicts["lr_too_high"]["evidence"] or "1e+04 times" in verdicts["lr_too_high"]["evidence"]
    assert "LR against the optimizer's own, and by what it does" in judged


def slow():
    """A healthy record at a tenth of AdamW's own LR: each update is a tenth, too."""
    return doctor(healthy(optim__peak_lr=3e-4), "param_norm", lambda step, norm: 28.0 + 1e-5 * step)


def test_weights_that_can_hardly_have_moved_at_a_low_lr():
    assert causes(slow()) == ["lr_too_low"]
    assert causes(doctor(slow(), "update_norm", lambda step, norm: 10 * norm)) != ["lr_too_low"]
    assert "lr_too_low" not in causes(healthy(optim__peak_lr=3e-4, train__init_from="runs/other@100"))


def sibling(folder, name, lr, loss, seed=0):
    """A folder beside `folder` like it, with another LR and final loss."""
    other = folder.parent / name
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("checkpoints"))
    config, record = (json.loads((other / file).read_text()) for file in ("config.json", "record.json"))
    config["optim"]["peak_lr"], config["train"]["seed"] = lr, seed
    record.pop("identity")
    records.write_json(other / "config.json", config)
    records.write_json(other / "record.json", record | {"val_loss": loss, "name": name})
    return other


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rates") / "runs" / "run"
    train_single(small_config(log__every_steps=10), folder)
    return folder


@pytest.mark.parametrize(
    ("lr", "better", "cause"), [(0.2, 1.0, "lr_too_low"), (3e-4, 1.0, "lr_too_high"), (0.2, 0.1, ""), (0.03, 1.0, "")]
)
def test_a_sibling_a_decade_away_that_ended_much_lower(lr, better, cause, trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "runs" / "run")
    run = tmp_path / "runs" / "run"
    loss = records.read_record(run)["val_loss"]
    sibling(run, "other", lr, loss - better, seed=1)
    sibling(run, "worse", 1e-2, loss + 2.0, seed=2)
    verdicts, _, judged, _ = diagnosed(run, capsys)
    assert "LR against the sweep's siblings" in judged
    assert not cause or verdicts[cause]["knob"] == f"optim.peak_lr={lr:.3g}"
    assert not cause or verdicts[cause]["confirm"] == f"scalelab compare {run} {run.with_name('other')}"
    assert cause or not verdicts.keys() & {"lr_too_low", "lr_too_high"}


def test_a_sibling_s_lr_that_is_far_too_high_itself_is_no_cure(steep, tmp_path, capsys):
    """At LR 30 a sibling of LR 1 ended lower, and would be judged in its turn."""
    shutil.copytree(steep, tmp_path / "runs" / "run")
    sibling(tmp_path / "runs" / "run", "lower", 1.0, 3.0)
    verdicts, _, _, _ = diagnosed(tmp_path / "runs" / "run", capsys)
    assert verdicts["lr_too_high"]["knob"] == "optim.peak_lr=0.003"
