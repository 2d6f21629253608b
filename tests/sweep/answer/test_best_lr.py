"""The best learning rate of a sweep: exact on parabolas, honest at edges, Student's interval over seeds."""

import numpy as np
import pytest
from scipy import stats

from scalelab.sweep.answer.best_lr import find_best_lr

X = np.arange(-10.0, -5.0)


def test_of_a_parabola_it_is_the_vertex():
    result = find_best_lr(X, np.stack([2 + 0.3 * (X + 7.6) ** 2] * 3))
    assert (result.log2_lr, result.loss, result.interior) == (pytest.approx(-7.6), pytest.approx(2), True)
    assert result.interval == pytest.approx((-7.6, -7.6)) and not result.refusal


def test_points_farther_than_an_octave_do_not_bend_it():
    fine = np.arange(-10, -5.9, 0.5)
    y = 2 + 0.3 * (fine + 7.9) ** 2
    y[[0, -1]] += 5
    assert find_best_lr(fine, y[None]).log2_lr == pytest.approx(-7.9)


def test_the_interval_is_students_over_the_seeds_own_minima():
    vertices = np.array([-7.5, -7.7, -7.9])
    result = find_best_lr(X, 2 + 0.3 * (X - vertices[:, None]) ** 2)
    half = stats.t.ppf(0.95, 2) * vertices.std(ddof=1) / 3**0.5
    assert result.log2_lr == pytest.approx(-7.7) and result.interval == pytest.approx((-7.7 - half, -7.7 + half))


def test_one_seed_has_no_interval():
    """Seen: half a grid step each way was printed as a 90 % interval."""
    alone = find_best_lr(X, 2 + 0.3 * (X[None] + 7.5) ** 2)
    assert (alone.log2_lr, alone.interval, alone.refusal) == (pytest.approx(-7.5), None, "one seed")


@pytest.mark.parametrize("vertex", [-11, -10.2, -5.9, -4])
def test_a_minimum_at_the_edge_is_no_minimum(vertex):
    result = find_best_lr(X, ((X - vertex) ** 2)[None])
    assert not result.interior and result.log2_lr in (-10, -6) and result.interval is None
    assert f"at the grid's edge: {2**result.log2_lr:.4g} is the" in result.refusal
    assert result.refusal.endswith("smallest LR" if vertex < -8 else "largest LR")


def test_a_seed_whose_own_minimum_is_at_the_edge_leaves_no_interval():
    """Its true minimum may be anywhere beyond, so a spread of minima cut off at the edge would be too small."""
    result = find_best_lr(X, 2 + 0.3 * (X - np.array([-7.5, -8.2, -10.8])[:, None]) ** 2)
    assert result.interior and result.interval is None and result.refusal.startswith("1 of 3 seeds")


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_diverged_runs_are_worse_than_any(lost):
    y = np.stack([2 + 0.3 * (X + 8) ** 2] * 2)
    y[1, 3:] = lost
    result = find_best_lr(X, y)
    assert result.log2_lr == pytest.approx(-8) and result.interior
    assert result.interval is None and result.refusal == "a neighbour of the lowest LR lost a seed"
    y[:] = lost
    result = find_best_lr(X, y)
    assert not result.interior and result.refusal == "at every LR a seed was lost"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_its_interval_covers_the_truth_as_often_as_it_says(seeds):
    """1,500 sweeps of five LRs with a known optimum, each loss off by a sixth of what one octave costs.

    Seeds shift a whole curve (paired noise), which the vertex must not feel.
    """
    random, hits, given = np.random.default_rng(seeds), 0, 0
    for _ in range(1500):
        vertex = random.uniform(-8.5, -7.5)
        clean = 2 + 0.06 * (X - vertex) ** 2 + random.normal(0, 0.5, (seeds, 1))
        interval = find_best_lr(X, clean + random.normal(0, 0.01, (seeds, len(X)))).interval
        given += interval is not None
        hits += interval is not None and interval[0] <= vertex <= interval[1]
    assert given > 1450 and 0.87 < hits / given < 0.93
