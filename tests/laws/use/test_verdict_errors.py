"""The errors of a verdict: noise that changes with scale, and adopt and reject together, against closed forms."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from scalelab.laws.use.multiplier.scales import Scatter, draw_sds
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
