"""Maximum likelihood with a free scale: residuals / sigma of Huber's density (Besiroglu et al. 2024, sec. 3.1)."""

import dataclasses

import numpy as np
from scipy.optimize import brentq

from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import newton
from scalelab.laws.solve.optimum import FitError, Optimum, certify_optimum, minimise_objective
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns, Problem

# The threshold in r, delta x sigma, falls step by step: objectives with tiny thresholds have kinks.
SHRINK = 10.0 ** -np.arange(0.0, 8.0)
STARTS, JITTER = 15, 0.05  # the certificate's starts lie around the optimum, off by about this share
ROUNDS = 20  # rounds of sigma given the law, then the law given sigma
SETTLED = 1e-9  # sigma has settled when its log moves by less


def negative_log_likelihood(residuals: np.ndarray, sigma: float, delta: float) -> float:
    """-log p of the residuals [P], where z = residual / sigma has density exp(-huber(z, delta)) / Z(delta)."""
    density = Objective("mle", delta)
    penalty = density.penalty(residuals / sigma)
    return float(penalty.sum() + len(residuals) * (np.log(sigma) + density.log_normaliser()))


def best_sigma(residuals: np.ndarray, delta: float) -> float:
    """The sigma of highest likelihood for residuals [P]: there the sum of z huber'(z) is P."""

    def slope(log_sigma: float) -> float:
        z = residuals / np.exp(log_sigma)
        return float(np.sum(z * np.clip(z, -delta, delta)) - len(residuals))

    top = np.log(np.sqrt(np.mean(residuals**2)) + 1e-300)
    low = top
    while slope(low) < 0:
        low -= 2.0
    return float(np.exp(brentq(slope, low, top + 2.0, xtol=1e-13)))


def fit_scale(law: Law, columns: Columns, target: np.ndarray, objective: Objective) -> tuple[Problem, Optimum]:
    """Fit the law and sigma by maximum likelihood: (problem with threshold delta x sigma, its optimum).

    The optimum's `value` is -log likelihood. The threshold falls step by step from an easy one, and each step starts at
    the last law: with Hoffmann's delta and sigma near 5e-6 the density is nearly Laplace's, whose minimum is a kink.
    The certificate's starts lie around the optimum and take the same steps. FitError where sigma or the law doesn't
    settle.
    """
    delta = objective.delta
    sigma, x = _settle_sigma(law, columns, target, objective)
    around = np.random.default_rng(0).normal(1.0, JITTER, (STARTS, x.shape[1]))
    starts = np.concatenate([x, x * around])
    posed, solutions = _lower_threshold(law, columns, target, objective, delta * sigma, starts)
    best = int(solutions.objective.argmin())
    if not solutions.converged[best]:
        raise FitError("maximum likelihood did not converge: the best start is not at a stationary point")
    params = _params_at(posed, solutions.x[best])
    value = negative_log_likelihood(posed.residuals(params), sigma, delta)
    certificate = certify_optimum(posed, solutions, best, np.ones((1, len(target))))
    return posed, Optimum(params, value, certificate, solutions.x[best])


def _settle_sigma(law: Law, columns: Columns, target: np.ndarray, objective: Objective) -> tuple[float, np.ndarray]:
    """Sigma and the law's coordinates [1, K], each refitted under the other until sigma stays."""
    posed, sigma = pose_problem(law, columns, target, objective), 0.0
    x = minimise_objective(posed).x[None]
    for _ in range(ROUNDS):
        before, sigma = sigma, best_sigma(posed.residuals(_params_at(posed, x[0])), objective.delta)
        posed, solutions = _lower_threshold(law, columns, target, objective, objective.delta * sigma, x)
        x = solutions.x
        if before and abs(np.log(sigma / before)) < SETTLED:
            return sigma, x
    raise FitError(f"maximum likelihood did not settle: sigma still moves from {before:.4g} to {sigma:.4g}")


def _lower_threshold(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, end: float, x: np.ndarray
) -> tuple[Problem, newton.Solutions]:
    """Refit laws x [R, K] at thresholds that fall tenfold down to `end`: (the last problem, its solutions)."""
    weights = np.ones((len(x), len(target)))
    levels = [objective.delta * shrink for shrink in SHRINK if objective.delta * shrink > end]
    for level in (*levels, end):
        posed = pose_problem(law, columns, target, dataclasses.replace(objective, delta=level))
        solutions = newton.descend(posed, x, weights)
        x = solutions.x
    return posed, solutions


def _params_at(posed: Problem, x: np.ndarray) -> dict[str, float]:
    return {name: float(value) for name, value in posed.to_params(x).items()}
