"""Forecasts against a family whose truth is known, their parts against closed forms."""

import dataclasses
import math

import numpy as np
import pytest

from scalelab.diagnose.watch import annealed, danger, family, forecast, rivals, worth
from scalelab.diagnose.watch.curve import read_curve
from scalelab.errors import BadInput
from scalelab.record import listing
from tests.diagnose.watch import families


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("family")
    families.write_family(folder)
    return [read_curve(place, ahead=False) for place in listing.run_folders(folder)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A run of another size and length, at half of its steps, and its true end."""
    place = tmp_path_factory.mktemp("one")
    truth = families.write_member(place, 20_000, 2_400, until=0.5)
    return read_curve(place), truth


def test_annealing_is_the_double_sum_of_tissue_et_al():
    lr = np.array([0.25, 0.5, 1.0, 1.0, 0.8, 0.5, 0.5, 0.2, 0.0])
    decay = math.exp(-1 / 3)
    falls = [0.0] * 3 + [lr[i - 1] - lr[i] for i in range(3, len(lr))]
    sums = [sum(falls[k] * decay ** (i - k) for i in range(s + 1) for k in range(i + 1)) for s in range(len(lr))]
    np.testing.assert_allclose(annealed.sum_annealing(lr, 3.0), (1 - decay) * np.array(sums), rtol=1e-12)


def test_the_own_curve_finds_the_constants_it_was_drawn_from():
    lr = np.concatenate([np.ones(700), np.linspace(1, 0, 300)])
    s1, s2 = np.cumsum(lr) / lr.sum(), annealed.sum_annealing(lr, 100.0)
    loss = 2.0 * (0.72 + 0.28 * s1**-0.3 - 0.12 * s2) * np.exp(0.002 * np.random.default_rng(0).standard_normal(1000))
    fit = annealed.fit_annealed(np.arange(1, 1001), loss, lr, 20)
    assert abs(fit.theta[0] - math.log(2)) < 0.01 and abs(fit.theta[3] - 0.12) < 0.01
    value, sd = fit.predict(1.0, float(s2[-1]))
    assert abs(value - math.log(2 * (1 - 0.12 * s2[-1]))) < 3 * sd < 0.01
    half = annealed.fit_annealed(np.arange(1, 501), loss[:500], lr, 20)  # the decay is not seen yet: its prior counts
    wide, spread = half.predict(1.0, float(s2[-1]))
    assert spread > 5 * sd and abs(wide - value) < 2 * spread


@pytest.mark.full
def test_of_left_out_members_of_a_family_nine_in_ten_end_inside(finished):
    inside, widths = [], {0.2: [], 0.9: []}
    for run in finished:
        siblings = family.choose_siblings(run, finished)
        assert len(siblings) == 15 and run not in siblings
        law = family.fit_family_law(siblings)
        for share, spread in widths.items():
            seen = run.until(round(share * run.n_steps))
            estimate = family.estimate_from_family(seen, siblings, law, "val_loss")
            low, high = estimate.interval(0.9)
            inside.append(low < run.val_loss < high)
            spread.append(math.log(high / low))
    assert 0.78 <= np.mean(inside) <= 1.0  # of 32: fewer than 25 have a probability of 2 % at 90 %
    assert np.median(widths[0.9]) < 0.06


def test_a_forecast_of_the_family_needs_no_decay_to_see_it_coming(finished, one):
    run, truth = one
    result = forecast.forecast_run(run, finished)
    assert result.method == "16 finished siblings and their law" and result.step == 1_200
    assert abs(result.val.mean - math.log(truth)) < 0.04 and abs(result.sigmas_off_law) < 3
    assert run.mean_log_loss(0.4, 0.5) - result.train.mean > 0.08  # the loss of the moment is far above
    by_choice = {row["choice"]: row for row in result.choices}
    assert by_choice["stop now"]["loss"] > by_choice["decay now"]["loss"] > by_choice["go on"]["loss"]
    assert [row["steps"] for row in result.choices] == [0, 514, 1_200]
    assert result.seconds_left == pytest.approx(1_200 * 512 / 1e4)


def test_a_run_above_its_law_is_seen_and_a_given_law_is_used(finished, one, tmp_path):
    run, truth = one
    worse = families.write_member(tmp_path / "worse", 20_000, 2_400, until=0.5, off=0.1)
    high = forecast.forecast_run(read_curve(tmp_path / "worse"), finished)
    assert high.sigmas_off_law > 5 and abs(high.val.mean - math.log(worse)) < 0.08
    alone = forecast.forecast_run(run)
    by_law = forecast.forecast_run(run, law=families.law_loss)
    assert (alone.method, by_law.method) == ("its own curve", "its own curve and the law")
    assert by_law.val.sd < alone.val.sd and abs(by_law.val.mean - math.log(truth)) < 2 * by_law.val.sd
    early = run.until(0)
    assert forecast.forecast_run(early, law=families.law_loss).method == "the law alone"
    with pytest.raises(BadInput, match=r"needs 5 .*--law=FILE"):
        forecast.forecast_run(early)


def test_runs_on_other_data_or_another_schedule_are_no_siblings(finished, one):
    run, _ = one
    assert len(family.choose_siblings(run, finished)) == 16
    foreign = [dataclasses.replace(other, family=("other",)) for other in finished]
    assert family.choose_siblings(run, foreign) == []
    flat = dataclasses.replace(run, lr=np.ones(2_400))
    assert family.choose_siblings(flat, finished) == []


def test_cost_needs_a_price(one):
    run, _ = one
    assert all(row["cost"] is None for row in forecast.forecast_run(run).choices)
    rows = forecast.forecast_run(run, price=36.0).choices
    assert rows[-1]["cost"] == pytest.approx(rows[-1]["steps"] * worth.seconds_a_step(run) / 100)


def test_every_sign_of_divergence_raises_the_chance(one):
    run, _ = one
    calm = danger.judge_danger(run)
    assert calm.chance < 0.05 and calm.signs == ()
    n = len(run.steps)
    late = np.arange(n) >= n - 32

    def changed(**signals):
        return danger.judge_danger(dataclasses.replace(run, signals={**run.signals, **signals}))

    signs = {
        "no_better": changed(train_loss=np.where(late, 6.0, run.losses)),
        "blown_up": changed(train_loss=np.where(np.arange(n) == n - 9, 2e3, run.losses)),
        "rising": changed(train_loss=np.where(late, 1.4 * run.losses, run.losses)),
        "climbing": changed(grad_norm=np.where(late, 3.0, 1.0)),
        "large_updates": changed(update_norm=np.full(n, 6.0)),
        "skips": danger.judge_danger(dataclasses.replace(run, events=[{"kind": "skip", "step": run.step}])),
        "alarms": danger.judge_danger(dataclasses.replace(run, events=[{"kind": "guard", "step": run.step}])),
    }
    words = ("uniform guess, ln V", "times that of a uniform", "loss rose", "gradient norm x 3.0", "updates of 20%",
             "1 steps", "1 alarm")  # fmt: skip
    assert set(signs) == set(danger.WEIGHTS)
    for (name, judged), text in zip(signs.items(), words, strict=True):
        assert text in judged.signs[0] and len(judged.signs) == 1
        odds = [math.log(each.chance / (1 - each.chance)) for each in (judged, calm)]
        assert odds[0] - odds[1] == pytest.approx(danger.WEIGHTS[name]) and danger.WEIGHTS[name] >= 0
    assert signs["blown_up"].chance > 0.8
    events = [{"kind": kind, "step": run.step} for kind in ("skip", "guard", "note")]
    noted = danger.judge_danger(dataclasses.replace(run, events=events))
    assert [sign[:7] for sign in noted.signs] == ["1 steps", "1 alarm"]
    expert = {"kind": "guard", "step": 9, "signal": "dead_expert", "text": "block 1, expert 3: no token; nothing done"}
    shown = danger.judge_danger(dataclasses.replace(run, events=[expert]))
    assert shown == (calm.chance, ("last alarm on experts: block 1, expert 3: no token",))
    dead = changed(train_loss=np.full(n, run.ceiling), grad_norm=np.zeros(n), update_norm=np.full(n, np.nan))
    assert len(dead.signs) == 1  # without a warning, which fails a test
    assert danger.judge_danger(dataclasses.replace(run, status="diverged")).chance == 1


def test_rivals_cost_as_much_and_the_best_of_them_counts(finished, one):
    run, truth = one
    twin = dataclasses.replace(finished[0], name="twin", flops=1.05 * run.flops, val_loss=truth / 1.2)
    dear = dataclasses.replace(finished[1], name="dear", flops=2 * run.flops, val_loss=1.0)
    assert rivals.find_rivals(run, [run, twin, dear]) == [twin]
    result = forecast.forecast_run(run, finished)
    assert rivals.p_worse_than_best(result, [], {}) is None
    assert rivals.p_worse_than_best(result, [twin], {}) > 0.99
    poor = dataclasses.replace(twin, val_loss=1.2 * truth)
    assert rivals.p_worse_than_best(result, [poor], {}) < 0.01
    assert rivals.p_worse_than_best(result, [poor, twin], {}) > 0.99
    running = dataclasses.replace(run, folder=run.folder / "other", name="other")
    assert rivals.p_worse_than_best(result, [running], {"other": result}) == pytest.approx(0.5)
