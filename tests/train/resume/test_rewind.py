"""Going back after an alarm that lasts, against the run that never saw the bad batches; killed at every point of it."""

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.commands import train
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.data.batches.batches import TrainBatches
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.sweep.run import run_sweep
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume import rewind
from scalelab.train.run.feed import Feed
from scalelab.train.single import ByHand, train_single
from scalelab.train.step import incident
from scalelab.train.step.state import TrainState
from tests.train.runs import ROOT

BAD, SKIPPED, BY = range(66, 96), range(61, 96), 35
SMALL = {
    "model.d_model": 16, "model.n_layers": 1, "model.seq_len": 32, "train.global_batch": 8, "train.steps": 120,
    "eval.batches": 1, "eval.every_steps": 60, "checkpoint.every_steps": 20, "train.steps_per_dispatch": 5,
    "log.every_steps": 1, "schedule.name": "constant", "schedule.warmup_steps": 5, "optim.peak_lr": 1e-2,
    "guard.policy": "rewind", "guard.window": 32, "guard.minimum": 16,
}  # fmt: skip
BLIND = {"guard.sigmas": 999.0}  # of the same program: nothing is an outlier
READ = TrainBatches.numbered


def config(**changes):
    return config_lib.resolve(override(tiny.get_config(), SMALL | changes))


def corrupted(self, numbers, rows=slice(None)):
    """The batches, of which those in BAD are noise."""
    batches = READ(self, numbers, rows).copy()
    for i, number in enumerate(numbers):
        if number in BAD:
            batches[i] = np.random.default_rng(number).integers(0, 256, batches[i].shape)
    return batches


def without_bad_data(self, numbers, rows=slice(None)):
    """The batches of a run whose data never held those that a rewind skips."""
    return READ(self, [n + BY * (n >= 61) for n in numbers], rows)


def plant_bad_data(patch):
    """Noise in BAD, and limits that suit a run of 120 steps."""
    patch.setattr(TrainBatches, "numbered", corrupted)
    patch.setattr(incident, "PERSISTENT_STEPS", 24)
    for name, value in (("MARGIN", 5), ("LEAST", 20), ("MOST", 100)):
        patch.setattr(rewind, name, value)


@pytest.fixture
def bad_data(monkeypatch):
    """A run on bad data."""
    plant_bad_data(monkeypatch)


@pytest.fixture(scope="module")
def spared(tmp_path_factory):
    """The run whose data never held the bad batches, and whose guard sees nothing."""
    with pytest.MonkeyPatch.context() as patch:
        plant_bad_data(patch)  # its limits are part of the compiled program, which the runs share
        patch.setattr(TrainBatches, "numbered", without_bad_data)
        folder = tmp_path_factory.mktemp("spared") / "run"
        result = train_single(config(**BLIND), folder)
        assert not [event for event in records.read_events(folder) if event["kind"] == "guard"]
        return result


def lines(folder):
    return [
        {k: line[k] for k in ("step", "train_loss", "grad_norm") if k in line} for line in records.read_metrics(folder)
    ]


@pytest.mark.full
def test_a_rewound_run_equals_the_run_without_the_bad_batches(bad_data, spared, tmp_path):
    folder = tmp_path / "run"
    result = train_single(config(), folder)
    assert result["status"] == "done" and result["params_digest"] == spared["params_digest"]
    assert [line["step"] for line in lines(folder)] == sorted(line["step"] for line in lines(folder))
    (event,) = [e for e in records.read_events(folder) if e["kind"] == "guard" and e["action"] == "rewind"]
    assert event["batches"] == [SKIPPED[0], SKIPPED[-1]] and event["to"] == 60 and event["signal"] == "persistent"
    record = records.read_record(folder)
    per_token, given_up = record["flops_per_token"]["exact"], event["cost_steps"] * 8 * 32
    assert record["tokens"] == 120 * 8 * 32  # what the weights have seen
    assert record["flops"]["exact"] == per_token * record["tokens"] + per_token * given_up  # what was computed
    assert records.read_metrics(folder)[-1]["flops"] == record["flops"]["exact"]
    ledger = manifest.read_manifest(folder / "checkpoints" / "120")["facts"]["run"]["ledger"]
    assert ledger["discarded"] == {"steps": event["cost_steps"], "tokens": given_up, "flops": {
        name: each * given_up for name, each in zip(ledger["flops"], (ledger["flops_per_token"][k] for k in (
            "6N", "chinchilla", "exact")), strict=True)}}  # fmt: skip
    assert (ledger["position"], ledger["sequences"]) == ((120 + BY) * 8, 120 * 8)  # passed-over batches are not read
    assert record["rewinds"]["1"]["severity"] == 1 and listing.read_run(folder)["rewinds"] == 1
    assert all(
        "rewinds" in manifest.read_manifest(folder / "checkpoints" / str(s))["facts"]["run"]
        for s in manifest.list_steps(folder / "checkpoints")
        if s > 60
    )
    again = train_single(config(), folder)  # nothing left to do, and nothing done twice
    assert again["params_digest"] == spared["params_digest"]


def kill_at_call(patch, place, name, at, counts):
    """Let the process be killed at a call of `place.name`, the `at`-th that `counts`."""
    calls, whole = [], getattr(place, name)

    def killing(*arguments, **more):
        calls.extend([1] if counts(*arguments) else [])
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments, **more)

    patch.setattr(place, name, killing)


# Where a rewind is killed: (module or class, function, which call, of those that count)
POINTS = {
    "before the decision": (rewind, "_plan_rewind", 1, lambda *_: True),
    "after it": (rewind, "drop_abandoned_steps", 2, lambda *_: True),
    "after restoring": (rewind, "follow_decision", 1, lambda *_: True),
    "before the first save": (Feed, "take", 1, lambda feed, *_: feed.shifts[0].number(200) > 200),
    "while a trial catches up": (Feed, "take", 2, lambda feed, *_: len(feed.runs) == 1),
}


def train_killed(point, folder, work=lambda folder: train_single(config(), folder)):
    """Train under bad data in this process until it is killed at `point`."""
    with pytest.MonkeyPatch.context() as patch:
        plant_bad_data(patch)
        kill_at_call(patch, *POINTS[point])
        work(pathlib.Path(folder))


def train_pack_killed(point, folder):
    """Like `train_killed`, for the pack of `trials`."""
    train_killed(point, folder, lambda folder: run_sweep(folder, trials()))


def killed(function, point, folder):
    """Run one of the two above in a process of its own, which must end by the kill."""
    code = f"from {__name__} import {function}; {function}({point!r}, {str(folder)!r})"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("point", list(POINTS)[:-1])
def test_a_run_killed_at_any_point_of_a_rewind_resumes_to_the_same_bits(point, bad_data, spared, tmp_path):
    killed("train_killed", point, tmp_path / "run")
    result = train_single(config(), tmp_path / "run")
    assert result["params_digest"] == spared["params_digest"]
    assert len(rewind.read_decisions(tmp_path / "run")) == 1


@pytest.mark.slow
def test_after_three_rewinds_the_run_ends_and_names_the_healthy_step(bad_data, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.BAD", range(66, 10_000))
    folder = tmp_path / "run"
    result = train_single(config(), folder)
    assert result["status"] == "diverged"
    decisions = rewind.read_decisions(folder)
    assert [(d["severity"], d["lr_factor"], d["reset"]) for d in decisions.values()] == [
        (1, 1.0, False), (2, 0.7, False), (3, 0.7, True)
    ]  # fmt: skip
    (end,) = [e["text"] for e in records.read_events(folder) if e["kind"] == "diverged"]
    assert "after 3 rewinds" in end and "is healthy: scalelab train --init-from=" in end


@pytest.mark.slow
def test_bursts_that_grow_call_a_run_back_before_they_last(bad_data, tmp_path, monkeypatch):
    def bursts(self, numbers, rows=slice(None)):
        batches = READ(self, numbers, rows).copy()
        for i, number in enumerate(numbers):
            least = {11: 0, 12: 64, 13: 128}.get(number // 6)  # the more tokens that text never has, the higher
            if least is not None and number % 6 < 4:  # batches 66 to 69, 72 to 75 and 78 to 81
                batches[i] = np.random.default_rng(number).integers(least, 256, batches[i].shape)
        return batches

    monkeypatch.setattr(TrainBatches, "numbered", bursts)
    result = train_single(config(), tmp_path)
    assert result["status"] == "done"
    (event,) = [e for e in records.read_events(tmp_path) if e["kind"] == "guard" and e["action"] == "rewind"]
    assert event["signal"] == "growing" and (event["to"], event["batches"]) == (60, [61, 86])


def trials(**changes):
    """The trials of a pack: one that the guard calls back, between two that it does not."""
    return {"calm": config(**BLIND, **changes), "watched": config(**changes)}


def check_pack(folder, loss):
    """The watched trial has gone back, once and alone, to this last loss; its neighbour's lines."""
    runs = folder / "runs"
    assert lines(runs / "watched")[-1]["step"] == 120
    assert listing.read_run(runs / "watched")["rewinds"] == 1 and listing.read_run(runs / "calm")["rewinds"] == 0
    assert records.read_record(runs / "watched")["val_loss"] == loss
    return lines(runs / "calm")


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_a_trial_of_a_pack_goes_back_alone_even_if_killed_while_it_catches_up(kill, bad_data, spared, tmp_path):
    if kill:
        killed("train_pack_killed", "while a trial catches up", tmp_path / "pack")
    assert set(run_sweep(tmp_path / "pack", trials()).values()) == {"done"}
    alone = train_single(config(**BLIND), tmp_path / "alone")
    assert check_pack(tmp_path / "pack", spared["val_loss"]) == lines(tmp_path / "alone")
    assert records.read_record(tmp_path / "pack" / "runs" / "calm")["val_loss"] == alone["val_loss"]
    assert alone["val_loss"] != spared["val_loss"]


@pytest.mark.slow
def test_a_trial_of_a_vmapped_pack_goes_back_alone(bad_data, spared, tmp_path):
    vmapped = trials(**{"sweep.pack": "vmap"})
    assert set(run_sweep(tmp_path / "pack", vmapped).values()) == {"done"}
    calm = {"calm": vmapped["calm"], "watched": config(**BLIND, **{"sweep.pack": "vmap"})}
    run_sweep(tmp_path / "untouched", calm)  # of as many trials, so of the same program
    loss = pytest.approx(spared["val_loss"], rel=1e-5)  # batched products add in another order
    assert check_pack(tmp_path / "pack", loss) == lines(tmp_path / "untouched" / "runs" / "calm")


@pytest.mark.slow
def test_changes_by_hand(bad_data, spared, tmp_path):
    folder = tmp_path / "run"
    train_single(config(**{"train.steps": 50}), folder)
    with pytest.raises(BadInput, match=r"batch 50; nearest: 50\.\.60"):
        train_single(config(), folder, change=ByHand(skip=(10, 20)))
    skip = ByHand(skip=(SKIPPED[0], SKIPPED[-1]))
    result = train_single(config(), folder, change=skip)
    assert result["params_digest"] == spared["params_digest"]
    assert records.read_record(folder)["changes_by_hand"]["1"] == {"step": 50, "change": "skip_batches=61..95"}
    notes = []
    longer = config(**{"train.steps": 130})
    train_single(longer, folder, notes.append, change=skip)
    assert any("is not made again" in fact.get("note", "") for fact in notes)
    train_single(config(**{"train.steps": 140}), folder, change=ByHand(0.5, None, True))
    rates = {line["step"]: line["lr"] for line in records.read_metrics(folder) if "lr" in line}
    assert rates[130] == pytest.approx(1e-2) and rates[131] == pytest.approx(0.5e-2 / 150)


def test_changes_that_no_run_can_make_are_refused_in_one_line(tmp_path):
    with pytest.raises(BadInput, match="only a run that goes on"):
        train_single(config(), tmp_path / "new", change=ByHand(0.5))
    spec = make_train_spec(config(**{"guard.policy": "off"}), {})
    with pytest.raises(BadInput, match=r"guard\.policy='off'"):
        rewind.apply_change(TrainState(np.int32(0), *[()] * 7), spec, rewind.Change(0.5))
    for option, line in (("--lr-factor=0", "above zero"), ("--skip-batches=5", "is not A..B")):
        with pytest.raises(BadInput, match=line):
            train.main(["--config=configs/tiny.py", f"--workdir={tmp_path}", option])
