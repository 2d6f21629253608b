"""The errors of a verdict: noise that changes with scale, and adopt and reject together, against closed forms."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from scalelab.laws.use.multiplier.cells import Cell, Pair
from scalelab.laws.use.multiplier.noise import measure_noise
from scalelab.laws.use.multiplier.scales import Scatter, draw_sds, find_companion
from scalelab.laws.use.multiplier.verdict import errors_of_t, judge_deciding, two_sided_widening


@pytest.mark.parametrize("growth", [1.0, 10.0, 0.1])
def test_an_interval_holds_as_often_where_noise_grows_or_falls_with_scale(growth):
    """Four rungs of three seeds: by draws of a variance that is known, the last rung's 90 % interval misses in 10 %."""
    place, missed = np.linspace(0, 1, 4), []
    sds = 0.001 * growth**place
    for i in range(150):
        random = np.random.default_rng([i, 4])
        scatter = Scatter(sds**2 * random.chisquare(2, 4), np.full(4, 2.0))
        drawn = random.standard_normal(1000) * draw_sds(scatter, 3.7 * place, 1000, random)[:, -1]
        missed.append(2 * stats.norm.sf(np.quantile(np.abs(drawn), 0.9) / sds[-1]))
    assert 0.07 < np.mean(missed) < 0.125


def last_half_width(sds, errors):
    """Of a 90 % interval of the last rung's difference, over its true standard error; `errors` [side, R, seeds]."""
    flops = 4.0 ** np.arange(len(sds))
    sides = [
        tuple(
            Cell({str(k): math.exp(sd * z) for k, z in enumerate(row)}, 0, C, None, {})
            for C, sd, row in zip(flops, sds, side, strict=True)
        )
        for side in errors
    ]
    random = np.random.default_rng(0)
    drawn = draw_sds(measure_noise(Pair("new", *sides, True)).sides[1], np.log(flops), 800, random)[:, -1]
    return np.quantile(np.abs(drawn * random.standard_normal(800)), 0.9) / (2**0.5 * sds[-1])


@pytest.mark.parametrize("profile", [[1, 1, 1, 10], [10, 1, 1, 10], [1, 3, 10, 30]])
def test_a_rungs_own_runs_tell_its_noise_whatever_that_of_the_others_is(profile):
    """Two sides of three seeds: an interval misses in 10 % where noise jumps; a trend through all rungs, in 24 %."""
    sds, studies = 0.001 * np.array(profile, float), np.random.default_rng(1).standard_normal((60, 2, 4, 3))
    widths = np.array([last_half_width(sds, errors) for errors in studies])
    assert 0.06 < (2 * stats.norm.sf(widths)).mean() < 0.14


def test_a_companion_is_what_the_other_side_tells_beside_the_difference():
    """Against least squares with each rung weighed by its own scale, as for one known profile."""
    random = np.random.default_rng(2)
    scale = np.array([0.1, 1.0, 30.0])
    one, gap = (scale[:, None] * random.standard_normal((3, 9)) for _ in range(2))
    found = find_companion(list(gap), list(one + 2 * gap), np.full(3, 8.0))
    share = ((one + 2 * gap) * gap / scale[:, None] ** 2).sum() / (gap**2 / scale[:, None] ** 2).sum()
    assert found.ss == pytest.approx((((one + 2 * gap) - share * gap) ** 2).sum(1), rel=0.05)
    assert found.df.sum() == 23
    assert find_companion([gap[0]], [one[0]], np.array([8.0])) is None  # one rung has nothing to compare with


@pytest.mark.parametrize("df", [2, 8, 100])
@pytest.mark.parametrize("region", [0.0, 0.1, 0.7, 3.0])
def test_adopt_and_reject_together_err_in_five_per_cent(df, region):
    single = stats.t.isf(0.05, df)
    exact = optimize.brentq(
        lambda c: stats.t.sf(c, df) + stats.t.sf(c + 2 * region, df) - 0.05, single, stats.t.isf(0.025, df) + 1e-9
    )
    assert two_sided_widening(errors_of_t(df), region, 0.9) * single == pytest.approx(exact, rel=0.01)


def test_a_region_that_is_wide_beside_the_noise_widens_nothing():
    assert two_sided_widening(errors_of_t(5), 50.0, 0.9) == pytest.approx(1, abs=0.01)
    assert two_sided_widening(np.zeros(9), 0.02, 0.9) == two_sided_widening(np.full(9, math.inf), 0.02, 0.9) == 1


def test_the_wider_interval_adopts_and_the_other_says_no_difference():
    assert judge_deciding((1.05, 1.2), (1.03, 1.3), 1.02) == "adopt"
    assert judge_deciding((1.05, 1.2), (1.01, 1.3), 1.02) == "undecided"
    assert judge_deciding((0.99, 1.01), (0.97, 1.03), 1.02) == "no difference that matters"
    assert judge_deciding((0.8, 0.9), (0.75, 0.97), 1.02) == "reject"
