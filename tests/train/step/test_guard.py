"""The guard's decision in the step: against rules written out in numpy, and that it changes no bit unless it acts."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import Guard, group_hparams
from scalelab.configs import tiny
from scalelab.optim import schedules
from scalelab.train.run.feed import DataShift
from scalelab.train.step import guard, incident
from scalelab.train.step import state as state_lib
from scalelab.train.step.step import train_step
from tests.train.step.test_step import batches, init, setting, steps, trained

N = 700
FP16 = {"guard.policy": "skip", "train.ema": 0.9, "precision.name": "fp16"}
UNIFORM = float(np.log(256))


def healthy_series(n=N, seed=0):
    """Losses that fall from 5.5 towards 3 with 1 % of noise, and gradient norms with 9 %."""
    random = np.random.default_rng(seed)
    steps = np.arange(n)
    losses = (3.0 + 2.5 * np.exp(-steps / 30)) * np.exp(0.01 * random.standard_normal(n))
    return losses, np.exp(0.09 * random.standard_normal(n))


def planted_series():
    """The healthy series with outliers of many sizes, alone and close together."""
    losses, norms = healthy_series()
    random = np.random.default_rng(1)
    for at in [70, 71, 130, *random.integers(140, N, 25)]:
        losses[at] *= random.choice([1.05, 1.2, 2.0])
    for at in [90, *random.integers(140, N, 25)]:
        norms[at] *= random.choice([1.5, 4.0, 50.0])
    return losses, norms


@functools.cache
def run(rule):
    """A jitted scan of decide and remember over a series: (memory, decisions, reports)."""
    h = group_hparams({"guard.sigmas": jnp.float32(6), "guard.minimum": jnp.float32(64)})

    def body(memory, row):
        step, loss, norm, ratio, restarted = row
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        signals = guard.Signals(step, loss, norm, finite)
        decision = guard.decide(rule, memory, signals, False, restarted > 0, h)
        memory, report = incident.remember(rule, memory, signals, decision, ratio, UNIFORM)
        return memory, (decision, report)

    def whole(memory, first, losses, norms, ratios, restarts):
        rows = first + jnp.arange(len(losses)), losses, norms, ratios, restarts
        memory, (decisions, reports) = jax.lax.scan(body, memory, rows)
        return memory, decisions, reports

    return jax.jit(whole)


def decided(rule, losses, norms, memory=None, first=0, ratios=None, restarts=None):
    n = len(losses)
    zeros = np.zeros(n)
    arrays = [np.float32(zeros if x is None else x) for x in (losses, norms, ratios, restarts)]
    memory = guard.init_guard(rule) if memory is None else memory
    memory, decisions, reports = jax.device_get(run(rule)(memory, jnp.int32(first), *arrays))
    return memory, decisions, incident.Report(*reports.T)


def sigma_rule(losses, norms, window=128, minimum=64, k=6.0):
    """OLMo-core's rule in float64: skip where loss or norm exceeds mean + k sample std of up to `window` values before.

    It starts as soon as `minimum` values, the one at hand included, are there; all values enter the window.
    """
    skips = []
    for i in range(len(losses)):
        past = [np.float64(x[max(0, i - window) : i]) for x in (losses, norms)]
        over = [
            x[i] - p.mean() > k * p.std(ddof=1) if i + 1 >= minimum else False
            for x, p in zip((losses, norms), past, strict=True)
        ]
        skips.append(any(over))
    return np.array(skips)


def level_and_noise(past, last=32):
    """The mean of the newest `last` rows, their noise (memory.py), and the share of it that the level may be off."""
    newest = past[-last:]
    lines = [_left_by_line(each) for each in (newest, past[-2 * last : -last]) if len(each) > 4]
    by_steps = np.sum(np.diff(past, axis=0) ** 2, axis=0) / (2 * (len(past) - 1))
    return newest.mean(0), np.sqrt(np.maximum(1.5 * np.min(lines, axis=0), by_steps)), 3 / np.sqrt(len(newest))


def _left_by_line(rows):
    x = np.arange(len(rows))
    return [np.sum((y - np.polyval(np.polyfit(x, y, 1), x)) ** 2) / (len(x) - 2) for y in rows.T]


def log_rule(losses, norms, window=128, minimum=64, k=6.0):
    """The rule `log` in float64: flagged values never enter the window."""
    kept, flags, limit = [], [], np.inf
    for i, (x, g) in enumerate(zip(np.log(losses), np.log(norms), strict=True)):
        past = np.array(kept[-window:])
        flag = (i < 64 or len(kept) < minimum) and losses[i] > limit + max(1, 0.1 * limit)
        if len(kept) >= minimum:
            (level, level_g), (noise, noise_g), error = level_and_noise(past)
            flag |= x - level > max((k + error) * noise, 0.02)
            flag |= g - level_g > (k + error) * noise_g and g > np.log(3) + past[:, 1].max()
        flags.append(flag)
        limit = min(limit, max(losses[i], UNIFORM))
        kept += [] if flag else [(x, g)]
    return np.array(flags)


@pytest.mark.parametrize(("detector", "rule"), [("sigma", sigma_rule), ("log", log_rule)])
def test_decisions_equal_the_rule_step_by_step(detector, rule):
    losses, norms = planted_series()
    expected = rule(losses, norms)
    _, decisions, _ = decided(Guard("skip", detector), losses, norms)
    np.testing.assert_array_equal(decisions.signal != 0, expected)
    learnt = decisions.action == guard.ACTIONS.index("clip")  # those that come again and again
    np.testing.assert_array_equal(~decisions.accepted | learnt, expected)
    assert 15 < expected.sum() < 60 and learnt.any() == (detector == "log")


def test_a_nan_does_not_blind_the_guard():
    """One NaN in OLMo-core's window: every comparison is false, and the next 128 steps are skipped."""
    losses, norms = healthy_series()
    for bad in (np.nan, np.inf):
        losses[300], norms[310], losses[320] = bad, bad, 9.0
        for detector in ("log", "sigma"):
            memory, decisions, _ = decided(Guard("skip", detector), losses, norms)
            np.testing.assert_array_equal(np.flatnonzero(~decisions.accepted), [300, 310, 320])
            np.testing.assert_array_equal(decisions.signal[[300, 310, 320]], [guard.BAD, guard.BAD, guard.LOSS])
            assert np.isfinite(memory.window).all()


def test_healthy_series_are_never_flagged_and_a_spike_of_either_kind_is():
    for seed in range(3):
        losses, norms = healthy_series(seed=seed)
        assert not decided(Guard("watch"), losses, norms)[1].signal.any()
    losses[200] *= 1.3
    norms[400] *= 4.5
    _, decisions, reports = decided(Guard("watch"), losses, norms)
    np.testing.assert_array_equal(np.flatnonzero(decisions.signal), [200, 400])
    np.testing.assert_array_equal(decisions.signal[[200, 400]], [guard.LOSS, guard.NORM])
    np.testing.assert_allclose(reports.value[[200, 400]], [losses[200], norms[400]], rtol=1e-6)
    assert decisions.accepted.all() and not decisions.action.any()  # watch only looks
    assert reports.score[-1] == np.float32(2 / N)
    shapes = {int(i): incident.SHAPES[int(k)] for i, k in enumerate(reports.shape) if k}
    assert list(shapes.values()) == ["benign", "benign"] and 200 < min(shapes) <= 232
    losses, norms = healthy_series()
    norms[300] *= 2.5  # beyond 6 sigma, within 3 x the largest: OLMo-core flags it
    signals = [decided(Guard("skip", detector), losses, norms)[1].signal[300] for detector in ("log", "sigma")]
    assert signals == [0, guard.NORM]


@pytest.mark.full
def test_early_signs():
    losses, norms = healthy_series(64)
    losses[10:12] = losses[0] + 1.5
    ratios = np.full(64, 0.05)
    ratios[20:30] = 0.2
    memory, decisions, reports = decided(Guard("skip"), losses, norms, ratios=ratios)
    np.testing.assert_array_equal(np.flatnonzero(decisions.signal), [10, 11])
    assert decisions.signal[10] == guard.EARLY and not decisions.accepted[10:12].any() and decisions.accepted[12:].all()
    assert memory.lr_factor == memory.clip_factor == pytest.approx(0.7**2)
    np.testing.assert_array_equal(np.flatnonzero(reports.signal), [10, 11, 27])
    assert reports.signal[27] == guard.LARGE_UPDATES
    for rule in (Guard("watch"), Guard("skip", "sigma")):
        memory, decisions, _ = decided(rule, losses, norms)
        assert decisions.signal[10] == guard.EARLY and decisions.accepted.all() and memory.lr_factor == 1


def test_large_first_losses_are_no_early_sign_and_a_rise_from_below_them_is():
    losses, norms = healthy_series(64)
    large = np.concatenate([40 + np.array([0, 3, -1, 2, 1]), 30 * 0.8 ** np.arange(10), losses[15:]])
    assert not decided(Guard("skip"), large, norms)[1].signal.any()
    large[40] = 9.0  # far below the first loss, and above a uniform guess
    assert np.flatnonzero(decided(Guard("skip"), large, norms)[1].signal).tolist() == [40]
    large[40:] = 1e5
    memory, _, _ = decided(Guard("skip"), large, norms)
    assert 0.02 < memory.lr_factor <= guard.SLOWEST


def test_a_known_change_begins_a_new_window():
    losses, norms = healthy_series()
    losses[300:] *= 1.5
    changes = np.zeros(N)
    changes[300] = 1
    assert decided(Guard("watch"), losses, norms)[1].signal[300] == guard.LOSS
    memory, decisions, _ = decided(Guard("watch"), losses, norms, restarts=changes)
    assert not decisions.signal.any() and guard.Counts(*memory.counts).base_step == 300


def test_the_shape_of_an_incident():
    def shapes(losses):
        _, decisions, reports = decided(Guard("watch"), losses, norms)
        return [incident.SHAPES[int(k)] for k in reports.shape if k], decisions

    healthy, norms = healthy_series()
    losses = healthy.copy()
    losses[300:320] *= 1.3
    assert shapes(losses)[0] == ["benign"]
    losses[300:400] *= 1.3
    assert shapes(losses)[0] == ["slow"]
    losses[300:] *= 1.3 * np.exp(0.003 * np.arange(N - 300))
    names, decisions = shapes(losses)
    assert "persistent" in names and "new_level" not in names
    assert decisions.signal[300:].all()  # a rise never becomes the baseline
    losses = healthy.copy()
    for at, factor in ((300, 1.2), (306, 1.3), (312, 1.5)):
        losses[at : at + 4] *= factor
    assert shapes(losses)[0] == ["growing", "benign"]
    losses = healthy.copy()
    losses[300:] = 7.0
    assert shapes(losses)[0] == ["diverged", "persistent"]


@pytest.mark.parametrize("policy", ["watch", "skip"])
def test_data_that_get_harder_for_good_are_a_new_level(policy):
    """After 128 steps: the window is filled anew, by then without an incident, and what follows is judged by it."""
    losses, norms = healthy_series()
    losses[300:] *= 1.3
    norms[300:] *= 1.5
    losses[600] *= 1.3
    memory, decisions, reports = decided(Guard(policy), losses, norms)
    shapes = {int(i): incident.SHAPES[int(k)] for i, k in enumerate(reports.shape) if k}
    (at,) = [i for i, name in shapes.items() if name == "new_level"]
    assert 428 <= at < 450 and list(shapes.values()) == ["new_level", "benign"]
    assert decisions.signal[300 : at + 1].all() and np.flatnonzero(decisions.signal[at + 1 :]).tolist() == [599 - at]
    counts, marks = guard.Counts(*memory.counts), guard.Marks(*memory.marks)
    assert counts.base_step == at + 1 and np.exp(marks.best) == pytest.approx(3.9, rel=0.05)


def test_what_no_new_level_is():
    """A loss that falls back slowly, one above that of a uniform guess, and a model whose gradients have gone."""
    losses, norms = healthy_series()
    falls, high, dead = losses.copy(), losses.copy(), losses.copy()
    falls[300:] *= 1 + 0.5 * np.exp(-np.arange(N - 300) / 60)
    high[300:] *= 1.9
    dead[300:] *= 1.3
    gone = np.where(np.arange(N) < 300, norms, norms / 30)
    for series, gradients in ((falls, norms), (high, norms), (dead, gone)):
        _, _, reports = decided(Guard("watch"), series, gradients)
        assert not (reports.shape == incident.NEW_LEVEL).any(), np.flatnonzero(reports.shape)


def test_the_early_descent_hides_no_rise():
    """6 standard deviations about the mean of the window were 4.8 nats at a loss of 2.6."""
    losses, norms = healthy_series()
    for at in (70, 100, 150, 199):
        spike = losses.copy()
        spike[at] *= 1.35
        assert np.flatnonzero(decided(Guard("watch"), spike, norms)[1].signal).tolist() == [at]
    climb = losses.copy()
    climb[80:] *= np.minimum(1.06 ** np.arange(N - 80), 3.5)  # from 3.2 to 11 nats
    assert np.flatnonzero(decided(Guard("watch"), climb, norms)[1].signal)[0] <= 95


def test_a_rare_source_is_learnt_from_and_a_lone_outlier_is_not():
    losses, norms = healthy_series(2000)
    rare = np.arange(200, 2000, 60)
    losses[rare] *= 1.5
    losses[1900], losses[rare[10]] = 9.0, 9.0
    _, decisions, _ = decided(Guard("skip"), losses, norms)
    skipped, clipped = (np.flatnonzero(decisions.action == guard.ACTIONS.index(name)) for name in ("skip", "clip"))
    assert skipped.tolist() == [*rare[:3], rare[10]]  # three of the like; one that is twice as high
    assert set(clipped) == {*rare, 1900} - {*skipped} and np.isfinite(decisions.clip[clipped]).all()


def test_the_budget_of_skips_is_bounded_and_the_spike_stays_a_spike():
    losses, norms = healthy_series()
    losses[300:] *= 1.3
    _, decisions, _ = decided(Guard("skip"), losses, norms)
    assert decisions.signal[300:428].all()  # until it is a new level
    assert not decisions.accepted[300:311].any() and decisions.accepted[316:].all()


def test_clip_holds_a_spike_to_the_median_norm():
    losses, norms = healthy_series()
    norms[[200, 300]] *= 40
    _, decisions, _ = decided(Guard("skip", spike="clip"), losses, norms)
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(decisions.clip)), [200, 300])
    assert decisions.accepted.all() and decisions.action[200] == guard.ACTIONS.index("clip")
    np.testing.assert_allclose(decisions.clip[300], np.median(np.delete(norms[171:300], 29)), rtol=0.02)


@pytest.mark.full
def test_the_memory_goes_on_to_the_bit_and_trials_under_vmap_decide_alone():
    losses, norms = planted_series()
    rule = Guard("skip")
    whole, decisions, _ = decided(rule, losses, norms)
    half, first, _ = decided(rule, losses[:333], norms[:333])
    rest, second, _ = decided(rule, losses[333:], norms[333:], half, 333)
    jax.tree.map(np.testing.assert_array_equal, rest, whole)
    np.testing.assert_array_equal(np.concatenate([first.accepted, second.accepted]), decisions.accepted)
    calm = healthy_series(seed=5)
    pairs = [np.float32(pair) for pair in zip((losses, norms), calm, strict=True)]
    zeros, memories = np.zeros((2, N), np.float32), jax.tree.map(lambda x: jnp.stack([x, x]), guard.init_guard(rule))
    both, packed, _ = jax.jit(jax.vmap(run(rule), in_axes=(0, None, 0, 0, 0, 0)))(
        memories, jnp.int32(0), *pairs, zeros, zeros
    )
    np.testing.assert_array_equal(packed.accepted, [decisions.accepted, np.ones(N, bool)])
    np.testing.assert_array_equal(both.counts[0], whole.counts)


def stepped(policy, memory=None, **changes):
    """The trained state of test_step and the state two steps on, under this guard and from this memory."""
    static, h = setting(**{"guard.policy": policy, **changes})
    before = trained()[0]
    before = before._replace(guard=guard.init_guard(static.guard) if memory is None else memory)
    after, log = steps(static, before, batches(seed=3), jnp.int32(2), h)  # of as many batches as test_step's programs
    return before, after, {name: values[:2] for name, values in log.items()}


@functools.cache
def outlier_memory():
    """The memory after 128 losses of about 1 nat and norms of about 1: the next loss, some 3 nats, is an outlier."""
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal((2, 128)))
    return jax.tree.map(jnp.asarray, decided(Guard("skip"), *noise)[0])


@pytest.mark.full
def test_a_guard_that_sees_nothing_changes_no_bit_and_a_skip_moves_none():
    off, watch, skip = (stepped(policy)[1] for policy in ("off", "watch", "skip"))
    assert off.guard == ()
    for state in (watch, skip):
        jax.tree.map(np.testing.assert_array_equal, state._replace(guard=()), off)
    before, after, log = stepped("watch", outlier_memory())
    jax.tree.map(np.testing.assert_array_equal, after._replace(guard=()), off)
    reports = incident.Report(*log[guard.GUARD].T)
    assert list(reports.signal) == [guard.LOSS] * 2 and not reports.action.any()
    before, after, log = stepped("skip", outlier_memory())
    assert list(incident.Report(*log[guard.GUARD].T).action) == [1, 1] and (after.skipped, after.streak) == (2, 2)
    for name in ("params", "opt_state", "ema", "precision"):
        jax.tree.map(np.testing.assert_array_equal, getattr(after, name), getattr(before, name))
    assert after.step == before.step + 2 and guard.Counts(*after.guard.counts).entered == 128


@pytest.mark.slow
def test_a_skip_moves_no_average_and_no_history_of_the_precision_either():
    static, h = setting(**FP16)
    for memory, moves in ((guard.init_guard(static.guard), True), (outlier_memory(), False)):
        before = init(static, h)._replace(guard=memory)
        after, log = steps(static, before, batches(2), jnp.int32(2), h)
        for name in ("params", "opt_state", "ema", "precision"):
            leaves = [jax.tree.leaves(getattr(state, name)) for state in (before, after)]
            assert any((a != b).any() for a, b in zip(*leaves, strict=True)) == moves, name
        assert log["skipped"][-1] == (0 if moves else 2)


@pytest.mark.slow
def test_an_overflow_of_fp16_is_not_an_alarm():
    static, h = setting(**FP16)
    start = init(static, h)
    huge = start._replace(precision=start.precision._replace(scale=jnp.float32(2.0**60)))
    after, log = steps(static, huge, batches(2), jnp.int32(2), h)
    counts = guard.Counts(*after.guard.counts)
    assert (log["skipped"][-1], counts.overflows, counts.flagged) == (2, 2, 0)


def test_factors_shift_and_warm_up_of_the_memory():
    counts = guard.Counts(rewarm_from=4)  # the trained state is at step 4
    jumps = jnp.array([[5, 300], [90, 2], [-1, -1], [-1, -1]], jnp.int32)
    memory = guard.init_guard(Guard("watch"))._replace(
        counts=jnp.array(counts, jnp.int32), jumps=jumps, lr_factor=jnp.float32(0.7), clip_factor=jnp.float32(0.5)
    )
    plain, changed = stepped("watch"), stepped("watch", memory)
    np.testing.assert_allclose(changed[2]["lr"], plain[2]["lr"] * 0.7 * np.array([1, 2]) / 150, rtol=1e-6)
    shift = DataShift.of(changed[1].guard)
    assert [shift.number(step) for step in (4, 5, 89, 90)] == [4, 305, 389, 392]
    assert shift.settle(6) == DataShift(300, ((90, 2),)) and shift.settle(6).number(90) == 392


def test_jumps_of_the_lr_the_batch_and_the_mixture_are_known_changes():
    def changes(n=60, **options):
        static, h = setting(**options)
        lr = schedules.make_schedule(static)
        rates = [lr(jnp.int32(s), h) for s in range(n)]
        before = [jnp.float32(jnp.inf), *rates]
        return [s for s in range(n) if guard.is_known_change(static, jnp.int32(s), before[s], rates[s])]

    assert changes() == []
    assert changes(**{"schedule.name": "cosine_restarts", "schedule.cycles": 2}) == [27]
    assert changes(**{"train.accumulate": 4, "schedule.batch_stages": "2; 30: 8"}) == [30]


def count_operations(policy):
    """Operations of the lowered step of configs/tiny, constants and calls left out."""
    static = config_lib.static(config_lib.resolve(config_lib.override(tiny.get_config(), {"guard.policy": policy})))
    h = config_lib.hparams(config_lib.resolve(tiny.get_config()))
    state = jax.eval_shape(functools.partial(state_lib.init_state, static), jax.tree.map(jnp.float32, h))
    tokens = jax.ShapeDtypeStruct((static.global_batch, static.model.seq_len + 1), jnp.int32)
    lowered = jax.jit(functools.partial(train_step, static)).lower(state, tokens, jax.tree.map(jnp.float32, h))
    return len(re.findall(r"(?:stablehlo|chlo)\.(?!constant|return)\w+", lowered.as_text()))


@pytest.mark.full
def test_the_guard_adds_few_operations_to_the_step():
    """It added 20 %; a step's seconds are noise beside that."""
    off, watch = count_operations("off"), count_operations("watch")
    assert off < watch <= 1.15 * off, watch / off
