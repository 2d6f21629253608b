"""Batch-size warm-up: the batch of every step by its definition, what was seen before it, lengths in tokens, and
mistakes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config.steps import batch_ramp, schedule_steps
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.optim import schedules

# sequences: (batch_start, global_batch, accumulate, seq_len, batch_warmup_tokens)
CASES = [(2, 16, 8, 128, 100_000), (1, 8, 8, 32, 1000), (4, 16, 8, 16, 7), (12, 16, 4, 5, 1), (4, 512, 128, 8, 10**6)]


def made(start, batch, accumulate, seq_len, tokens, **more):
    values = {
        "schedule.batch_start": start,
        "train.global_batch": batch,
        "train.accumulate": accumulate,
        "model.seq_len": seq_len,
        "schedule.batch_warmup_tokens": tokens,
        "train.steps": 2000,
    }
    values |= {key.replace("__", "."): value for key, value in more.items()}
    return config_lib.resolve(config_lib.override(tiny.get_config(), values))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_batch_is_the_line_in_tokens_seen_rounded_down_to_micro_batches(case):
    start, batch, accumulate, seq_len, tokens = case
    config = made(*case)
    static, micro, seen, chosen = config_lib.static(config), batch // accumulate, 0, []
    steps = np.arange(schedule_steps.full_batch_step(config) + 3)
    for step in steps:
        assert schedule_steps.tokens_before(config, step) == seen
        line = start + (batch - start) * seen / tokens if seen < tokens else batch
        gained = int((line - start) / micro + 1e-9)
        chosen.append(start // micro + gained)
        seen += chosen[-1] * micro * seq_len
    assert chosen[0] == start // micro and chosen[-4:] != [accumulate] * 4 and chosen[-3:] == [accumulate] * 3
    np.testing.assert_array_equal(
        batch_ramp.micro_batches_per_step(batch_ramp.batch_ramp_steps(config), accumulate, steps), chosen
    )
    traced = jax.jit(jax.vmap(lambda step: schedules.traced_micro_batches(static, step)))(jnp.asarray(steps, jnp.int32))
    np.testing.assert_array_equal(traced, chosen)


def test_gpt3s_ramp():
    """Brown et al. 2020: from 32k to 3.2M tokens over (here) 4 billion, in steps of 32k: each batch gets T/99
    tokens.
    """
    config = made(16, 1600, 100, 2048, 4_000_000_000, train__steps=100_000, schedule__warmup_tokens=375_000_000)
    harmonic = sum(1 / k for k in range(1, 100))
    assert schedule_steps.full_batch_step(config) == pytest.approx(4e9 / 99 / 32768 * harmonic, rel=1e-3)
    assert schedule_steps.tokens_before(config, schedule_steps.full_batch_step(config)) == pytest.approx(4e9, rel=1e-3)
    steps = config.schedule.warmup_steps
    off = [abs(schedule_steps.tokens_before(config, step) - 375_000_000) for step in (steps - 1, steps, steps + 1)]
    assert off[1] == min(off)
    assert "of 3,276,800 tokens (32,768 at first, all from step" in schedule_steps.describe_schedule(config)


def test_warmup_tokens_past_the_ramp_count_full_batches():
    case = (2, 16, 8, 128, 10_000)
    full = schedule_steps.full_batch_step(made(*case))
    seen = schedule_steps.tokens_before(made(*case), full)
    assert made(*case, schedule__warmup_tokens=seen + 5 * 2048 + 100).schedule.warmup_steps == full + 5
    assert made(*case, schedule__warmup_tokens=seen).schedule.warmup_steps == full
    assert made(*case, schedule__warmup_tokens=1).schedule.warmup_steps == 1
    assert made(*case, schedule__warmup_share=0.1).schedule.warmup_steps == 200


@pytest.mark.parametrize(
    ("given", "message", "good"),
    [
        (
            {"train__accumulate": 1},
            "train.accumulate=1 makes one of it",
            {"train__accumulate": 2, "schedule__batch_start": 8},
        ),
        (
            {"schedule__batch_start": 3},
            "multiple of train.global_batch / train.accumulate = 2 below 16; nearest: 4",
            {"schedule__batch_start": 4},
        ),
        ({"schedule__batch_start": 16}, "below 16; nearest: 14", {"schedule__batch_start": 14}),
        ({"schedule__batch_start": 1}, "nearest: 2", {"schedule__batch_start": 2}),
        (
            {"schedule__batch_warmup_tokens": None},
            "batch_start=2 needs schedule.batch_warmup_tokens",
            {"schedule__batch_start": None, "schedule__batch_warmup_tokens": None},
        ),
        ({"schedule__batch_start": None}, "batch_warmup_tokens=100000 needs schedule.batch_start", {}),
        ({"schedule__batch_start": 0}, "schedule.batch_start=0 must be finite and above zero", {}),
        (
            {"train__steps": 100},
            "the batch is not full before step 146 of train.steps=100; nearest: 68096",
            {"train__steps": 100, "schedule__batch_warmup_tokens": 68096},
        ),
        (
            {"schedule__name": "wsd", "train__steps": 200, "schedule__decay_tokens": 60 * 2048},
            "would begin at step 140, and the batch is full from step 146 on; nearest: 110592",
            {"schedule__name": "wsd", "train__steps": 200, "schedule__decay_tokens": 110592},
        ),
    ],
)
def test_mistakes_are_one_line_with_the_nearest_good_value(given, message, good):
    with pytest.raises(BadInput) as error:
        made(*CASES[0], **given)
    assert message in str(error.value) and "\n" not in str(error.value)
    made(*CASES[0], **good)


def staged(text, **more):
    return made(None, 16, 8, 128, None, schedule__batch_stages=text, **more)


def test_a_batch_that_jumps_has_each_stages_size_from_its_step_on():
    """PaLM's 512, 1024 and 2048 sequences, an eighth of a thousandth as long."""
    config = staged("4; 50: 8; 115: 16", train__steps=255)
    static, steps, chosen = config_lib.static(config), np.arange(255), [2] * 50 + [4] * 65 + [8] * 140
    assert (
        batch_ramp.batch_ramp_steps(config) == (50, 50, 115, 115, 115, 115)
        and schedule_steps.full_batch_step(config) == 115
    )
    np.testing.assert_array_equal(
        batch_ramp.micro_batches_per_step(batch_ramp.batch_ramp_steps(config), 8, steps), chosen
    )
    traced = jax.jit(jax.vmap(lambda step: schedules.traced_micro_batches(static, step)))(jnp.asarray(steps, jnp.int32))
    np.testing.assert_array_equal(traced, chosen)
    assert [schedule_steps.tokens_before(config, step) for step in (0, 50, 115, 255)] == [0, 25_600, 92_160, 378_880]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4; 50", "'50' is not `step: sequences`"),
        ("4; x: 16", "'x: 16' is not `step: sequences`"),
        ("5; 50: 16", "5 is not a multiple of train.global_batch / train.accumulate = 2; nearest: 4"),
        ("4; 50: 8", "ends with 8 sequences; nearest: train.global_batch=16"),
        ("4; 50: 8; 50: 16", "must grow, and `50: 16` comes after `50: 8`"),
        ("8; 50: 4; 60: 16", "must grow, and `50: 4` comes after `0: 8`"),
        ("4; 2000: 16", "not full before step 2000 of train.steps=2000; nearest: 1999"),
    ],
)
def test_stages_that_cannot_be_are_one_line(text, message):
    with pytest.raises(BadInput) as error:
        staged(text)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_batch_grows_in_one_way():
    with pytest.raises(BadInput, match="give one of them"):
        made(*CASES[0], schedule__batch_stages="4; 50: 16")


def test_the_nearest_warmup_is_the_longest_that_fits():
    with pytest.raises(BadInput):
        made(*CASES[0][:4], 68097, train__steps=100)
