"""The best learning rate of a sweep: exact on parabolas, honest at edges, Student's interval over seeds."""

import numpy as np
import pytest
from scipy import stats

from scalelab.sweep.best import find_best_lr

X = np.arange(-10.0, -5.0)


def test_of_a_parabola_it_is_the_vertex():
    result = find_best_lr(X, np.stack([2 + 0.3 * (X + 7.6) ** 2] * 3))
    assert (result.log2_lr, result.loss, result.interior) == (pytest.approx(-7.6), pytest.approx(2), True)
    assert result.high - result.low == pytest.approx(0, abs=1e-9)


def test_points_farther_than_an_octave_do_not_bend_it():
    fine = np.arange(-10, -5.9, 0.5)
    y = 2 + 0.3 * (fine + 7.9) ** 2
    y[[0, -1]] += 5
    assert find_best_lr(fine, y[None]).log2_lr == pytest.approx(-7.9)


def test_the_interval_is_students_over_the_seeds_own_minima():
    vertices = np.array([-7.5, -7.7, -7.9])
    result = find_best_lr(X, 2 + 0.3 * (X - vertices[:, None]) ** 2)
    half = stats.t.ppf(0.95, 2) * vertices.std(ddof=1) / 3**0.5
    assert (result.low, result.log2_lr, result.high) == pytest.approx((-7.7 - half, -7.7, -7.7 + half))
    alone = find_best_lr(X, 2 + 0.3 * (X[None] + 7.5) ** 2)
    assert (alone.low, alone.high) == pytest.approx((-8, -7))


@pytest.mark.parametrize("vertex", [-11, -10.2, -5.9, -4])
def test_a_minimum_at_the_edge_is_no_minimum(vertex):
    result = find_best_lr(X, ((X - vertex) ** 2)[None])
    assert not result.interior and result.log2_lr in (-10, -6)


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_diverged_runs_are_worse_than_any(lost):
    y = np.stack([2 + 0.3 * (X + 8) ** 2] * 2)
    y[1, 3:] = lost
    result = find_best_lr(X, y)
    assert result.log2_lr == pytest.approx(-8) and result.interior
    assert result.high - result.low >= 1  # a neighbour is missing: no parabola says more than the grid
    y[:] = lost
    assert not find_best_lr(X, y).interior
