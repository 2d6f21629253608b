"""A sweep that goes on after its pack changed its name, under allowed changes, or as trials on their own."""

import itertools

import pytest

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.sweep.run import run_sweep
from scalelab.train.checkpoints import manifest
from scalelab.train.single import train_single
from tests.sweep.test_pack import TINY
from tests.train.resume.test_compatibility import config as small
from tests.train.runs import command, finish, untimed

POINTS = {"low": {"optim.peak_lr": 3e-3}, "other": {"train.seed": 5}}
SHORT = {"train.steps": 10, "eval.every_steps": 10, "schedule.name": "constant"}  # which may get more steps


def trials(**changes):
    """Two trials of one pack; `model__d_model=24` for model.d_model=24."""
    changed = SHORT | {key.replace("__", "."): value for key, value in changes.items()}
    return {
        name: config_lib.resolve(override(tiny.get_config(), TINY | changed | point)) for name, point in POINTS.items()
    }


def events(folder, name, kind):
    return [event for event in records.read_events(folder / "runs" / name) if event["kind"] == kind]


@pytest.mark.slow
def test_more_steps_make_another_pack_and_go_on_from_the_old_one(tmp_path):
    run_sweep(tmp_path, trials())
    assert run_sweep(tmp_path, trials(train__steps=20)) == {"low": "done", "other": "done"}
    assert len(list((tmp_path / "packs").iterdir())) == 2
    for name in POINTS:
        assert [event["step"] for event in events(tmp_path, name, "resume")] == [10]
        steps = [line["step"] for line in untimed(tmp_path / "runs" / name) if "train_loss" in line]
        assert steps == [10, 20]
    assert run_sweep(tmp_path, trials(train__steps=30)) == {"low": "done", "other": "done"}
    assert [event["step"] for event in events(tmp_path, "low", "resume")] == [10, 20]


class Killed(BaseException):
    """Ends a sweep between a step and its save, as SIGKILL would: what is on disk then is all there is."""


@pytest.mark.full
def test_trials_killed_before_the_first_save_of_their_new_pack_go_on_from_the_old_one(tmp_path):
    notes = []

    def kill(fact):
        notes.append(fact.get("note"))
        if fact.get("step", 0) > 4:
            raise Killed

    def two(steps):
        rare = {"schedule__name": "constant", "eval__every_steps": 100, "checkpoint__every_steps": 100}
        return {name: small(**rare, train__steps=steps, train__seed=seed) for name, seed in (("low", 0), ("other", 3))}

    run_sweep(tmp_path, two(4))
    for _ in range(2):
        with pytest.raises(Killed):
            run_sweep(tmp_path, two(12), progress=kill)
        assert notes.count("2 trials: resumed at step 4") == 1 and not notes.clear()
    assert run_sweep(tmp_path, two(12)) == {"low": "done", "other": "done"}
    for name in ("low", "other"):
        assert [event["step"] for event in events(tmp_path, name, "resume")] == [4, 4, 4]
        assert [event["step"] for event in events(tmp_path, name, "start")] == [0]
        assert records.read_record(tmp_path / "runs" / name)["steps"] == 12


@pytest.mark.slow
def test_more_steps_of_a_cosine_are_refused_unless_allowed(tmp_path):
    run_sweep(tmp_path, trials(schedule__name="cosine"))
    with pytest.raises(
        BadInput, match=r"runs/low is at step 10 of 10; with train.steps=20 the lr of its step \d+ would have"
    ):
        run_sweep(tmp_path, trials(schedule__name="cosine", train__steps=20))
    verdicts = run_sweep(tmp_path, trials(schedule__name="cosine", train__steps=20), allow=["train.steps"])
    assert verdicts == {"low": "done", "other": "done"}


@pytest.mark.slow
def test_a_trial_that_went_its_own_way_is_not_thrown_back(tmp_path):
    run_sweep(tmp_path, trials())
    train_single(trials(train__steps=20)["low"], tmp_path / "runs" / "low")
    with pytest.raises(BadInput, match=r"not all .* were saved together \(.*/runs/low/checkpoints"):
        run_sweep(tmp_path, trials(train__steps=20))


@pytest.mark.slow
def test_a_frozen_key_is_refused_unless_allowed_and_then_it_is_on_record(tmp_path):
    run_sweep(tmp_path, trials())
    with pytest.raises(BadInput, match=r"model.rope_theta=10000.0, now it is 500.0.*--allow-change=model.rope_theta"):
        run_sweep(tmp_path, trials(model__rope_theta=500.0, train__steps=20))
    with pytest.raises(BadInput, match=r"no such key; did you mean 'model.rope_theta'"):
        run_sweep(tmp_path, trials(), allow=["model.rope_thet"])
    run_sweep(tmp_path, trials(model__rope_theta=500.0, train__steps=20), allow=["model.rope_theta"])
    for name in POINTS:
        (changed,) = events(tmp_path, name, "config_change")
        assert changed["allowed"] == ["model.rope_theta"] and changed["step"] == 10
        assert "model.rope_theta: 10000.0 -> 500.0" in changed["text"]


@pytest.mark.slow
def test_trials_of_a_pack_count_on_after_a_changed_batch(tmp_path):
    run_sweep(tmp_path, trials())
    before = {name: records.read_record(tmp_path / "runs" / name) for name in POINTS}
    batch = trials()["low"].train.global_batch
    run_sweep(tmp_path, trials(train__global_batch=2 * batch, train__steps=20), allow=["train.global_batch"])
    for name, old in before.items():
        record = records.read_record(tmp_path / "runs" / name)
        assert (record["steps"], record["tokens"]) == (20, 3 * old["tokens"])
        assert record["flops"]["exact"] == 3 * old["flops"]["exact"]
        place, trial = manifest.find_saved_steps(tmp_path / "runs" / name)[20]
        ledger = manifest.read_manifest(place / "20")["facts"][trial]["ledger"]
        assert ledger["position"] == ledger["sequences"] == 30 * batch and ledger["flops"] == record["flops"]


@pytest.mark.slow
def test_the_command_takes_it_and_hands_it_to_the_workers_of_a_pool(tmp_path):
    file = tmp_path / "grid.py"
    file.write_text(
        "from scalelab.configs import tiny\nget_config = tiny.get_config\n"
        "def sweep(h): return h.sweep('model.d_model', [16, 24])\n"
    )
    values = {**TINY, **SHORT, "sweep.workers": 1}
    values.pop("model.d_model")
    overrides = [f"--config.{key}={value}" for key, value in values.items()]

    def sweep(*more, code=0):
        process = command(f"--config={file}", f"--workdir={tmp_path / 's'}", *overrides, *more, "--json", name="sweep")
        return [row["status"] for row in finish(process, code).get("trials", [])]

    assert sweep() == ["done", "done"]
    changed = ["--config.train.z_loss=0.1", "--config.train.seed=7", "--config.train.steps=20"]
    before = (tmp_path / "s" / "sweep.json").read_bytes()
    assert sweep(*changed, code=2) == [] and (tmp_path / "s" / "sweep.json").read_bytes() == before
    assert sweep(*changed, "--allow-change=train.seed") == ["done", "done"]


@pytest.mark.slow
def test_each_trial_of_a_pack_that_was_stopped_goes_on_alone_to_the_same_bits(tmp_path):
    for name, config in trials().items():
        train_single(config, tmp_path / "alone" / name)
    calls = itertools.count()
    packed = run_sweep(tmp_path, trials(sweep__pack="turn"), stop=lambda: next(calls) == 0)
    assert set(packed.values()) == {"stopped"}
    for name, config in trials().items():
        result = train_single(config, tmp_path / "runs" / name)
        assert (result["resumed_from"], result["status"]) == (5, "done")
        assert untimed(tmp_path / "runs" / name) == untimed(tmp_path / "alone" / name)
