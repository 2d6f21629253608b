"""Intervals of comparisons: scipy's own tests, closed forms, and simulations whose truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from scalelab.experiments import intervals
from scalelab.experiments.intervals import FinalsRecord


def by_seed(values, first=1):
    return dict(enumerate(values, first))


def test_the_issues_own_five_seeds_of_sgd_show_a_difference():
    """Sgd at +.122 was "no difference shown", as it is within twice the seeds' spread; five seeds each say p = .011."""
    adamw = [2.4941 + 0.0083 * z for z in standard(5)]
    sgd = [2.6156 + 0.0621 * z for z in standard(5)]
    shown = intervals.mean_difference(by_seed(sgd), by_seed(adamw, first=9))
    p = 2 * stats.t.sf(shown.sigmas, shown.freedom)
    assert shown.mean == pytest.approx(0.1215) and p == pytest.approx(0.011, abs=0.002) and shown.low > 0


def standard(n):
    """n numbers of mean 0 and standard deviation 1."""
    z = np.arange(n) - (n - 1) / 2
    return z / z.std(ddof=1)


def alone(*reported):
    """A method of one trial: its loss has the luck of seeds only."""
    return FinalsRecord([0.0], [0], [[0.0]], [list(reported)])


def test_seeds_alone_give_students_interval():
    """Normal losses of seven seeds: nine of ten intervals hold the true mean, and they are as wide as Student's."""
    random, inside, widths = np.random.default_rng(0), [], []
    for i in range(300):
        sample = random.normal(2.5, 0.05, 7)
        draws = intervals.final_losses([alone(*sample)], draws=400, seed=i)
        low, high = intervals.percentile_interval(sample.mean(), draws)
        inside.append(low <= 2.5 <= high)
        half = stats.t.ppf(0.95, 6) * sample.std(ddof=1) / math.sqrt(7)
        widths.append((high - low) / (2 * half))
    assert np.mean(inside) == pytest.approx(0.9, abs=0.05)
    assert np.mean(widths) == pytest.approx(1.0, abs=0.05)


def test_how_often_each_finalist_is_drawn_is_the_closed_form():
    """T trials drawn with replacement miss one of them in (1 - 1/T)^T, and all of three in (1 - 3/T)^T of draws."""
    T = 20
    first, second, third = [1.0] * 3, [2.0] * 3, [3.0] * 3
    method = FinalsRecord(
        [0.9, 1.9, 2.9, *np.full(T - 3, 50.0)], [0, 1, 2], [first, second, third], [first, second, third]
    )
    draws = intervals.final_losses([method], draws=20_000)[:, 0]
    missed = [(1 - k / T) ** T for k in range(4)]
    for value, share in ((1.0, 1 - missed[1]), (2.0, missed[1] - missed[2]), (3.0, missed[2] - missed[3])):
        assert np.mean(draws == value) == pytest.approx(share, abs=0.012)
    assert np.mean(np.isclose(draws, 50.1)) == pytest.approx(
        missed[3], abs=0.006
    )  # its tuned loss and their rise of .1


def race_of(random, trials, spread=0.1, noise=0.05, choosing=3, reported=6):
    """One search: trials of true losses 2.5 + |normal|, tuned on one noisy seed, three best repeated; and its truth."""
    truth = 2.5 + np.abs(random.normal(0, spread, trials))
    tuned = truth + random.normal(0, noise, trials)
    best = np.argsort(tuned)[:3]
    again = truth[best, None] + random.normal(0, noise, (3, choosing + reported))
    final = FinalsRecord(tuned, best, again[:, :choosing], again[:, choosing:])
    return final, truth[best[final.chosen]]


def test_the_winners_curse_is_in_the_tuned_loss_and_gone_from_the_final_one():
    random = np.random.default_rng(1)
    searches = [race_of(random, 48) for _ in range(600)]
    tuned = np.mean([min(final.tuned) - truth for final, truth in searches])
    fresh = np.array([final.loss - truth for final, truth in searches])
    assert tuned < -0.05
    assert abs(fresh.mean()) < 3 * fresh.std() / math.sqrt(600)


def test_intervals_over_trials_and_seeds_hold_what_another_search_ends_with():
    """The mean of the final loss over repeated searches lies in at least nine of ten 90 % intervals."""
    random = np.random.default_rng(2)
    mean = np.mean([race_of(random, 24)[1] for _ in range(2000)])
    inside = []
    for i in range(200):
        final, _ = race_of(random, 24)
        low, high = intervals.percentile_interval(final.loss, intervals.final_losses([final], draws=300, seed=i))
        inside.append(low <= mean <= high)
    assert 0.86 <= np.mean(inside) <= 0.99


@pytest.mark.parametrize("seed", range(20))
def test_a_printed_rank_lies_inside_its_interval_whatever_the_draws(seed):
    """Synthetic tables: ties, diverged methods, draws that have nothing to do with the losses or never move."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 12))
    losses = np.round(random.normal(2.5, 0.2, n), int(random.integers(1, 4)))
    losses[random.random(n) < 0.15] = math.inf
    shift, scale = random.choice([0.0, 0.3]), random.choice([0.0, 1e-3, 0.5])
    draws = np.where(np.isfinite(losses), losses, 3.0) + random.normal(shift, scale, (100, n)) * random.random(n)
    draws[random.random(draws.shape) < 0.05 * (seed % 2)] = math.inf
    ranks = intervals.rank_losses(losses)
    assert sorted(ranks) == list(range(1, n + 1))
    assert all(
        low <= rank <= high for rank, (low, high) in zip(ranks, intervals.rank_intervals(losses, draws), strict=True)
    )


def test_rank_intervals_hold_true_ranks_and_tell_apart_what_is_far_apart():
    truth = np.array([2.0, 2.03, 2.05, 2.5, 2.51])
    random, inside, exact = np.random.default_rng(3), [], []
    for i in range(150):
        sample = truth[:, None] + random.normal(0, 0.03, (5, 6))
        draws = intervals.final_losses([alone(*row) for row in sample], draws=300, seed=i)
        shown = intervals.rank_intervals(sample.mean(axis=1), draws)
        inside.append([low <= rank <= high for rank, (low, high) in enumerate(shown, 1)])
        exact.append(shown[2][1] <= 3 and shown[3][0] >= 4)
    assert (np.mean(inside, axis=0) >= 0.9).all() and np.mean(exact) > 0.95
