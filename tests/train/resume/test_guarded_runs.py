"""Whole runs under the guard: data that get harder for good, a start that diverges, a memory of the version before."""

import jax
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.data.batches.batches import TrainBatches
from scalelab.record import records
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.checkpoints.health import Inspection, health_verdicts
from scalelab.train.single import train_single
from scalelab.train.step import guard, memory, program

SMALL = {
    "model.d_model": 16, "model.n_layers": 1, "model.seq_len": 32, "train.global_batch": 8, "eval.batches": 1,
    "eval.every_steps": 500, "checkpoint.every_steps": 20, "checkpoint.keep_last": 99, "train.steps_per_dispatch": 20,
    "log.every_steps": 1, "schedule.name": "constant", "schedule.warmup_steps": 5, "optim.peak_lr": 1e-2,
}  # fmt: skip
READ = TrainBatches.numbered
HARDER_FROM, UNIFORM = 150, float(np.log(256))


def config(**changes):
    return config_lib.resolve(override(tiny.get_config(), SMALL | changes))


def harder(self, numbers, rows=slice(None)):
    """The batches, of whose tokens a quarter is noise from HARDER_FROM on."""
    batches = READ(self, numbers, rows).copy()
    for i, number in enumerate(numbers):
        random = np.random.default_rng(number)
        noise = random.integers(0, 256, batches[i].shape)
        batches[i] = np.where((number >= HARDER_FROM) & (random.random(noise.shape) < 0.25), noise, batches[i])
    return batches


def losses_of(folder):
    return np.array([line["train_loss"] for line in records.read_metrics(folder) if "train_loss" in line])


def alarms_of(folder):
    return [event for event in records.read_events(folder) if event["kind"] == "guard"]


def health_of(folder):
    place = folder / "checkpoints"
    return {step: manifest.read_manifest(place / str(step))["health"]["run"] for step in manifest.list_steps(place)}


@pytest.mark.full
def test_data_that_get_harder_for_good_end_in_a_new_level_and_cost_no_step(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainBatches, "numbered", harder)
    result = train_single(config(**{"guard.policy": "rewind", "train.steps": 340}), tmp_path)
    assert result["status"] == "done"
    alarms = alarms_of(tmp_path)
    assert [event["signal"] for event in alarms if event["signal"] == "new_level"] == ["new_level"]
    assert not any(event["action"] == "rewind" for event in alarms)
    (event,) = [event for event in alarms if event["signal"] == "new_level"]
    level = np.median(losses_of(tmp_path)[event["step"] - 32 : event["step"]])
    assert 278 <= event["step"] <= 300 and event["value"] == pytest.approx(level, rel=1e-5) and level > 3.5
    health = health_of(tmp_path)
    assert {health[step] for step in (0, 100, 140, 320, 340)} == {"healthy"}
    assert "far above the best" in health[200]


DIVERGES = {"optim.name": "momentum", "optim.peak_lr": 3.0, "train.steps": 120}


@pytest.mark.full
def test_a_start_that_diverges_is_skipped_and_slowed_down(tmp_path):
    """Momentum at LR 3 under `watch` goes beyond 100 nats and ends diverged."""
    result = train_single(config(**DIVERGES, **{"guard.policy": "skip"}), tmp_path)
    assert result["status"] == "done"
    losses, first = losses_of(tmp_path), alarms_of(tmp_path)[0]
    assert losses.max() < 2 * UNIFORM and losses[-16:].mean() < UNIFORM - 1
    assert (first["signal"], first["action"]) == ("early", "skip") and first["step"] < 10
    assert "LR and clip x 0.7" in first["text"]
    rates = [line["lr"] for line in records.read_metrics(tmp_path) if "lr" in line]
    assert rates[-1] == pytest.approx(3.0 * 0.7**10, rel=1e-3)  # the first power below `SLOWEST`
    for step, verdict in health_of(tmp_path).items():
        assert verdict.startswith("suspect") or np.median(losses[step - 8 : step]) < UNIFORM + 0.5


@pytest.mark.full
@pytest.mark.parametrize("clip", [1.0, pytest.param(1e9, marks=pytest.mark.slow)])
def test_a_start_that_diverges_goes_back_to_step_0_with_a_lower_rate(clip, tmp_path):
    options = {"guard.policy": "rewind", "optim.clip_norm": clip, "optim.peak_lr": 3.0 if clip == 1 else 30.0}
    result = train_single(config(**DIVERGES | options), tmp_path)
    assert result["status"] == "done" and losses_of(tmp_path)[-16:].mean() < 3.5
    back = [event for event in alarms_of(tmp_path) if event["action"] == "rewind"]
    assert 1 <= len(back) <= (1 if clip == 1 else 2), [event["text"] for event in back]
    for event in back:
        assert (event["signal"], event["to"], event["batches"]) == ("early", 0, [])
        assert "no batch skipped" in event["text"]
    health = {text.partition(" step ")[0] for text in health_of(tmp_path).values()}
    # Without a clip the last digits decide whether a step after the return is flagged as well; none diverges.
    assert health and health <= {"healthy", *(["suspect: the guard flagged"] if clip == 1e9 else [])}


@pytest.mark.full
def test_a_memory_that_the_version_before_has_saved_is_read(tmp_path, monkeypatch):
    def former(state):
        old, step = jax.device_get(state.guard), int(state.step)
        window = np.roll(old.window, int(old.counts[0]) % old.window.shape[1], axis=1)
        recent = np.roll(old.recent, step % memory.RECENT)
        parts = old.counts[: memory.FORMER_COUNTS], old.marks[: memory.FORMER_MARKS]
        values = dict(zip(("window", "recent", "counts", "marks"), (window, recent, *parts), strict=True))
        return state._replace(guard=state.guard._replace(**{k: jax.numpy.asarray(x) for k, x in values.items()}))

    saves = Checkpoints.save

    def save(self, step, states, *more):
        saves(self, step, {name: former(state) for name, state in states.items()}, *more)

    options = {"guard.window": 16, "guard.minimum": 8, "checkpoint.every_steps": 20}
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        train_single(config(**options, **{"train.steps": 20}), tmp_path / "a")
    notes = []
    resumed = train_single(config(**options, **{"train.steps": 40}), tmp_path / "a", notes.append)
    straight = train_single(config(**options, **{"train.steps": 40}), tmp_path / "b")
    assert resumed["params_digest"] == straight["params_digest"]
    assert not any("fresh guard" in fact.get("warning", "") for fact in notes)
    (like,) = program.restore_targets(config_lib.static(config(**options)), 1, "turn")
    a, b = (
        Checkpoints(tmp_path / name / "checkpoints").restore(40, {"run": {"guard": like.guard}})["run"]["guard"]
        for name in "ab"
    )
    for name in ("window", "recent", "blocks", "counts"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert guard.Counts(*a.counts).entered == 40


@pytest.mark.parametrize(("loss", "problem"), [(3.0, ""), (6.5, "no better than a uniform guess")])
def test_health_knows_the_loss(loss, problem):
    seen = Inspection(True, 0, -1, 0, loss, 3.0)
    (verdict,) = health_verdicts({"run": seen}, "", {"run": UNIFORM}).values()
    assert (problem in verdict) if problem else verdict == "healthy"
