"""Quantiles and tails that the package takes from scipy.special, by scipy.stats, which no command waits for."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, special, stats

from scalelab.diagnose.watch.family import Estimate
from scalelab.evaluate import noise
from scalelab.laws.use.multiplier import blocks, design, verdict
from scalelab.plan.sweep import forecast
from scalelab.sweep.ablate import seeds
from scalelab.sweep.scaling import divergence

DF = (0.5, 1, 2, 3.5, 8, 30, 200.0, math.inf)
P = (0.005, 0.05, 0.2, 0.5, 0.8, 0.9, 0.95, 0.995)


def equal(values, expected):
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("df", DF)
def test_students_t(df):
    equal(verdict.errors_of_t(df), stats.t.ppf((np.arange(2000) + 0.5) / 2000, df))
    equal([verdict.critical_value(1, df, p) for p in P], [stats.t.ppf((1 + p) / 2, df) for p in P])
    law = divergence.Law("Kaplan", 1.0, 0.3, 1e-3, df, 1.0)
    equal([law.quantile(p) for p in P], [math.exp(0.3 + 1e-3 * stats.t.ppf(p, df)) for p in P])
    inner = P[1:-1]  # the mixture's quantile is searched, to brentq's own 2e-12
    mixed = [math.log(divergence.mix_quantile([law], p)) for p in inner]
    np.testing.assert_allclose(mixed, [0.3 + 1e-3 * stats.t.ppf(p, df) for p in inner], atol=1e-11)
    expected = Estimate(1.1, 1e-3, df)
    equal([expected.interval(p)[1] for p in P], [math.exp(1.1 + 1e-3 * stats.t.ppf((1 + p) / 2, df)) for p in P])
    far = np.linspace(1.09, 1.11, 41)
    equal([expected.chance_above(x) for x in far], stats.t.sf((far - 1.1) / 1e-3, df))


@pytest.mark.parametrize("df", [1, 2, 3, 8, 30, 200])
def test_chi_squared(df):
    level = noise.CONFIDENCE_LEVEL
    equal(
        noise._spread_interval(0.02, df),
        [0.02 * math.sqrt(df / stats.chi2.ppf((1 + s * level) / 2, df)) for s in (1, -1)],
    )
    logs = np.random.default_rng(0).normal(0, 0.01, df + 1)
    spread, squares = seeds.pool_noise([np.exp(logs)]), float(((logs - logs.mean()) ** 2).sum())
    assert spread is not None and spread.df == df
    bounds = [math.sqrt(squares / stats.chi2.ppf((1 + s * seeds.LEVEL) / 2, df)) for s in (1, -1)]
    np.testing.assert_allclose([spread.low, spread.high], bounds, rtol=1e-9)  # ln exp x is x to 1e-16


@pytest.mark.parametrize("df", [1, 2, 4.5, 10, 30, 100])
def test_noncentral_t(df):
    shift = np.linspace(-4, 40, 177)
    for bar in np.linspace(0.5, 12, 24):
        chance = design.chance_beyond(bar, df, shift)
        np.testing.assert_allclose(chance, stats.nct.sf(bar, df, shift), atol=1e-12, rtol=0)
    assert np.isnan(design.chance_beyond(2.0, df, np.array([math.nan]))).all()


def test_fishers_f():
    """The test of unlike blocks is a one-way analysis of variance; the law's test of floors takes one tail alike."""
    draw = np.random.default_rng(0)
    ratios = np.repeat([0.0, 0.004, -0.002], 4) + draw.normal(0, 0.003, 12)
    labels = [f"{block}{seed}" for block in "abc" for seed in range(4)]
    ones = SimpleNamespace(losses=dict.fromkeys(labels, 3.0))
    others = SimpleNamespace(losses={label: 3 * math.exp(r) for label, r in zip(labels, ratios, strict=True)})
    p = blocks._equal_blocks([(ones, others)], {label: label[0] for label in labels})
    np.testing.assert_allclose(p, stats.f_oneway(*ratios.reshape(3, 4)).pvalue, rtol=1e-9)
    x = np.concatenate([[0.0], np.geomspace(1e-6, 1e4, 200), [math.inf]])
    for df in (1, 2.5, 7, 40):
        equal(special.fdtrc(1, df, x), stats.f.sf(x, 1, df))


def test_blocks_that_differ_by_nothing_are_alike():
    """Their sum of squares between blocks may come out below 0 by rounding, where scipy.special knows no tail."""
    labels = [f"{block}{seed}" for block in "abc" for seed in range(3)]
    ones = SimpleNamespace(losses=dict.fromkeys(labels, 3.0))
    for step in np.arange(1, 200) / 1000:  # a fifth of them come out below 0
        others = SimpleNamespace(losses={label: 3 + step * (1 + int(label[1])) for label in labels})
        assert blocks._equal_blocks([(ones, others)], {label: label[0] for label in labels}) == pytest.approx(1)


def test_hubers_inefficiency():
    """E psi^2 / (E psi')^2 of a standard normal is its variance; the first by quadrature."""
    for c in (0.05, 0.5, 1.345, 3.0):
        squares = integrate.quad(lambda x: x**2 * stats.norm.pdf(x), -c, c)[0] + 2 * c**2 * stats.norm.sf(c)
        slope = 2 * stats.norm.cdf(c) - 1
        assert forecast.huber_inefficiency(c) == pytest.approx(math.sqrt(squares) / slope, rel=1e-9)
