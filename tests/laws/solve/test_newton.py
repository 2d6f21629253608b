"""The batched solver's parts against scipy's own solvers, and what a batch must not do."""

import numpy as np
import pytest
from scipy.optimize import nnls

from scalelab.laws.solve import newton
from tests.laws.examples import QUICKSTART_LIKE, posed, study


def example(delta=3e-3, turned=False):
    """(a problem, six sets of weights, six points near the truth); `turned`: losses that grow with N and D."""
    N, D, loss = study(QUICKSTART_LIKE, 0.01, seed=3)
    points = posed(N, D, 1 / loss if turned else loss, delta)
    weights = np.random.default_rng(4).integers(0, 4, (6, len(N))).astype(float)
    x = points.from_params(QUICKSTART_LIKE._asdict()) * np.random.default_rng(5).uniform(0.8, 1.2, (6, 5))
    return points, weights, x


@pytest.mark.parametrize("turned", [False, True])
def test_seeds_are_scipys_non_negative_least_squares(turned):
    """`turned`: the best coefficients sit at zero."""
    points, weights, _ = example(turned=turned)
    exponents = np.stack(np.meshgrid([0.1, 0.5, 1.3], [0.1, 0.5, 1.3]), axis=-1).reshape(-1, 2)
    result = newton.variable_projection(points, weights, exponents)
    n, d = (np.log(points.columns[name]) - np.log(points.columns[name]).mean() for name in "ND")
    for r, weight in enumerate(weights):
        for g, (alpha, beta) in enumerate(exponents):
            basis = np.stack([np.ones_like(n), np.exp(-alpha * n), np.exp(-beta * d)], axis=1)
            scaled = basis * (np.sqrt(weight) / points.target)[:, None]
            expected, least = nnls(scaled, np.sqrt(weight))
            residual = np.linalg.norm(scaled @ result[r, g, :3] - np.sqrt(weight))
            assert (result[r, g, :3] >= 0).all()
            assert residual == pytest.approx(least, rel=1e-7)
            np.testing.assert_allclose(result[r, g, :3], expected, rtol=1e-4, atol=1e-6)


def test_solutions_of_a_batch_do_not_depend_on_their_neighbours():
    points, weights, x = example()
    together = newton.descend(points, x, weights)
    assert together.converged.all()
    for r in range(len(x)):
        alone = newton.descend(points, x[r : r + 1], weights[r : r + 1])
        assert alone.objective[0] == pytest.approx(together.objective[r], rel=1e-12)


def test_too_few_iterations_are_not_called_converged():
    points, weights, x = example()
    assert not newton.descend(points, x, weights, iterations=2).converged.any()


def test_held_coordinates_stay_where_they_are_held():
    points, weights, x = example()
    lower, upper = (np.tile(bound, (6, 1)) for bound in (points.lower, points.upper))
    lower[:, 3] = upper[:, 3] = np.linspace(0.3, 0.8, 6)
    result = newton.descend(points, x, weights, lower, upper)
    assert result.converged.all()
    np.testing.assert_array_equal(result.x[:, 3], lower[:, 3])
    assert (result.objective >= newton.descend(points, result.x, weights).objective).all()


def test_coordinates_round_trip():
    points, _, x = example()
    np.testing.assert_allclose(points.from_params(points.to_params(x)), x, rtol=1e-12)
