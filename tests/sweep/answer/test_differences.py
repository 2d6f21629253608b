"""Differences of mean losses: scipy's own intervals and closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from scalelab.sweep.answer.differences import mean_difference


def by_seed(values, first=1):
    return dict(enumerate(values, first))


def test_a_paired_difference_is_scipys_and_the_textbooks():
    a, b = [2.31, 2.35, 2.40, 2.28, 2.33], [2.25, 2.30, 2.41, 2.20, 2.29]
    shown = mean_difference(by_seed(a), by_seed(b))
    known = stats.ttest_rel(a, b).confidence_interval(0.9)
    assert (shown.low, shown.high) == pytest.approx((known.low, known.high), rel=1e-12) and shown.paired
    apart = np.subtract(a, b)
    half = 2.131847 * apart.std(ddof=1) / math.sqrt(5)  # t at 95 %, 4 degrees of freedom: any printed table
    assert shown.high - shown.mean == pytest.approx(half, rel=1e-6)
    assert shown.sigmas == pytest.approx(stats.ttest_rel(a, b).statistic)
    in_another_order = dict(reversed(by_seed(b).items()))
    assert mean_difference(by_seed(a), in_another_order) == pytest.approx(shown)


def test_other_seeds_make_it_welchs():
    a, b = [2.31, 2.35, 2.40, 2.28], [2.25, 2.30, 2.41, 2.20, 2.29]
    shown = mean_difference(by_seed(a), by_seed(b, first=9))
    known = stats.ttest_ind(a, b, equal_var=False)
    assert not shown.paired and shown.freedom == pytest.approx(known.df)
    assert (shown.low, shown.high) == pytest.approx(tuple(known.confidence_interval(0.9)))


def test_what_has_no_interval():
    same = by_seed([2.0, 2.1])
    assert mean_difference(same, same) == (0.0, 0.0, 0.0, 0.0, 1.0, True)
    assert mean_difference(same, by_seed([2.0, math.inf])) is None
    with pytest.raises(ValueError, match="1 and 2 seeds"):
        mean_difference({1: 2.0}, same)
