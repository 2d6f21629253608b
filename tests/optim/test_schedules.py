"""Schedules against closed forms, optax's own and the published points, and what must hold for any of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as some

from scalelab import config as config_lib
from scalelab import user_code
from scalelab.__main__ import main
from scalelab.config import key_records
from scalelab.config.checks import combinations
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.optim import schedules
from tests.quick import cross, one_in, others_slow
from tests.rounding import FP32

CONFIG = config_lib.resolve(base.get_config())
STATIC = config_lib.static(CONFIG)
NUMBERS = {
    "peak_lr": 0.2, "warmup_steps": 10, "steps": 100, "decay_steps": 20, "final_share": 0.1, "cycles": 1,
    "cycle_growth": 1, "hold_steps": 0, "fall_share": 1, "weight_decay": 0.1, "wd_final_share": 1,
    "beta1": 0.95, "beta1_start": 0.85, "beta1_steps": 0,
    "power_scale": 4.6, "power_exponent": -0.51,
}  # fmt: skip
GROUPS = dict.fromkeys(("peak_lr", "weight_decay", "beta1"), "optim") | {"steps": "train"}  # the rest: schedule
NAMES = key_records()["schedule.name"].choices
ONE = {"constant": "wsd"}  # the program that it is, where its decay has no step
ROUNDING = 8 * FP32 * 0.2  # eight operations in fp32, each rounded to 2^-24 of the peak
LENGTH = 130  # of every curve, so that each schedule compiles once


def hparams(name, changes):
    values = NUMBERS | changes | ({"decay_steps": 0} if name in ONE else {})
    return config_lib.group_hparams({f"{GROUPS.get(key, 'schedule')}.{key}": value for key, value in values.items()})


@functools.cache
def compiled(name, shape="linear", wd_shape="constant", **changes):
    static = dataclasses.replace(STATIC, schedule=ONE.get(name, name), decay_shape=shape, wd_shape=wd_shape, **changes)
    return jax.jit(jax.vmap(functools.partial(schedules.scheduled_values, static), in_axes=(0, None)))


def curves(name, shape="linear", wd_shape="constant", **changes):
    """lr, weight_decay and beta1 of steps 0 … LENGTH - 1, float64."""
    h = jax.tree.map(jnp.float32, hparams(name, changes))
    values = compiled(name, shape, wd_shape)(jnp.arange(LENGTH), h)
    return {key: np.asarray(value, np.float64) for key, value in values.items()}


def curve(name, shape="linear", **changes):
    return curves(name, shape, **changes)["lr"]


def test_every_choice_is_there_and_no_other():
    assert set(NAMES) == {*schedules.SCHEDULES, *combinations.DECAYING, *ONE}
    assert set(key_records()["schedule.decay_shape"].choices) == set(schedules.DECAYS)
    assert set(key_records()["schedule.wd_shape"].choices) == set(schedules.WEIGHT_DECAYS)


@pytest.mark.parametrize("name", NAMES)
def test_warmup_is_linear_from_its_first_step(name):
    """The first step already learns (LR / warm-up, not 0), and the last of the warm-up has the peak."""
    np.testing.assert_allclose(curve(name)[:10], 0.2 * np.arange(1, 11) / 10, rtol=1e-6)


def test_constant_is_the_peak_for_ever_and_the_program_of_what_is_planned_with_a_decay():
    assert set(curve("constant")[9:]) == {np.float64(np.float32(0.2))}
    trunk, planned = (config_lib.resolve(base.get_config()) for _ in range(2))
    trunk.schedule.name, planned.schedule.name = "constant", "wsd"
    assert config_lib.static(trunk) == config_lib.static(planned)
    given, decayed = (config_lib.flatten_hparams(config_lib.hparams(each)) for each in (trunk, planned))
    assert {key for key in given if given[key] != decayed[key]} == {"schedule.decay_steps"}
    assert given["schedule.decay_steps"] == 0


def test_linear_falls_evenly():
    lr = curve("linear")
    np.testing.assert_allclose(lr[10:101], np.linspace(0.2, 0.02, 91), rtol=1e-5)
    np.testing.assert_allclose(lr[100:], 0.02, rtol=1e-6)


def test_cosine_at_its_edges_and_middle():
    lr = curve("cosine")
    np.testing.assert_allclose(lr[[9, 10]], 0.2, rtol=1e-6)
    np.testing.assert_allclose(lr[55], 0.2 * (0.1 + 0.9 / 2), rtol=1e-6)
    np.testing.assert_allclose(lr[100:], 0.02, rtol=1e-6)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_fall_may_end_before_the_run_or_beyond_it(name):
    """GPT-3 stays at a tenth from 260 of 300 billion tokens on; OLMo 2 7B stops at 3.9 of a fall of 5 trillion."""
    whole, early, late = curve(name), curve(name, fall_share=0.7), curve(name, steps=50, fall_share=2)
    np.testing.assert_array_equal(early, curve(name, steps=70))
    np.testing.assert_array_equal(late, whole)
    assert early[69] > early[70] == early[-1] == pytest.approx(0.02) and late[50] > 0.1


def test_cosine_is_optax_of_the_same_step_after_warmup_and_of_the_next_within():
    """optax starts its warm-up at LR 0, which wastes the first batch; ours is one step ahead until the peak."""
    lr = curve("cosine")
    theirs = np.asarray(jax.vmap(optax.warmup_cosine_decay_schedule(0.0, 0.2, 10, 100, 0.02))(jnp.arange(LENGTH + 1)))
    np.testing.assert_allclose(lr[:10], theirs[1:11], rtol=1e-5)
    np.testing.assert_allclose(lr[10:], theirs[10:LENGTH], rtol=1e-5)


@pytest.mark.parametrize(("growth", "lengths"), one_in(3, [(1, [30, 30, 30]), (2, [10, 20, 40]), (1.5, [40, 60])]))
def test_restarts_are_optax_cosines_one_after_the_other(growth, lengths):
    """Loshchilov & Hutter 2017 with T_0 = the first length and T_mult = growth."""
    steps = sum(lengths)
    lr = curve("cosine_restarts", warmup_steps=0, steps=steps, cycles=len(lengths), cycle_growth=growth)
    theirs = np.concatenate([jax.vmap(optax.cosine_decay_schedule(0.2, n, 0.1))(jnp.arange(n)) for n in lengths])
    np.testing.assert_allclose(lr[:steps], theirs, rtol=2e-5)
    np.testing.assert_allclose(lr[steps:], 0.02, rtol=1e-5)
    for start in np.cumsum([0, *lengths[:-1]]):
        np.testing.assert_allclose(lr[start], 0.2, rtol=1e-6)


def test_restarts_fill_what_the_warmup_leaves_and_one_cycle_is_a_cosine():
    lr = curve("cosine_restarts", cycles=3)
    np.testing.assert_allclose(lr[[10, 40, 70]], 0.2, rtol=1e-6)
    np.testing.assert_allclose(lr[[25, 55, 85]], 0.2 * 0.55, rtol=1e-5)
    np.testing.assert_array_equal(curve("cosine_restarts"), curve("cosine"))


@pytest.mark.parametrize("name", ["cosine_restarts", "multi_step"])
def test_hparams_may_be_plain_numbers(name):
    h = config_lib.hparams(CONFIG)
    assert 0 < float(schedules.SCHEDULES[name](7, h)) <= h.optim.peak_lr * (1 + 1e-6)


def test_wsd_piece_by_piece():
    lr = curve("wsd", final_share=0.0)
    np.testing.assert_allclose(lr[9:81], 0.2, rtol=1e-6)
    np.testing.assert_allclose(lr[80:101], 0.2 * np.arange(20, -1, -1) / 20, atol=ROUNDING)
    assert (lr[100:] == 0).all()
    assert lr[99] > 0  # the last step of the run still learns


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_the_shapes_of_its_decay_are_those_of_haegele(final):
    done = np.arange(0, 21) / 20
    wanted = {"linear": 1 - done, "cosine": 0.5 * (1 + np.cos(np.pi * done)), "sqrt": 1 - np.sqrt(done)}
    for shape, height in wanted.items():
        lr = curve("wsd", shape, final_share=final)
        np.testing.assert_allclose(lr[80:101], 0.2 * (final + (1 - final) * height), atol=ROUNDING, err_msg=shape)
    # 1-sqrt at a quarter of the decay: half of the way
    np.testing.assert_allclose(curve("wsd", "sqrt", final_share=0)[85], 0.1, rtol=1e-6)


def test_wsd_without_a_decay_is_constant_to_the_last_step():
    np.testing.assert_array_equal(curve("wsd", decay_steps=0)[:100], curve("constant")[:100])


@pytest.mark.parametrize("final", [1e-3, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("shape", schedules.DECAYS)
def test_wsd_branches_share_their_trunk_to_the_last_bit(shape, final):
    """Hägele et al. 2024: a longer run is the same run until the shorter one's decay begins; so is a constant one."""
    short, long = (curve("wsd", shape, steps=n, decay_steps=10, final_share=final) for n in (50, 100))
    np.testing.assert_array_equal(short[:41], long[:41])
    np.testing.assert_array_equal(long[:91], curve("constant")[:91])
    assert short[41] < long[41]


def test_exponential_decay_halves_as_minicpms():
    """Hu et al. 2024, 4.2: LR = 0.5^(steps of the decay / T) x peak; over 20 steps with T = 5 that is 1/16 at the
    end."""
    lr = curve("wsd", "exponential", final_share=0.5 ** (20 / 5))
    np.testing.assert_allclose(lr[80:101], 0.2 * 0.5 ** (np.arange(21) / 5), rtol=1e-5)
    theirs = optax.exponential_decay(0.2, transition_steps=5, decay_rate=0.5, transition_begin=80)
    np.testing.assert_allclose(lr[9:101], jax.vmap(theirs)(jnp.arange(9, 101)), rtol=1e-5)


def test_inverse_decay_is_even_in_one_over_lr():
    """Wen et al. 2024: LR = 1 / (x / least + (1 - x) / peak), x from 0 to 1 over the decay."""
    x = np.arange(21) / 20
    lr = curve("wsd", "inverse", final_share=0.1)
    np.testing.assert_allclose(lr[80:101], 1 / (x / 0.02 + (1 - x) / 0.2), rtol=1e-5)


@pytest.mark.parametrize("shape", ["linear", "inverse"])
def test_wsd_s_is_a_wsd_of_each_of_its_lengths_and_begins_again_at_the_peak(shape):
    """Wen et al. 2024, WSD-S: one run decays at a quarter, at half and at its end; after a decay the LR is the peak's
    at once."""
    lr = curve("wsd_s", shape, cycles=3, cycle_growth=2)
    for start, end, decay in ((0, 25, 5), (25, 50, 10), (50, 130, 20)):
        alone = curve("wsd", shape, steps=min(end, 100), decay_steps=decay)
        np.testing.assert_allclose(lr[start:end], alone[start:end], rtol=1e-6)
    assert lr[24] < lr[25] == lr[9] and lr[49] < lr[50] == lr[9]
    np.testing.assert_allclose(curve("wsd_s", shape), curve("wsd", shape), rtol=1e-6)


def test_power_is_shens():
    """Shen et al. 2024: min(peak, batch a n^b) with n in tokens (b their -0.51, here steeper), a line before and a
    decay after it."""
    values = compiled("power", "linear", global_batch=8, accumulate=1)
    changes = {"peak_lr": 0.02, "power_exponent": -0.8, "final_share": 0.0}
    h = jax.tree.map(jnp.float32, hparams("power", changes))
    lr = np.asarray(values(jnp.arange(LENGTH), h)["lr"], np.float64)
    n = np.arange(1, LENGTH + 1) * 8 * CONFIG.model.seq_len
    wanted = np.minimum(0.02, 8 * 4.6 * n**-0.8)
    assert wanted[9] == 0.02 > wanted[70]  # both branches are seen
    np.testing.assert_allclose(lr[9:81], wanted[9:81], rtol=1e-5)
    np.testing.assert_allclose(lr[:10], wanted[9] * np.arange(1, 11) / 10, rtol=1e-5)
    np.testing.assert_allclose(lr[80:101], wanted[80] * np.arange(20, -1, -1) / 20, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"name": "wsd", "decay_shape": "inverse", "final_share": 0.0},
            "never gets to 0; nearest: schedule.final_share=0.01",
        ),
        ({"name": "power", "decay_shape": "exponential", "final_share": 0.0}, "never gets to 0"),
        ({"name": "wsd_s"}, "decays at least twice.*nearest: cycles=2, cycle_growth=2"),
        ({"name": "wsd_s", "cycles": 2}, "cycle_growth=1; nearest: cycles=2, cycle_growth=2"),
        ({"name": "power", "decay_steps": 501}, "longer than train.steps=500"),
    ],
    ids=str,
)
def test_what_a_decay_cannot_do_is_refused(changes, match):
    config = config_lib.override(base.get_config(), {f"schedule.{key}": value for key, value in changes.items()})
    with pytest.raises(BadInput, match=match):
        config_lib.resolve(config)


def test_multi_step_is_deepseeks():
    """DeepSeek LLM 2024, 2.3: 31.6 % of the maximum after 80 % of the tokens, 10 % after 90 %."""
    lr = curve("multi_step") / 0.2
    np.testing.assert_allclose(lr[9:80], 1, rtol=1e-6)
    np.testing.assert_allclose(lr[80:90], 0.316, rtol=1e-3)
    np.testing.assert_allclose(lr[90:], 0.1, rtol=1e-6)
    theirs = jax.vmap(optax.piecewise_constant_schedule(0.2, {80: 10**-0.5, 90: 10**-0.5}))(jnp.arange(LENGTH))
    np.testing.assert_allclose(lr[9:] * 0.2, theirs[9:], rtol=1e-6)


def test_inverse_sqrt_is_vaswanis_and_with_a_hold_t5s():
    """Vaswani et al. 2017, eq. 3: d^-0.5 min(n^-0.5, n W^-1.5), n from 1; scaled so that the top is the peak."""
    n, W = np.arange(1, LENGTH + 1), 10
    np.testing.assert_allclose(curve("inverse_sqrt"), 0.2 * W**0.5 * np.minimum(n**-0.5, n * W**-1.5), rtol=1e-6)
    held = curve("inverse_sqrt", warmup_steps=0, hold_steps=50, peak_lr=0.01)
    np.testing.assert_allclose(held, 0.01 * np.sqrt(50) / np.sqrt(np.maximum(n, 50)), rtol=1e-6)


def test_palm_is_within_reach():
    """PaLM, section 5: LR 1e-2 for 10k steps, then 1/sqrt(k); the decay of a step is LR^2."""
    values = curves("inverse_sqrt", wd_shape="lr2", peak_lr=1e-2, warmup_steps=0, hold_steps=100, weight_decay=1.0)
    np.testing.assert_allclose(values["weight_decay"] * values["lr"], values["lr"] ** 2, rtol=1e-6)
    np.testing.assert_allclose(values["lr"][[0, 99, 120]], [1e-2, 1e-2, 1e-2 * np.sqrt(100 / 121)], rtol=1e-6)


def test_weight_decay_stays_follows_or_is_independent():
    constant = curves("cosine")["weight_decay"]
    assert set(constant) == {np.float64(np.float32(0.1))}
    rising = curves("cosine", wd_shape="cosine", weight_decay=0.04, wd_final_share=10)["weight_decay"]
    # Caron et al. 2021, 0.04 to 0.4.
    np.testing.assert_allclose(rising[[0, 50, 100, 129]], [0.04, 0.22, 0.4, 0.4], rtol=1e-5)
    loose = curves("cosine", wd_shape="independent", weight_decay=1e-4)
    np.testing.assert_allclose(loose["weight_decay"] * loose["lr"], 1e-4 * loose["lr"] / 0.2, rtol=1e-6)
    still = curves("cosine", wd_shape="independent", peak_lr=0.0)
    assert (still["weight_decay"] * still["lr"] == 0).all()


def test_momentum_warms_up_as_muons_and_stays_exactly_itself_without():
    """Jordan 2024: frac = min(step / 300, 1); momentum = (1 - frac) * 0.85 + frac * 0.95. Here over 100 steps."""
    frac = np.minimum(np.arange(LENGTH) / 100, 1)
    np.testing.assert_allclose(curves("wsd", beta1_steps=100)["beta1"], (1 - frac) * 0.85 + frac * 0.95, rtol=1e-6)
    assert set(curves("wsd")["beta1"]) == {np.float64(np.float32(0.95))}


steps = some.integers(1, LENGTH)
share = some.floats(0, 1, width=32)


@pytest.mark.parametrize("name", one_in(3, NAMES))
@given(
    steps=steps, warmup=some.integers(0, LENGTH), decay=share, final=share, shape=some.sampled_from([*schedules.DECAYS])
)
def test_any_schedule_rises_then_falls_within_its_bounds(name, steps, warmup, decay, final, shape):
    warmup, decay = min(warmup, steps), round(decay * steps)
    apart = warmup <= steps - decay  # bends of two falls may make a dent where they meet; two lines don't
    shape = shape if name in ("wsd", "wsd_s") and apart else "linear"
    final = max(final, 0.01) if shape in ("exponential", "inverse") else final  # which never get to 0
    lr = curve(name, shape, steps=steps, warmup_steps=warmup, decay_steps=decay, final_share=final) / 0.2
    assert np.isfinite(lr).all()
    assert (lr >= -1e-6).all()
    assert (lr <= 1 + 1e-6).all()
    assert (lr[:steps] > 0).all()
    top = int(np.argmax(lr))
    assert (np.diff(lr[: top + 1]) >= -1e-6).all()
    if name != "multi_step" or warmup <= 0.8 * steps:
        assert (np.diff(lr[top:]) <= 1e-6).all()
    if warmup < steps and (name in ("linear", "cosine", "cosine_restarts") or (name in ("wsd", "wsd_s") and decay)):
        np.testing.assert_allclose(lr[steps:], final, atol=1e-5)
    if name not in combinations.DECAYING or (apart and name != "power"):
        assert lr.max() > 1 - 1e-5 or warmup == steps or name == "multi_step"


def goes_with(name, wd_shape):
    """The first shape of weight decay with the schedules of `make test`, and each schedule with another one in turn."""
    first, *others = schedules.WEIGHT_DECAYS
    return wd_shape == (first if name in NAMES[::3] else "") or wd_shape == others[NAMES.index(name) % 3]


@pytest.mark.parametrize(
    ("name", "wd_shape"), others_slow(goes_with, cross(one_in(3, NAMES), one_in(4, schedules.WEIGHT_DECAYS)))
)
def test_one_compile_serves_all_and_packs_under_vmap(name, wd_shape):
    function = compiled(name, "linear", wd_shape)
    trials = [
        {"peak_lr": 1.0, "steps": 77, "warmup_steps": 3, "decay_steps": 40, "final_share": 0.0, "cycles": 2},
        {"peak_lr": 2.0, "steps": 50, "warmup_steps": 0, "cycles": 4, "cycle_growth": 2, "beta1_steps": 30},
        {"weight_decay": 0.0, "hold_steps": 60, "wd_final_share": 3},
    ]
    alone = [curves(name, wd_shape=wd_shape, **trial) for trial in trials]
    assert function._cache_size() == 1
    stacked = jax.tree.map(lambda *values: jnp.float32(values), *(hparams(name, trial) for trial in trials))
    packed = jax.vmap(function, in_axes=(None, 0))(jnp.arange(LENGTH), stacked)
    for i, one in enumerate(alone):
        for key, value in one.items():
            np.testing.assert_allclose(packed[key][i], value, rtol=1e-6, atol=1e-9)


def test_a_users_own_schedule_is_asked_and_one_that_gives_no_number_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_curves.py").write_text(
        "from scalelab.optim.schedules import warmup_factor\n"
        "def half(step, h): return 0.5 * h.optim.peak_lr * warmup_factor(step, h)\n"
        "def pair(step, h): return [1.0, 2.0]\n"
    )
    user_code.trust_names("own_curves:half", "own_curves:pair")
    np.testing.assert_allclose(curve("own_curves:half"), curve("constant") / 2, rtol=1e-6)
    with pytest.raises(BadInput, match=r"'own_curves:pair' gave an array of shape \(2,\)"):
        curve("own_curves:pair")


def test_a_config_s_curves_are_the_steps_of_its_run():
    values = schedules.schedule_curves(CONFIG, [0, 24, 499])
    np.testing.assert_allclose(
        values["lr"], [3e-3 / 25, 3e-3, 3e-3 * (0.1 + 0.9 * 0.5 * (1 - np.cos(np.pi / 475)))], rtol=1e-5
    )
    assert values["beta1"].tolist() == [np.float32(0.9)] * 3


def by_root(step, h):
    """What people write: peak / sqrt(step), infinite at step 0."""
    return h.optim.peak_lr / jnp.sqrt(step)


def falls_below(step, h):
    return h.optim.peak_lr * (1 - step / 64)  # exact in floating point: 0 at step 64


def not_a_number_late(step, h):
    return jnp.where(step == 99, jnp.nan, h.optim.peak_lr)


BAD = {
    by_root: "lr at step 0 is inf, and invalid at 1 of 100 steps",
    falls_below: "lr at step 65 is -",
    not_a_number_late: "lr at step 99 is nan",
}


@pytest.mark.parametrize("function", one_in(3, BAD), ids=lambda f: f.__name__)
def test_an_own_schedule_that_is_bad_at_any_step_is_refused_and_no_folder_made(tmp_path, capsys, function):
    given = [f"--config.schedule.name={__name__}:{function.__name__}", "--config.train.steps=100"]
    folder = tmp_path / "run"
    assert main(["train", "--config=configs/tiny.py", f"--workdir={folder}", *given]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("scalelab: ")]
    assert len(lines) == 1 and BAD[function] in lines[0], lines
    assert not folder.exists() or not (folder / "config.json").exists()


def test_bad_steps_are_seen_past_those_that_are_worked_out_together(monkeypatch):
    monkeypatch.setattr(schedules, "MAX_STEPS_AT_ONCE", 32)
    changes = {"schedule.name": f"{__name__}:not_a_number_late", "train.steps": 100}
    with pytest.raises(BadInput, match="lr at step 99 is nan, and invalid at 1 of 100"):
        schedules.check_user_schedule(config_lib.resolve(config_lib.override(base.get_config(), changes)))
    good = changes | {"schedule.name": f"{__name__}:peak"}
    schedules.check_user_schedule(config_lib.resolve(config_lib.override(base.get_config(), good)))


def peak(step, h):
    return h.optim.peak_lr
