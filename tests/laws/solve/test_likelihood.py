"""Maximum likelihood with a free scale: Besiroglu et al. 2024 to every published digit; densities integrate to one."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import load_objective
from scalelab.laws.solve.likelihood import best_sigma, fit_scale, negative_log_likelihood
from tests.laws.examples import QUICKSTART_LIKE, hoffmann_points, published, study


def test_besiroglus_maximum_likelihood():
    N, D, loss = hoffmann_points()
    _, best = fit_scale(load_law("chinchilla"), {"N": N, "D": D}, loss, load_objective("mle"))
    golden = published("besiroglu", "notebook_mle")
    assert best.value == pytest.approx(golden["negll"], abs=1e-8)
    for name, digits in {"A": 5e-6, "B": 5e-5, "E": 5e-6, "alpha": 5e-9, "beta": 5e-9}.items():
        assert best.params[name] == pytest.approx(golden[name], rel=0, abs=1.2 * digits), name
    assert best.certificate.converged


@pytest.mark.parametrize(("sigma", "delta"), [(1.0, 1e-3), (0.01, 1.0), (2.0, 10.0)])
def test_the_density_integrates_to_one(sigma, delta):
    wide = sigma * (50 / min(delta, 1.0) + 50)
    edges = [-delta * sigma, 0.0, delta * sigma]
    total = quad(
        lambda r: np.exp(-negative_log_likelihood(np.array([r]), sigma, delta)), -wide, wide, points=edges, limit=500
    )[0]
    assert total == pytest.approx(1, abs=1e-6)


def test_the_scale_is_the_likeliest():
    residuals = np.random.default_rng(0).laplace(scale=0.01, size=60)
    for delta in (1e-3, 0.5, 5.0):
        result = minimize_scalar(
            lambda log_s, delta=delta: negative_log_likelihood(residuals, np.exp(log_s), delta),
            bounds=(-25, 0),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert np.log(best_sigma(residuals, delta)) == pytest.approx(result.x, abs=1e-4)


def test_with_a_wide_threshold_it_is_least_squares():
    """delta -> infinity: Gaussian, so sigma is the root mean square and the law that of mse_log."""
    N, D, loss = study(QUICKSTART_LIKE, 0.01, seed=4)
    law = load_law("chinchilla")
    posed, best = fit_scale(law, {"N": N, "D": D}, loss, load_objective("mle", 50.0))
    residuals = posed.residuals(best.params)
    assert best_sigma(residuals, 50.0) == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=1e-6)
    gaussian = 0.5 * len(N) * (1 + np.log(2 * np.pi * np.mean(residuals**2)))
    assert best.value == pytest.approx(gaussian, abs=1e-6)
