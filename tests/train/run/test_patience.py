"""`eval.patience`: where a run ends, read again from its metrics; the same end after a stop; what its status says."""

import math

import pytest

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.train.run.early_stop import find_stop
from scalelab.train.single import train_single
from tests.train.runs import untimed

VALUES = {
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": 32, "train.global_batch": 4,
    "train.steps": 60, "train.steps_per_dispatch": 5, "eval.batches": 2, "eval.every_steps": 5, "eval.patience": 2,
    "checkpoint.every_steps": 10, "optim.peak_lr": 0.6, "schedule.warmup_steps": 1,
}  # fmt: skip


def config(**changes):
    return config_lib.resolve(config_lib.override(tiny.get_config(), VALUES | changes))


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run at a rate so high that its loss soon stops falling."""
    folder = tmp_path_factory.mktemp("runs") / "patient"
    return folder, train_single(config(), folder)


def losses_of(folder):
    return {line["step"]: line["val_loss"] for line in records.read_metrics(folder) if "val_loss" in line}


@pytest.mark.full
def test_it_ends_where_the_last_two_losses_are_no_lower_than_one_before(ended):
    folder, result = ended
    losses = losses_of(folder)
    values, last = list(losses.values()), max(losses)
    assert result["status"] == "stopped early" and result["final_step"] == last < 60
    is_spent = [min(values[k - 2 : k]) >= min(values[: k - 2]) for k in range(3, len(values) + 1)]
    assert is_spent == [False] * (len(values) - 3) + [True]
    (event,) = [each for each in records.read_events(folder) if each["kind"] == "stopped_early"]
    best = min(losses, key=losses.get)
    assert event["step"] == last and event["text"].startswith("no lower validation loss in 2 evaluations since")
    assert f"at step {best} " in event["text"]


@pytest.mark.full
def test_it_is_saved_there_and_goes_no_further(ended):
    folder, result = ended
    lines = untimed(folder)
    again = train_single(config(), folder)
    assert (again["status"], again["final_step"], again["params_digest"]) == (
        "stopped early", result["final_step"], result["params_digest"],
    )  # fmt: skip
    assert untimed(folder) == lines
    record = records.read_record(folder)
    assert record["steps"] == result["final_step"] and record["val_loss"] == losses_of(folder)[result["final_step"]]


@pytest.mark.full
# Evaluations before it is stopped; the third is the first that can end the run.
@pytest.mark.parametrize("moment", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_stopped_run_ends_at_the_same_step_with_the_same_weights(ended, tmp_path, moment):
    folder, result = ended
    asked = iter([False] * moment + [True])
    stopped = train_single(config(), tmp_path / "run", stop=lambda: next(asked))
    assert stopped["status"] == "stopped" and stopped["final_step"] < result["final_step"]
    resumed = train_single(config(), tmp_path / "run")
    assert (resumed["final_step"], resumed["params_digest"]) == (result["final_step"], result["params_digest"])
    assert losses_of(tmp_path / "run") == losses_of(folder)


@pytest.mark.full
def test_without_patience_nothing_changes_but_the_end(ended, tmp_path):
    folder, _ = ended
    whole = train_single(config(**{"eval.patience": 0, "train.steps": 60}), tmp_path / "run")
    assert whole["status"] in ("done", "diverged") and whole["final_step"] == 60
    shared = losses_of(folder)
    assert {step: loss for step, loss in losses_of(tmp_path / "run").items() if step in shared} == shared
    plain = config_lib.resolve(tiny.get_config())
    assert config_lib.identity(plain) == config_lib.identity(
        config_lib.resolve(config_lib.override(tiny.get_config(), {"eval.patience": 0}))
    )
    assert config_lib.identity(config()) != config_lib.identity(config(**{"eval.patience": 3}))


def test_the_rule():
    nan = math.nan
    assert find_stop([3, 2, 1], 1) is None and find_stop([3, 3], 1) == 1 and find_stop([1, 2, 2], 3) is None
    assert find_stop([3, 2, 2.5, 1.9, 2, 2, 0], 2) == 5 and find_stop([3, nan, nan], 2) == 2
    assert find_stop([1, 2, 3, 4], 0) is None
