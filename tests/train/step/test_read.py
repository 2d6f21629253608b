"""What a step read: a batch without a target moves nothing, and the metrics `read/…` are counts of the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.config import replace_hparams
from scalelab.record import records
from scalelab.train.step.report.read import hash_rows
from tests.train.runs import run_here, train
from tests.train.step.test_step import K, batches, init, setting, steps

ENDS = {"data.documents": "mask", "train.ema": 0.9}
FP16 = ENDS | {"precision.name": "fp16", "guard.policy": "skip"}


@pytest.mark.full
@pytest.mark.parametrize("changes", [ENDS, pytest.param(FP16, marks=pytest.mark.slow)])
def test_a_batch_without_a_target_moves_nothing_and_is_counted(changes):
    static, h = setting(**changes)
    h = replace_hparams(h, {"dataset.separator": jnp.float32(0)})
    before, _ = steps(static, init(static, h), batches(), jnp.int32(K), h)
    tokens = np.array(batches())
    tokens[1:] = 0
    one, first = steps(static, before, jnp.asarray(tokens), jnp.int32(1), h)
    after, log = steps(static, before, jnp.asarray(tokens), jnp.int32(K), h)
    for name in ("params", "opt_state", "ema", "precision"):
        jax.tree.map(np.testing.assert_array_equal, getattr(after, name), getattr(one, name))
    assert (after.step, after.skipped, after.streak) == (before.step + K, K - 1, K - 1)
    assert (
        list(log["read/targets"] > 0) == [True, False, False, False] and log["train_loss"][0] == first["train_loss"][0]
    )


def test_metrics_count_rows_that_are_equal_or_empty():
    static, h = setting()
    tokens = np.array(batches())
    tokens[1, 3:6], tokens[2, 4:] = tokens[1, 0], -1
    _, log = steps(static, init(static, h), jnp.asarray(tokens), jnp.int32(K), h)
    assert log["read/equal_rows"].tolist() == [0, 3, 0, 0] and log["read/empty_rows"].tolist() == [0, 0, 4, 0]
    assert log["read/targets"].tolist() == [(tokens[i, :, 1:] >= 0).sum() for i in range(K)]
    shuffled = jnp.asarray(tokens[:, ::-1])
    assert (steps(static, init(static, h), shuffled, jnp.int32(K), h)[1]["read/digest"] == log["read/digest"]).all()
    assert len(set(np.asarray(hash_rows(jnp.arange(3000)[:, None], 0)).tolist())) == 3000


def half_empty(path):
    """Documents, every other one of separators alone."""
    rng = np.random.default_rng(0)
    return [bytes(300 + i) if i % 2 else rng.integers(97, 123, 300, np.uint8).tobytes() for i in range(40)]


@pytest.mark.full
def test_a_step_without_targets_is_skipped_and_said(tmp_path):
    """By the command: where a row holds ends of documents alone, the step is skipped, and the logbook says why."""
    changed = {"data.source": f"{__name__}:half_empty", "data.documents": "mask", "train.global_batch": 1}
    changed |= {"train.steps": 30, "log.every_steps": 1, "train.steps_per_dispatch": 5, "optim.weight_decay": 0.1}
    run_here(*train(tmp_path / "run", *(f"--config.{key}={value}" for key, value in changed.items())))
    lines = [line for line in records.read_metrics(tmp_path / "run") if "train_loss" in line]
    empty = [line["step"] for line in lines if line["read/targets"] == 0]
    events = [event for event in records.read_events(tmp_path / "run") if event["kind"] == "skip"]
    assert empty and [event["step"] for event in events] == empty and lines[-1]["skipped"] == len(empty)
    assert all(event["signal"] == "no_targets" and "no token to predict" in event["text"] for event in events)
    assert all((line["update_norm"] == 0) == (line["step"] in empty) for line in lines)
