"""Growing sequences: a step at length L equals one of sequences of L tokens, and one program serves all lengths."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.config import replace_hparams
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput
from scalelab.optim import schedules
from scalelab.train.single import train_single
from scalelab.train.step.step import evaluation_loss
from tests.train.resume.test_compatibility import config
from tests.train.runs import untimed
from tests.train.step.test_step import (
    BATCH,
    SEQ_LEN,
    STATIC,
    H,
    assert_same,
    batches,
    init,
    relative,
    step,
    steps,
    trained,
)

GROWING = dataclasses.replace(STATIC, seq_warmup=True)


def growing(start, tokens):
    """The hparams of a warm-up from `start` over so many tokens."""
    changes = {"seq_start": jnp.float32(start), "seq_warmup_tokens": jnp.float32(tokens)}
    return replace_hparams(H, {f"schedule.{name}": value for name, value in changes.items()})


def short(tokens, length):
    """The same targets from sequences of `length` tokens: [B S / length, length + 1]."""
    starts = range(0, SEQ_LEN, length)
    return jnp.concatenate([tokens[:, i : i + length + 1] for i in starts])


@pytest.mark.full
@pytest.mark.parametrize("length", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_step_at_a_length_is_a_step_of_sequences_of_that_length(length):
    """The model never hears of it: shorter sequences, as many tokens, rope positions from 0 in each."""
    state, tokens = trained()[0], batches(seed=1)[0]
    result, log = step(GROWING, state, tokens, growing(length, 1e9))
    shape = dataclasses.replace(STATIC.model, seq_len=length)
    small = dataclasses.replace(STATIC, model=shape, global_batch=BATCH * SEQ_LEN // length)
    wanted, expected = step(small, state, short(tokens, length), H)
    for name in expected.keys() - {"read/digest", "read/equal_rows"}:  # of the rows as they were given
        np.testing.assert_allclose(log[name], expected[name], rtol=2e-6, err_msg=name)
    assert relative((result.params, result.opt_state), (wanted.params, wanted.opt_state)) < 2e-6
    full, _ = step(STATIC, state, tokens, H)
    assert relative(full.params, result.params) > 1e-4


@pytest.mark.full
def test_a_full_length_is_no_warm_up_and_losses_are_of_full_sequences():
    state, tokens = trained()[0], batches(seed=1)
    over = growing(1, 1)
    assert relative(step(GROWING, state, tokens[0], over)[0].params, step(STATIC, state, tokens[0], H)[0].params) < 1e-6
    during = growing(1, 1e9)
    assert_same(evaluation_loss(GROWING, state, tokens, during), evaluation_loss(STATIC, state, tokens, H))


@pytest.mark.full
def test_one_program_serves_every_length_start_and_duration():
    before = steps._cache_size()
    for i, (start, tokens) in enumerate([(1, 1e3), (3, 1e3), (8, 500)]):
        h = growing(start, tokens)
        _, log = steps(GROWING, init(GROWING, h), batches(seed=i), jnp.int32(4), h)
        assert np.isfinite(log["train_loss"]).all()
    assert steps._cache_size() == before + 1


BASE = {"model__seq_len": 100, "train__global_batch": 8, "train__steps": 60, "schedule__seq_start": 12}


def test_the_length_grows_linearly_in_the_tokens_seen():
    growing = config(
        **BASE,
        schedule__seq_warmup_tokens=32_000,
        train__accumulate=4,
        schedule__batch_start=4,
        schedule__batch_warmup_tokens=8_000,
    )
    result = schedules.schedule_curves(growing, np.arange(60))["seq_len"]
    for at in range(60):
        seen = schedule_steps.tokens_before(growing, at)  # half batches at first
        wanted = max(12, (12 + 88 * seen / 32_000) // 8 * 8) if seen < 32_000 else 100
        assert result[at] == wanted
    assert result[0] == 12 and result[-1] == 100 and len(set(result.tolist())) > 8 and (np.diff(result) >= 0).all()
    full = int(np.argmax(result == 100))
    assert (
        f"sequences of 12 tokens at first, of 100 after 32,000 tokens (step {full})"
        in schedule_steps.describe_schedule(growing)
    )
    assert full in schedule_steps.landmark_steps(growing)
    plain = config(**(BASE | {"schedule__seq_start": None}))
    assert set(schedules.schedule_curves(plain, np.arange(60))["seq_len"].tolist()) == {100}


@pytest.mark.slow
def test_a_run_says_it_and_resumes(tmp_path):
    run = {"model__seq_len": 16, "train__steps": 8, "schedule__seq_start": 4, "schedule__seq_warmup_tokens": 128}
    whole, halted = (config(**run) for _ in range(2))
    notes, stops = [], iter([False, True])
    result = train_single(whole, tmp_path / "whole", notes.append)
    assert any("sequences of 4 tokens at first, of 16 after 128 tokens (step 4)" in n.get("note", "") for n in notes)
    train_single(halted, tmp_path / "halted", stop=lambda: next(stops, True))
    again = train_single(halted, tmp_path / "halted")
    assert again["params_digest"] == result["params_digest"] and again["resumed_from"] == 4
    assert untimed(tmp_path / "halted") == untimed(tmp_path / "whole")
    with pytest.raises(BadInput, match=r"seq_start=4, now it is 8"):
        train_single(config(**(run | {"schedule__seq_start": 8})), tmp_path / "whole")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schedule__seq_warmup_tokens": None}, "seq_start=12 needs schedule.seq_warmup_tokens"),
        ({"schedule__seq_start": None, "schedule__seq_warmup_tokens": 9},
            "seq_warmup_tokens=9 needs schedule.seq_start"),
        ({"schedule__seq_start": 100, "schedule__seq_warmup_tokens": 9},
            "seq_start=100 is not below .*=100; nearest: 99"),
        ({"schedule__seq_start": 0, "schedule__seq_warmup_tokens": 9}, "seq_start=0 must be finite and above zero"),
        ({"schedule__seq_warmup_tokens": 47_201},
            "not full before the run's last step, 47200 tokens in; nearest: 47200"),
    ],
)  # fmt: skip
def test_a_warm_up_that_cannot_be_had_is_refused(changed, message):
    with pytest.raises(BadInput, match=message):
        config(**(BASE | changed))
