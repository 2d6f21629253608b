"""Double descent: the least-norm fit against numpy's pseudo-inverse, the peak at P = n, and the network's shapes."""

import numpy as np
import pytest

from scalelab.experiments.studies import double_descent as dd


def test_least_squares_is_the_pseudo_inverse_and_the_ridge_normal_equations():
    rng = np.random.default_rng(0)
    seen, y = rng.standard_normal((20, 50)), rng.standard_normal(20)
    np.testing.assert_allclose(dd.least_squares(seen, y, 0.0), np.linalg.pinv(seen) @ y, atol=1e-10)
    normal = np.linalg.solve(seen.T @ seen + 2.0 * np.eye(50), seen.T @ y)
    np.testing.assert_allclose(dd.least_squares(seen, y, 2.0), normal, atol=1e-10)


@pytest.mark.full
def test_the_error_peaks_where_features_are_as_many_as_points_and_ridge_removes_it():
    plain = {count: np.median(dd.feature_errors(count, 0.0, 8)) for count in (40, 80, 100, 120, 300)}
    assert max(plain, key=plain.get) == dd.POINTS and plain[100] > 20 * plain[40] and plain[300] < plain[40]
    assert np.median(dd.feature_errors(100, 10.0, 8)) < plain[40]


def test_labels_are_flipped_as_often_as_said():
    x, y, test, true = dd.make_labels(0)
    assert x.shape == (200, 20) and test.shape == (1000, 20) and set(y) == set(true) == {-1.0, 1.0}
    planes = np.linalg.lstsq(test, true)[0]
    assert np.mean(np.sign(x @ planes) != y) == pytest.approx(dd.FLIPPED, abs=0.07)


@pytest.mark.full
def test_a_wide_network_fits_all_and_a_narrow_one_cannot(monkeypatch):
    monkeypatch.setattr(dd, "STEPS", 1500)
    wide, narrow = (dd.network_errors(width, 2) for width in (64, 2))
    assert max(wide["train"]) == 0 and min(narrow["train"]) > 0.1 and len(wide["test"]) == 2
