"""The batched solver's parts against finite differences and scipy's own solvers."""

import numpy as np
import pytest
from scipy.optimize import nnls

from scalelab.laws import solve
from scalelab.laws.fit import seed_grid
from tests.laws.examples import QUICKSTART_LIKE, study


def problem(noise=0.01, delta=3e-3):
    data = solve.centred(*study(QUICKSTART_LIKE, noise, seed=3), delta)
    weights = np.random.default_rng(4).integers(0, 4, (6, len(data.n))).astype(float)
    x = solve.from_params(QUICKSTART_LIKE, data) * np.random.default_rng(5).uniform(0.8, 1.2, (6, 5))
    return data, weights, x


@pytest.mark.parametrize("delta", [1e-3, 3e-2, 1.0])
def test_gradient_and_hessian_equal_finite_differences(delta):
    data, weights, x = problem(delta=delta)
    gradient, _, hessian = solve.derivatives(x, data, weights)
    for i in range(5):
        step = np.zeros(5)
        step[i] = 1e-6
        slope = (solve.objective(x + step, data, weights) - solve.objective(x - step, data, weights)) / 2e-6
        np.testing.assert_allclose(gradient[:, i], slope, rtol=1e-5, atol=1e-8)
        plus, minus = (solve.derivatives(x + sign * step, data, weights)[0] for sign in (1, -1))
        scale = np.abs(hessian).max()
        np.testing.assert_allclose(hessian[:, i], (plus - minus) / 2e-6, rtol=1e-4, atol=1e-5 * scale)


def test_the_majoriser_never_lies_below_the_gauss_newton_part():
    """What makes an IRLS step safe: IRLS weights are at least Huber's own curvature."""
    data, weights, x = problem()
    residual = np.log(solve.log_model(x, data)[0]) - data.y
    inside = weights * (np.abs(residual) <= data.delta)
    _, majoriser, hessian = solve.derivatives(x, data, weights)
    assert inside.any() and not inside.all()
    assert (np.linalg.eigvalsh(majoriser) >= -1e-12).all()
    assert (np.einsum("rii->r", majoriser) > np.einsum("rii->r", hessian)).any()


@pytest.mark.parametrize("falling", [True, False])
def test_seeds_are_scipys_non_negative_least_squares(falling):
    """`falling=False`: losses that grow with N and D, where the best coefficients sit at zero."""
    data, weights, _ = problem()
    data = data if falling else data._replace(y=-data.y)
    exponents = seed_grid(np.array([0.1, 0.5, 1.3]))
    found = solve.seeds(data, weights, exponents)
    for r, weight in enumerate(weights):
        for g, (alpha, beta) in enumerate(exponents):
            basis = np.stack([np.ones_like(data.n), np.exp(-alpha * data.n), np.exp(-beta * data.d)], axis=1)
            scaled = basis * (np.sqrt(weight) * np.exp(-data.y))[:, None]
            expected, least = nnls(scaled, np.sqrt(weight))
            residual = np.linalg.norm(scaled @ found[r, g, :3] - np.sqrt(weight))
            assert (found[r, g, :3] >= 0).all()
            assert residual == pytest.approx(least, rel=1e-7)
            np.testing.assert_allclose(found[r, g, :3], expected, rtol=1e-4, atol=1e-6)


def test_solutions_of_a_batch_do_not_depend_on_their_neighbours():
    data, weights, x = problem()
    together = solve.descend(x, data, weights)
    assert together.converged.all()
    for r in range(len(x)):
        alone = solve.descend(x[r : r + 1], data, weights[r : r + 1])
        assert alone.objective[0] == pytest.approx(together.objective[r], rel=1e-12)


def test_too_few_iterations_are_not_called_converged():
    data, weights, x = problem()
    assert not solve.descend(x, data, weights, iterations=2).converged.any()


def test_centred_coordinates_round_trip():
    data, _, x = problem()
    np.testing.assert_allclose(solve.from_params(solve.to_params(x, data), data), x, rtol=1e-12)
