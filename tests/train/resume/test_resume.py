"""Interruption by real signals: whatever the moment, the run ends as if nothing had happened."""

import random
import signal

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.train.runs import command, finish, run_here, train, untimed, wait_for

STEPS = ["--config.train.steps=120", "--config.eval.every_steps=40", "--config.train.steps_per_dispatch=5"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run: its folder and its result."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, run_here(*train(folder, *STEPS))


@pytest.mark.parametrize(
    ("seed", "times"), [(0, 1), *(pytest.param(seed, 2, marks=pytest.mark.slow) for seed in (0, 1))]
)
def test_killed_at_a_random_moment_and_started_again_it_ends_with_the_same_bits(tmp_path, whole, seed, times):
    folder, chance, kills = tmp_path / "run", random.Random(seed), 0
    while kills < times:
        process = command(*train(folder, *STEPS))
        goal = chance.randrange(2, 110)
        wait_for(lambda goal=goal: any(m["step"] >= goal for m in records.read_metrics(folder)), process)
        process.kill()
        process.communicate()
        kills += 1
    result = run_here(*train(folder, *STEPS))
    assert result["params_digest"] == whole[1]["params_digest"]
    assert result["final_step"] == 120
    assert untimed(folder) == untimed(whole[0])


def test_a_second_start_is_a_no_op_with_the_same_answer(whole):
    folder, result = whole
    before = (folder / "metrics.jsonl").read_text()
    again = run_here(*train(folder, *STEPS))
    assert (again["params_digest"], again["val_loss"]) == (result["params_digest"], result["val_loss"])
    assert again["resumed_from"] == 120
    assert (folder / "metrics.jsonl").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU"])
def test_a_signal_saves_the_step_and_exits_75_and_the_run_goes_on_from_there(tmp_path, whole, name):
    folder = tmp_path / "run"
    process = command(*train(folder, *STEPS))
    wait_for(lambda: len(records.read_metrics(folder)) > 0, process)
    process.send_signal(getattr(signal, name))
    stopped = finish(process, code=75)
    assert 0 < stopped["final_step"] < 120
    assert (folder / "checkpoints" / str(stopped["final_step"])).is_dir()
    assert records.read_json(folder / "record.json")["status"] == "stopped"
    result = run_here(*train(folder, *STEPS))
    assert result["resumed_from"] == stopped["final_step"]
    assert result["params_digest"] == whole[1]["params_digest"]
    assert untimed(folder) == untimed(whole[0])


@pytest.mark.full
def test_a_second_process_in_the_same_folder_is_refused(tmp_path, capsys):
    folder = tmp_path / "run"
    first = command(*train(folder, "--config.train.steps=100000"))
    wait_for((folder / "config.json").exists, first)
    try:
        assert main(["train", *train(folder, "--config.train.steps=100000")]) == 2
    finally:
        first.kill()
        first.communicate()
    err = capsys.readouterr().err
    assert f"process {first.pid}" in err and len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_what_would_make_it_another_run_is_refused_and_what_would_not_is_noted(tmp_path, capsys):
    folder = tmp_path / "run"
    constant = "--config.schedule.name=constant"  # whose past doesn't depend on its end
    run_here(*train(folder, constant, "--config.train.steps=10"))
    capsys.readouterr()
    assert main(["train", *train(folder, constant, "--config.train.steps=10", "--config.train.seed=1")]) == 2
    err = capsys.readouterr().err
    assert "train.seed=0" in err and "now it is 1" in err
    longer = run_here(*train(folder, constant, "--config.train.steps=20"))
    assert (longer["resumed_from"], longer["final_step"], longer["status"]) == (10, 20, "done")
    changes = [e for e in records.read_events(folder) if e["kind"] == "config_change"]
    assert "train.steps: 10 -> 20" in changes[0]["text"]


@pytest.mark.full
def test_a_run_that_cannot_learn_is_marked_diverged_and_exits_1(tmp_path):
    folder = tmp_path / "run"
    result = run_here(*train(folder, "--config.train.steps=60", "--config.optim.peak_lr=1000"), code=1)
    assert result["status"] == "diverged"
    assert [e["kind"] for e in records.read_events(folder)][-1] == "diverged"
