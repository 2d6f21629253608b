"""Dynamic loss scaling against the published rule, in the step, over a resume, and packed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import override, replace_hparams
from scalelab.configs import tiny
from scalelab.precision import loss_scale
from scalelab.precision.loss_scale import LossScale
from scalelab.record import records
from scalelab.train.resume import start as lineage
from scalelab.train.single import train_single
from scalelab.train.step import state as state_lib
from scalelab.train.step.program import PACKINGS
from tests.quick import one_in
from tests.train.resume.test_compatibility import SMALL
from tests.train.step.test_step import assert_same, batches, setting

update = jax.jit(loss_scale.update_loss_scale)
FP16 = {"precision.name": "fp16"}


def published(finite: list[bool]) -> list[tuple[float, int]]:
    """torch.amp.GradScaler's documentation and Micikevicius et al. 2018, section 3.2, as bookkeeping in Python."""
    scale, successes, trace = 2.0**16, 0, []
    for ok in finite:
        if ok:
            successes += 1
            if successes == 2000:
                successes = 0
                scale = scale * 2 if scale * 2 <= 3.4028234663852886e38 else scale
        else:
            scale, successes = scale / 2, 0
        trace.append((scale, successes))
    return trace


@jax.jit
def follow(finite):
    """The states after each step of so many."""

    def step(state, ok):
        new = loss_scale.update_loss_scale(state, ok)
        return new, new

    return jax.lax.scan(step, loss_scale.init_loss_scale(), finite)[1]


@pytest.mark.parametrize(
    "bad", one_in(3, [{5}, {1999}, {2000}, {2001}, {0, 1, 2, 1500, 3499, 3500, 5500}, set()]), ids=str
)
def test_every_step_follows_the_published_rule(bad):
    finite = [i not in bad for i in range(6200)]
    result = follow(jnp.array(finite))
    expected = published(finite)
    np.testing.assert_array_equal(result.scale, np.float32([scale for scale, _ in expected]))
    np.testing.assert_array_equal(result.good, [good for _, good in expected])


def test_the_scale_never_grows_to_infinity_and_shrinks_exactly():
    top = LossScale(jnp.float32(2.0**127), jnp.int32(1999))
    assert tuple(map(float, update(top, True))) == (2.0**127, 0)
    assert float(update(top, False).scale) == 2.0**126


@functools.cache
def program():
    program_static, h = setting(**FP16)
    return program_static, h, PACKINGS["turn"](program_static, [h])


def advance(states, tokens, n=None):
    _, _, run = program()
    return run.advance(states, [np.asarray(tokens)], n or len(tokens))


@pytest.mark.full
def test_a_step_that_overflows_is_skipped_halves_the_scale_and_is_counted():
    _, _, run = program()
    (start,) = run.separate(run.init())
    assert start.precision == LossScale(65536, 0)
    # Where the scale is so large that gradients overflow in fp16, every step is skipped until it fits.
    huge = start._replace(precision=LossScale(jnp.float32(2.0**30), jnp.int32(7)))
    before = jax.device_get((huge.params, huge.opt_state))
    (after,), (log,) = advance([jax.tree.map(jnp.copy, huge)], batches(1).repeat(4, axis=0), 1)
    assert_same(jax.device_get((after.params, after.opt_state)), before)
    assert (after.precision.scale, after.precision.good, after.skipped, after.step) == (2.0**29, 0, 1, 1)
    assert log["loss_scale"][0] == 2.0**30  # of this step, not of the next
    assert np.isfinite(log["train_loss"][0]) and not np.isfinite(log["grad_norm"][0])
    states = [after]
    for _ in range(8):  # until the scale fits, and whenever it no longer does
        states, (log,) = advance(states, batches(4))
    (state,) = states
    assert 9 <= state.skipped < 20 and state.precision.good <= 33 - state.skipped
    assert state.precision.scale == 2.0 ** (30 - int(state.skipped))


@pytest.mark.slow
def test_packed_trials_keep_their_own_scales():
    program_static, h, _ = program()
    packed = PACKINGS["vmap"](program_static, [h, replace_hparams(h, {"train.seed": 1}), h])
    states = packed.separate(packed.init())
    scales = [2.0**30, 2.0**16, 2.0**12]
    states = [s._replace(precision=LossScale(np.float32(x), np.int32(0))) for s, x in zip(states, scales, strict=True)]
    tokens = np.asarray(batches(4))
    states, logs = packed.advance(packed.join(states), [tokens] * 3, 4)
    result = packed.separate(states)
    assert [float(s.precision.scale) for s in result[1:]] == scales[1:] and result[0].precision.scale < scales[0]
    assert [int(s.skipped) for s in result[1:]] == [0, 0] and result[0].skipped > 0
    assert [log["loss_scale"][0] for log in logs] == scales


def test_a_run_logs_its_scale_names_its_formats_and_resumes_bit_for_bit(tmp_path):
    config = config_lib.resolve(override(tiny.get_config(), SMALL | FP16 | {"train.steps": 6}))
    whole = train_single(config, tmp_path / "run")
    lines = [line for line in records.read_metrics(tmp_path / "run") if "train_loss" in line]
    assert [line["loss_scale"] for line in lines] == [65536.0] * 6
    dtypes = records.read_json(tmp_path / "run" / "record.json")["dtypes"]
    assert "float16" in dtypes["compute"] and dtypes["parameters"] == ["float32"]
    assert train_single(config, tmp_path / "cut", stop=lambda: True)["final_step"] == 2
    again = train_single(config, tmp_path / "cut")
    assert again["resumed_from"] == 2 and again["params_digest"] == whole["params_digest"]
    checkpoints, name = lineage.find_last_checkpoint(tmp_path / "cut")
    (state,) = checkpoints.load({name: state_lib.state_shapes(config_lib.static(config))}).states.values()
    assert (state.precision.scale, state.precision.good) == (65536, 6)  # counted on over the resume
