"""The host's alarms: lasting rises and climbs on series, and a small run whose guard acts, killed and resumed."""

import pathlib
import shutil

import jax
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import Guard, override
from scalelab.configs import tiny
from scalelab.data.batches.batches import TrainBatches
from scalelab.record import listing, records
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.run import alarms
from scalelab.train.run.alarms import Alarms, Call
from scalelab.train.run.opening.opening import open_run
from scalelab.train.run.sources import make_train_batches
from scalelab.train.single import load_run_dataset, train_single
from scalelab.train.step import guard, incident
from scalelab.train.step.guard import RECENT
from tests.train.step.test_guard import N, decided, healthy_series
from tests.train.step.test_micro_batches import NAN_TOKEN

SMALL = {
    "model.d_model": 16, "model.n_layers": 1, "model.seq_len": 16, "train.global_batch": 2, "train.steps": 40,
    "eval.batches": 1, "eval.every_steps": 40, "checkpoint.every_steps": 20, "train.steps_per_dispatch": 5,
    "checkpoint.keep_last": 9, "log.every_steps": 1, "schedule.name": "constant", "schedule.warmup_steps": 2,
    # Alarms at every other step: the losses of such small batches differ by 10 % and more.
    "guard.policy": "skip", "guard.window": 16, "guard.minimum": 6, "guard.sigmas": 0.1,
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


@pytest.mark.full
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
    row = listing.read_run(folder)
    assert row["spike_score"] == pytest.approx(sum(e["to"] - e["from"] + 1 for e in flags) / 40)
    health = manifest.read_manifest(folder / "checkpoints" / "40")["health"]["run"]
    assert health.startswith("suspect")


def check_documents(event, tokens, part):
    """Each row named by an alarm is among the tokens of the documents named with it."""
    shards = {pathlib.Path(shard.filename).name: i for i, shard in enumerate(part.train.shards)}
    for row in event["documents"]:
        i, (first, last) = shards[row["shard"]], row["documents"]
        shard, offsets = part.train.shards[i], part.train.offsets[i]
        text = np.concatenate([shard[offsets[first] : offsets[last + 1]], shard[offsets[last + 1] :][:1]])
        views = np.lib.stride_tricks.sliding_window_view(text, tokens.shape[1])
        assert (views == tokens[row["row"]]).all(axis=1).any() and row["source"] == part.name


def flags_with_batches(folder, **changes):
    """(event, tokens of its batch, the source) of each alarm of one step."""
    data = load_run_dataset(config(**changes))
    batches, (part,) = make_train_batches(config(**changes), data), data.parts
    flags = [e for e in guard_events(folder) if "documents" in e and e["from"] == e["to"]]
    assert len(flags) > 3
    return [(event, batches.batch(event["step"] - 1), part) for event in flags]


@pytest.mark.full
def test_an_alarm_names_where_its_batch_comes_from(whole):
    for event, tokens, part in flags_with_batches(whole[0]):
        check_documents(event, tokens, part)
        assert [row["row"] for row in event["documents"]] == [0, 1] and "loss" not in event["documents"][0]


@pytest.mark.slow
def test_where_layers_are_measured_the_worst_sequence_comes_first_with_its_beginning(tmp_path):
    layers = {"log.layers_every": 1}
    train_single(config(**layers), tmp_path)
    metrics = {line["step"]: line for line in records.read_metrics(tmp_path) if "train_loss" in line}
    for event, tokens, part in flags_with_batches(tmp_path, **layers):
        check_documents(event, tokens, part)
        rows = event["documents"]
        assert sorted(row["row"] for row in rows) == [0, 1] and rows[0]["loss"] >= rows[1]["loss"]
        assert np.mean([row["loss"] for row in rows]) == pytest.approx(metrics[event["step"]]["train_loss"], rel=1e-5)
        text = bytes(tokens[rows[0]["row"]].tolist()).decode(errors="replace")
        assert rows[0]["excerpt"] == text.encode("unicode_escape").decode()[:80] and "excerpt" not in rows[1]


@pytest.mark.slow
def test_a_micro_batch_left_out_is_an_event_with_its_documents(tmp_path, monkeypatch):
    read = TrainBatches.numbered

    def planted(self, numbers, rows=slice(None)):
        batches = read(self, numbers, rows).copy()
        for i, number in enumerate(numbers):
            batches[i, 2, 3] = NAN_TOKEN if number in (6, 7) else 0  # row 2 of 4 is in micro-batch 0 of 2
        return batches

    monkeypatch.setattr(TrainBatches, "numbered", planted)
    loss = "tests.train.step.test_micro_batches:flat_at_zero"
    changes = {"guard.skip": "micro_batch", "train.accumulate": 2, "train.global_batch": 4, "train.steps": 10}
    changes |= {"train.loss": loss, "guard.minimum": 16}
    result = train_single(config(**changes), tmp_path)
    (event,) = guard_events(tmp_path)
    assert (event["from"], event["to"], event["signal"], event["action"]) == (7, 8, "bad", "skip_micro_batch")
    assert "left out 1 of 2 micro-batches, the first of them number 0 (steps 7 to 8)" in event["text"]
    assert [row["row"] for row in event["documents"]] == [0, 2] and event["left_out"] == 1
    lines = records.read_metrics(tmp_path)
    assert all(np.isfinite(line["train_loss"]) and line["skipped"] == 0 for line in lines if "train_loss" in line)
    assert result["status"] == "done" and listing.read_run(tmp_path)["spike_score"] == pytest.approx(0.2)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The first half of the run."""
    folder = tmp_path_factory.mktemp("guard") / "half"
    train_single(config(**{"train.steps": 20}), folder)
    return folder


@pytest.mark.full
def test_a_resumed_run_keeps_the_guards_memory_to_the_bit(whole, half, tmp_path):
    folder, result = whole
    shutil.copytree(half, tmp_path / "a")
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


@pytest.mark.full
@pytest.mark.parametrize(
    ("key", "value"), [("optim.peak_lr", 2e-3), pytest.param("precision.name", "bf16", marks=pytest.mark.slow)]
)
def test_a_run_that_goes_on_under_another_config_learns_anew_what_is_normal(whole, half, key, value, tmp_path):
    shutil.copytree(half, tmp_path / "a")
    train_single(config(**{key: value}), tmp_path / "a", allow=[key] * (key == "precision.name"))
    plain, changed = (guard.Counts(*restored(place)["run"]["guard"].counts) for place in (whole[0], tmp_path / "a"))
    assert plain.base_step == 0 and changed.base_step == 20
    assert changed.entered <= 20 < plain.entered


def opened(folder, **changes):
    """A run's folder, entered at step 0."""
    resolved = config(**changes)
    data = load_run_dataset(resolved)
    run = open_run("run", folder, make_train_spec(resolved, data.hparams), data)
    run.enter(0, "start")
    return run


QUIET = incident.Report(*[0.0] * len(incident.Report._fields))._replace(
    first_flag=-1.0, last_flag=-1.0, first_left_out=-1.0, steps=1.0
)


def read_series(run, losses, norms, first=0, memory=None, reports=None):
    """The run's alarms over the steps from `first` on, read and written as the loop does, 20 at a time."""
    memory = guard.init_guard(run.spec.static.guard) if memory is None else memory
    each = Alarms(run, first, memory, lambda step, rows, excerpts: [])
    quiet = np.array(QUIET, np.float32)
    for at in range(0, len(losses), 20):
        part = slice(at, at + 20)
        metrics = {"train_loss": losses[part], "grad_norm": norms[part]}
        metrics["guard"] = np.tile(quiet, (len(losses[part]), 1)) if reports is None else reports[part]
        rows = zip(range(first + at + 1, first + at + 21), losses[part].tolist(), norms[part].tolist(), strict=False)
        run.files.write_lines([{"step": s, "train_loss": x, "grad_norm": g} for s, x, g in rows if s % 10 == 0])
        each.read(first + at, len(losses[part]), metrics)
    return each


@pytest.mark.full
def test_a_climbing_gradient_norm_is_one_event_also_where_half_of_it_is_read_from_the_log(tmp_path):
    n = 2400
    noise = np.random.default_rng(0).standard_normal((2, n))
    losses = 3.0 * np.exp(-1e-5 * np.arange(n) + 0.01 * noise[0])
    norms = 1.001 ** np.arange(n) * np.exp(0.09 * noise[1])  # stability.md: climbing, e times over 1,000 steps
    calm = {"guard.policy": "watch", "log.every_steps": 10, "train.steps": 5000, "guard.window": 128}
    calm |= {"guard.minimum": 64, "guard.sigmas": 6.0}
    for name, series, expected in (
        ("whole", (losses, norms), ["climbing"]),
        ("healthy", (losses, np.exp(0.09 * noise[1])), []),
        ("rising", (losses * 1.0001 ** np.arange(n), norms), []),  # a loss that rises has other names
    ):
        read_series(opened(tmp_path / name, **calm), *series)
        assert [e["signal"] for e in guard_events(tmp_path / name)] == expected, name
    run = opened(tmp_path / "resumed", **calm)
    before = read_series(run, losses[:1500], norms[:1500])
    memory, _, _ = decided(run.spec.static.guard, losses[:1500], norms[:1500])
    np.testing.assert_array_equal(memory.recent, np.float32(before.recent))
    read_series(run, losses[1500:], norms[1500:], 1500, memory)
    events = [guard_events(tmp_path / name) for name in ("whole", "resumed")]
    assert events[0] == events[1] and events[0][0]["step"] == 2000
    assert events[0][0]["value"] == pytest.approx(1.001**2000, rel=0.05) and events[0][0]["threshold"] == 2


def test_a_stretch_of_steps_without_a_micro_batch_is_one_event(tmp_path):
    run = opened(tmp_path, **{"guard.skip": "micro_batch", "train.accumulate": 2, "train.steps": 20})
    codes = guard.BAD, guard.ACTIONS.index("skip_micro_batch")
    reports = np.tile(np.array(QUIET, np.float32), (20, 1))
    flagged = QUIET._replace(signal=codes[0], action=codes[1], first_flag=6, last_flag=7, left_out=1, first_left_out=0)
    reports[6:8] = flagged
    read_series(run, np.ones(20), np.ones(20), reports=reports)
    (event,) = guard_events(tmp_path)
    assert (event["from"], event["to"], event["signal"], event["left_out"]) == (7, 8, "bad", 1)
    assert "left out 1 of 2 micro-batches, the first of them number 0 (steps 7 to 8)" in event["text"]


@pytest.mark.full
def test_an_incident_that_grows_calls_a_run_back_and_ends_in_nothing_where_the_guard_may_only_skip(tmp_path):
    losses, norms = healthy_series()
    for at, factor in ((300, 1.2), (306, 1.3), (312, 1.5)):
        losses[at : at + 4] *= factor
    options = {"guard.window": 128, "guard.minimum": 64, "guard.sigmas": 6.0, "train.steps": N}
    for policy, called in (("rewind", True), ("skip", False)):
        rule = Guard(policy)
        reports = np.stack(decided(rule, losses, norms)[2], axis=1)
        run = opened(tmp_path / policy, **options, **{"guard.policy": policy})
        call = read_series(run, losses, norms, reports=reports).call
        shapes = [e["signal"] for e in guard_events(tmp_path / policy) if e["signal"] in incident.SHAPES]
        assert shapes == ["growing", "benign"] and (call is not None) == called and run.status == "running"
    call = read_series(
        opened(tmp_path / "call", **options, **{"guard.policy": "rewind"}), losses, norms, reports=reports
    ).call
    assert call == Call(317, "growing", 300, 315)


@pytest.mark.slow
def test_a_checkpoint_without_a_guard_goes_on_with_a_fresh_one_and_says_so(tmp_path):
    off = {"guard.policy": "off", "guard.window": 128, "guard.minimum": 64, "guard.sigmas": 6.0}
    train_single(config(**off, **{"train.steps": 20}), tmp_path / "a")
    said = []
    resumed = train_single(config(**{**off, "guard.policy": "watch"}), tmp_path / "a", said.append)
    straight = train_single(config(**off), tmp_path / "b")
    assert resumed["params_digest"] == straight["params_digest"]
    assert any("fresh guard" in fact.get("warning", "") for fact in said)
    assert "mixed" not in records.read_record(tmp_path / "a")  # neither guard changes a step


def test_a_divergence_long_after_the_last_flag_is_its_own_beginning(tmp_path):
    """A flag of step 37 sent a run that diverged at 180 back before 37, where nothing was saved."""
    for last, expected in ((36, (179 - 31, 179)), (170, (36, 170))):
        run = opened(tmp_path / str(last), **{"guard.policy": "rewind", "train.steps": 400})
        reports = np.tile(np.array(QUIET._replace(first_flag=36, last_flag=last), np.float32), (200, 1))
        reports[179, incident.Report._fields.index("shape")] = incident.DIVERGED
        call = read_series(run, np.full(200, 8.0), np.ones(200), reports=reports).call
        assert call is not None and (call.first_flag, call.last_flag) == expected
