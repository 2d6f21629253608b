"""The best shares of a mixture: a closed form, a search over the simplex, and intervals that hold the truth."""

import itertools
import math
import types

import numpy as np
import pytest

from scalelab import laws
from scalelab.laws.law.axis_forms import mixture_of
from scalelab.laws.use import mixture
from scalelab.laws.use.mixture import MixingLaws, Region, whole_simplex


@pytest.mark.parametrize(("a", "b"), [(-2.0, -1.0), (-1.0, -1.0), (-0.4, -3.0), (-9.0, -2.0)])
def test_two_domains_meet_where_their_slopes_do(a, b):
    """exp(a r) + exp(b (1 - r)) is least where a exp(a r) = b exp(b (1 - r)), or at the nearer end."""
    closed = (b + math.log(b / a)) / (a + b)
    found, gap = mixture.find_best(
        MixingLaws(np.ones(2), np.array([[a, 0.0], [0.0, b]]), np.full(2, 0.5)), whole_simplex(2)
    )
    assert found == pytest.approx([min(max(closed, 0), 1), 1 - min(max(closed, 0), 1)], abs=1e-4) and gap < 1e-4


def test_no_point_of_a_grid_over_the_simplex_is_better():
    grid = np.array([(i, j, 40 - i - j) for i, j in itertools.product(range(41), repeat=2) if i + j <= 40]) / 40
    rng = np.random.default_rng(0)
    for _ in range(20):
        weights = rng.dirichlet(np.ones(4))
        one = MixingLaws(rng.uniform(1, 3, 4), rng.uniform(-8, 2, (4, 3)), weights)
        shares, gap = mixture.find_best(one, whole_simplex(3))
        least = min(float(weights @ (one.c + np.exp(one.t @ point))) for point in grid)
        assert shares.sum() == pytest.approx(1) and shares.min() >= 0
        assert one.loss(shares) <= least + 1e-9 and 0 <= gap < 1e-4
        for point in grid[::97]:  # the bound holds anywhere, not only at the best
            assert one.loss(point) - one.loss(shares) - 1e-12 <= mixture.bound_loss(one, point, whole_simplex(3))
            if one.loss(point) > one.loss(shares) + 1e-3:
                assert mixture.bound_loss(one, point, whole_simplex(3)) > 1e-3


def test_within_a_region_no_point_of_a_grid_is_better_and_shares_stay_inside():
    grid = np.array([(i, j, 60 - i - j) for i, j in itertools.product(range(61), repeat=2) if i + j <= 60]) / 60
    rng = np.random.default_rng(1)
    for _ in range(20):
        one = MixingLaws(rng.uniform(1, 3, 4), rng.uniform(-8, 2, (4, 3)), rng.dirichlet(np.ones(4)))
        corners = rng.dirichlet(np.ones(3), 4)
        region = mixture.span_tried(corners)
        shares, gap = mixture.find_best(one, region)
        inside = [p for p in grid if (p >= region.low).all() and (p <= region.high).all()]
        assert shares.sum() == pytest.approx(1) and (shares >= region.low).all() and (shares <= region.high).all()
        assert one.loss(shares) <= min(map(one.loss, [*inside, *corners])) + 1e-9 and 0 <= gap < 1e-4
    narrow = Region(np.array([0.2, 0.1, 0.1]), np.array([0.7, 0.5, 0.5]))
    assert narrow.least(np.array([1.0, -1.0, 0.0])) == pytest.approx([0.2, 0.5, 0.3])


def test_a_share_is_held_where_the_tried_ones_end_and_the_laws_would_go_on():
    """exp(-3 r) + exp(r - 1) is least at r = (1 + log 3) / 4 = .525, which lies beyond the .4 that was tried."""
    fits = [one_fit({"c": 1.0, "t1": -3.0, "t2": 0.0}), one_fit({"c": 1.0, "t1": 0.0, "t2": -1.0})]
    free = (math.log(3) + 1) / 4
    wide = mixture.best_shares(fits, (1.0, 1.0), np.array([(0.05, 0.95), (0.95, 0.05)]))
    assert wide.held == {} and wide.shares[0] == pytest.approx(free, abs=1e-4)
    found = mixture.best_shares(fits, (1.0, 1.0), np.array([(0.1, 0.9), (0.4, 0.6)]))
    assert found.shares == pytest.approx([0.4, 0.6]) and found.tried == 1 and found.gain == pytest.approx(0, abs=1e-9)
    assert found.held == {0: pytest.approx(free, abs=1e-4), 1: pytest.approx(1 - free, abs=1e-4)}


def one_fit(params):
    """What `best_shares` reads of a fit: its parameters, and no resamples."""
    return types.SimpleNamespace(params=params, bootstrap=None)


TRUTH = {"c": np.array([1.2, 1.5]), "t": np.array([[-1.6, 0.1], [0.2, -1.1]])}
LATTICE = np.array([(i / 10, 1 - i / 10) for i in range(11)] * 2)


def simulate(rng, noise=0.002):
    """Fits of both laws to a table that the truth made, its lattice twice."""
    fits = []
    for c, t in zip(TRUTH["c"], TRUTH["t"], strict=True):
        loss = (c + np.exp(LATTICE @ t)) * np.exp(noise * rng.standard_normal(len(LATTICE)))
        table = {"r1": LATTICE[:, 0], "r2": LATTICE[:, 1], "loss": loss}
        fits.append(laws.fit(table, mixture_of(2), bootstrap=60, identify=False, cluster="none"))
    return fits


@pytest.mark.full
def test_intervals_hold_the_true_shares_about_as_often_as_they_say():
    truth = MixingLaws(TRUTH["c"], TRUTH["t"], np.full(2, 0.5))
    best = mixture.find_best(truth, whole_simplex(2))[0]
    rng = np.random.default_rng(1)
    held = losses = 0
    for _ in range(25):
        found = mixture.best_shares(simulate(rng), (1.0, 1.0), LATTICE)
        low, high = found.intervals[0]
        held += low <= best[0] <= high
        losses += found.loss_interval[0] <= truth.loss(found.shares) <= found.loss_interval[1]
        assert found.loss_interval[0] < found.loss < found.loss_interval[1] < found.loss_interval[0] + 0.02
        assert found.held == {} and found.gain >= -1e-9
    assert held >= 18  # of 25 at 90 %: fewer come by chance once in 200 times


@pytest.mark.full
def test_a_mixture_that_is_as_good_everywhere_has_no_gain():
    """A loss that is the same in all mixtures but for noise: any share will do, and nothing is gained."""
    loss = 2.0 * np.exp(0.003 * np.random.default_rng(2).standard_normal(22))
    table = {"r1": LATTICE[:, 0], "r2": LATTICE[:, 1], "loss": loss}
    fits = [laws.fit(table, mixture_of(2), bootstrap=20, identify=False, cluster="none")]
    found = mixture.best_shares(fits, (1.0,), LATTICE)
    low, high = found.intervals[0]
    assert high - low > 0.5 and found.gain_interval[0] <= 0 and found.gain_interval[1] < 1e-3
