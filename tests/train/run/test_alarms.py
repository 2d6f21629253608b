"""The host's alarms: lasting rises and climbs on series, and a small run whose guard acts, killed and resumed."""

import jax
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab import records
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.run import alarms
from scalelab.train.run.single import train_single
from scalelab.train.step.guard import RECENT

SMALL = {
    "model.d_model": 16, "model.n_layers": 1, "model.seq_len": 16, "train.global_batch": 2, "train.steps": 40,
    "eval.batches": 1, "eval.every_steps": 40, "checkpoint.every_steps": 20, "train.steps_per_dispatch": 5,
    "checkpoint.keep_last": 9, "log.every_steps": 1, "schedule.name": "constant", "schedule.warmup_steps": 2,
    # Alarms at every other step: the losses of such small batches differ by 10 % and more.
    "guard.policy": "skip", "guard.window": 16, "guard.minimum": 6, "guard.sigmas": 0.5,
}  # fmt: skip


def config(**changes):
    return config_lib.resolve(override(tiny.get_config(), SMALL | changes))


def noisy(n, seed=0):
    return 3.0 * np.exp(0.01 * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def first_risen(losses):
    risen = alarms.rising_steps(losses)[0]
    return int(np.flatnonzero(risen)[0]) + RECENT - 1 if risen.any() else None


def test_a_lasting_rise_and_a_ramp_are_seen_and_noise_and_one_spike_are_not():
    at = 600
    for seed in range(3):
        assert first_risen(noisy(1500, seed)) is None
        losses = noisy(1500, seed)
        losses[at:] *= 1.3
        assert 12 <= first_risen(losses) - at <= 18  # about half of the 32 must stand higher
        losses = noisy(1500, seed)
        losses[at:] *= 1.01 ** np.arange(900)
        assert first_risen(losses) - at <= 32
        losses = noisy(1500, seed)
        losses[at : at + 3] *= 3
        losses[at + 100] = np.inf
        assert first_risen(losses) is None


def test_the_robust_slope_is_that_of_the_line_under_outliers():
    x = np.arange(0.0, 200)
    y = 0.03 * x + np.where(x % 5 == 0, 9.0, 0)
    assert alarms.robust_slope(x, y) == pytest.approx(0.03, rel=1e-9)


def guard_events(folder):
    return [{k: v for k, v in e.items() if k != "time"} for e in records.read_events(folder) if e["kind"] == "guard"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard") / "whole"
    return folder, train_single(config(), folder)


def test_every_alarm_is_an_event_and_the_record_and_the_table_have_the_score(whole):
    folder, _ = whole
    events = guard_events(folder)
    lines = [line for line in records.read_metrics(folder) if "skipped" in line]
    flags = [e for e in events if e["signal"] in ("loss", "grad_norm")]
    skipped = sum(e["to"] - e["from"] + 1 for e in flags if e["action"] == "skip")
    assert skipped == lines[-1]["skipped"] > 0
    for event in flags:
        assert event["value"] > event["threshold"] and event["sigmas"] > 0.5
        value = {line["step"]: line for line in lines}[event["step"]]
        if event["from"] == event["to"]:
            metric = "train_loss" if event["signal"] == "loss" else "grad_norm"
            assert value[metric] == pytest.approx(event["value"], rel=1e-6)
        assert (value["streak"] > 0) == (event["action"] == "skip")
    assert not any("guard" in line for line in lines)
    assert "standard deviations above the window" in flags[0]["text"] and "skipped" in flags[0]["text"]
    row = records.read_run(folder)
    assert row["spike_score"] == pytest.approx(sum(e["to"] - e["from"] + 1 for e in flags) / 40)
    health = manifest.read_manifest(folder / "checkpoints" / "40")["health"]["run"]
    assert health.startswith("suspect")


def test_a_resumed_run_keeps_the_guards_memory_to_the_bit(whole, tmp_path):
    folder, result = whole
    train_single(config(**{"train.steps": 20}), tmp_path / "a")
    resumed = train_single(config(), tmp_path / "a")
    a, b = tmp_path / "a", folder
    assert guard_events(a) == guard_events(b) != []
    leaves = [jax.tree.leaves(restored(place)["run"]["guard"]) for place in (a, b)]
    assert all((x == y).all() for x, y in zip(*leaves, strict=True)) and len(leaves[0]) == 9
    assert resumed["params_digest"] == result["params_digest"]
    assert records.read_record(a)["spike_score"] == records.read_record(b)["spike_score"]


def restored(place):
    from scalelab.train.step import program

    static = config_lib.static(config())
    (like,) = program.restore_targets(static, 1, "turn")
    return Checkpoints(place / "checkpoints").restore(40, {"run": {"guard": like.guard}})


def test_a_checkpoint_without_a_guard_goes_on_with_a_fresh_one_and_says_so(tmp_path):
    off = {"guard.policy": "off", "guard.window": 128, "guard.minimum": 64, "guard.sigmas": 6.0}
    train_single(config(**off, **{"train.steps": 20}), tmp_path / "a")
    said = []
    resumed = train_single(config(**{**off, "guard.policy": "watch"}), tmp_path / "a", said.append)
    straight = train_single(config(**off), tmp_path / "b")
    assert resumed["params_digest"] == straight["params_digest"]
    assert any("fresh guard" in fact.get("warning", "") for fact in said)
    assert "mixed" not in records.read_record(tmp_path / "a")  # neither guard changes a step
