"""Maximum likelihood with a free scale: residuals / sigma of Huber's density (Besiroglu et al. 2024, sec. 3.1)."""

import dataclasses

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf

from scalelab.laws import solve
from scalelab.laws.law import Law
from scalelab.laws.objective import Objective
from scalelab.laws.optimum import Optimum, certify, minimise
from scalelab.laws.problem import Columns, Problem, problem

SHRINK = 10.0 ** -np.arange(0.0, 8.0)  # the threshold in r, delta x sigma, is reached step by step: tiny ones have kinks
ROUNDS = 20  # of sigma given the law, the law given sigma
SETTLED = 1e-9


def log_normaliser(delta: float) -> float:
    """log of the integral of exp(-huber(z, delta)) over z."""
    inside = np.sqrt(2 * np.pi) * erf(delta / np.sqrt(2))
    return float(np.log(inside + 2 / delta * np.exp(-0.5 * delta**2)))


def negative_log_likelihood(residuals: np.ndarray, sigma: float, delta: float) -> float:
    """-log p of residuals r whose z = r / sigma has density exp(-huber(z, delta)) / Z(delta)."""
    penalty = Objective("mle", delta).penalty(residuals / sigma)
    return float(penalty.sum() + len(residuals) * (np.log(sigma) + log_normaliser(delta)))


def best_sigma(residuals: np.ndarray, delta: float) -> float:
    """The sigma of highest likelihood: where sum of z huber'(z) = P."""

    def slope(log_sigma: float) -> float:
        z = residuals / np.exp(log_sigma)
        return float(np.sum(z * np.clip(z, -delta, delta)) - len(residuals))

    top = np.log(np.sqrt(np.mean(residuals**2)) + 1e-300)
    low = top
    while slope(low) < 0:
        low -= 2.0
    return float(np.exp(brentq(slope, low, top + 2.0, xtol=1e-13)))


def fit_scale(law: Law, columns: Columns, target: np.ndarray, objective: Objective) -> tuple[Problem, Optimum]:
    """(problem with the threshold delta x sigma that maximum likelihood finds, its optimum). `value` is -log likelihood.

    The threshold in r is lowered step by step from one that is easy, each from the last law: with Hoffmann's delta and
    sigma near 5e-6 the density is Laplace's in all but name, and its minimum is a kink that must be approached.
    """
    delta = objective.delta
    best = minimise(problem(law, columns, target, dataclasses.replace(objective, name="huber_log")))
    posed, x, sigma = problem(law, columns, target, objective), best.x, 0.0
    weights = np.ones((1, len(target)))
    for _ in range(ROUNDS):
        before, sigma = sigma, best_sigma(posed.residuals(_params(posed, x)), delta)
        for shrink in SHRINK[SHRINK >= 1e-7]:
            level = max(delta * sigma, delta * shrink)
            posed = problem(law, columns, target, dataclasses.replace(objective, delta=level))
            x = solve.descend(posed, x[None], weights).x[0]
            if level == delta * sigma:
                break
        if abs(np.log(sigma / before) if before else 1.0) < SETTLED:
            break
    found = solve.descend(posed, x[None], weights)
    params = _params(posed, found.x[0])
    value = negative_log_likelihood(posed.residuals(params), sigma, delta)
    certificate = certify(posed, found, 0, weights)
    return posed, Optimum(params, value, certificate, found.x[0])


def _params(posed: Problem, x: np.ndarray) -> dict[str, float]:
    return {name: float(value) for name, value in posed.to_params(x).items()}
