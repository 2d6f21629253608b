"""What is known in closed form: a regression's noise scale, and SGD on a noisy quadratic.

The noisy quadratic (Zhang et al. 2019, section 3) has curvatures h_i = 1/i, and noise of variance c_i = h_i in the
gradient of one example; its expected loss after any number of steps is a sum of powers. All in float64.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.diagnose.noise.estimate import estimate_noise_scale

REGRESSION_DIMENSIONS, LABEL_VARIANCE = 50, 0.1728
DIMENSIONS = 1000
CURVATURES = 1 / np.arange(1, DIMENSIONS + 1)
TARGET_SHARE = 0.05  # of the loss at the start
RATES = np.geomspace(5e-3, 1.999, 240)  # gradient descent diverges at 2
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 16384)
MOST_STEPS = 2**20


class Hyperbola(NamedTuple):
    """(S / S_min - 1) (E / E_min - 1) = 1 (McCandlish et al. 2018, equation 2.11), in steps and examples.

    `critical` = E_min / S_min; `errors`: relative standard errors of S_min and critical; `worst`: largest residual of
    the logarithm of a number of steps.
    """

    steps: float
    critical: float
    errors: tuple[float, float]
    worst: float


def true_noise_scale() -> float:
    """tr Sigma / |G|^2 of y = x . w + e at distance 1 from w: (d (1 + s^2) + 1) / 1 with x ~ N(0, I)."""
    return REGRESSION_DIMENSIONS * (1 + LABEL_VARIANCE) + 1


def draw_gradients(rng: np.random.Generator, n: int) -> np.ndarray:
    """Gradients [n, d] of the squared error / 2 of single examples."""
    x = rng.standard_normal((n, REGRESSION_DIMENSIONS))
    away = x.sum(axis=1) / REGRESSION_DIMENSIONS**0.5
    return x * (away - LABEL_VARIANCE**0.5 * rng.standard_normal(n))[:, None]


def pair_estimates(rng: np.random.Generator, small: int, big: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """(tr Sigma, |G|^2) [pairs] of pairs of batches of two sizes (McCandlish et al. 2018, appendix A.1)."""
    norms = np.array([[(draw_gradients(rng, n).mean(axis=0) ** 2).sum() for n in (small, big)] for _ in range(pairs)]).T
    return (norms[0] - norms[1]) / (1 / small - 1 / big), (big * norms[1] - small * norms[0]) / (big - small)


def norm_variance(n: int) -> float:
    """The variance of |mean of n gradients|^2, exactly; moments of polynomials by Gauss-Hermite quadrature.

    With e = g - G it is 4 E (G.e)^2 / n + 4 E (G.e)|e|^2 / n^2 + 2 (n - 1) tr Sigma^2 / n^3 + var |e|^2 / n^3.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(10)
    along, noise = np.meshgrid(nodes, LABEL_VARIANCE**0.5 * nodes)  # x . G, and the label's error
    mass, across = np.outer(weights, weights) / weights.sum() ** 2, REGRESSION_DIMENSIONS - 1
    error = along - noise
    forward = along * error - 1  # G . e; |e|^2 is its square plus error^2 times a chi^2 of `across` dimensions
    square = forward**2 + across * error**2
    fourth = np.sum(mass * (square**2 + 2 * across * error**4)) - true_noise_scale() ** 2
    level = 1 + LABEL_VARIANCE  # Sigma = level I + G G', |G| = 1
    traced = REGRESSION_DIMENSIONS * level**2 + 2 * level + 1
    first, second = np.sum(mass * forward**2), np.sum(mass * forward * square)
    return float(4 * first / n + 4 * second / n**2 + 2 * (n - 1) * traced / n**3 + fourth / n**3)


def expected_bias(small: int, big: int) -> float:
    """Relative bias of the mean of ratios, to second order: var |G|^2 / |G|^4 - cov(|G|^2, tr Sigma) / product.

    Higher orders add to it: an estimate of |G|^2 may come near zero, so the mean of ratios has no limit at all.
    """
    spread = {n: norm_variance(n) for n in (small, big)}
    variance = (big**2 * spread[big] + small**2 * spread[small]) / (big - small) ** 2
    shared = -(small * spread[small] + big * spread[big]) / ((big - small) * (1 / small - 1 / big))
    return variance - shared / true_noise_scale()


def measure_regression(small: int = 32, big: int = 512, pairs: int = 2000, repeats: int = 400) -> dict[str, float]:
    """Both ways of averaging pairs, and how often the library's interval of 256 examples holds the truth."""
    rng = np.random.default_rng(0)
    traces, signals = pair_estimates(rng, small, big, pairs)
    spread = np.std(traces - true_noise_scale() * signals) / signals.mean() / pairs**0.5  # of the ratio of averages
    held = []
    for _ in range(repeats):
        gradients = draw_gradients(rng, 256)
        result = estimate_noise_scale((gradients**2).sum(axis=1), gradients @ gradients.sum(axis=0))
        held.append(result.low <= true_noise_scale() <= result.high)
    return {
        "ratio_of_averages": float(traces.mean() / signals.mean()), "error": float(spread),
        "bias": float((traces / signals).mean() / true_noise_scale() - 1), "expected_bias": expected_bias(small, big),
        "coverage": float(np.mean(held)), "repeats": repeats,
    }  # fmt: skip


def variances(rate: float, batch: float, steps: float) -> np.ndarray:
    """E theta_i^2 [D] after SGD steps from 1: each shrinks by (1 - rate h)^2 and gains rate^2 c / batch."""
    shrink = (1 - rate * CURVATURES) ** 2
    rest = rate**2 * CURVATURES / batch / (1 - shrink)
    return rest + shrink**steps * (1 - rest)


def relative_loss(rate: float, batch: float, steps: float) -> float:
    """The expected loss over that at the start."""
    return float(CURVATURES @ variances(rate, batch, steps) / CURVATURES.sum())


def count_steps(rate: float, batch: float) -> float:
    """Steps until the expected loss is TARGET_SHARE of the start's; inf if it never is."""
    if relative_loss(rate, batch, MOST_STEPS) > TARGET_SHARE:
        return np.inf
    low, high = 0, MOST_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if relative_loss(rate, batch, middle) > TARGET_SHARE else (low, middle)
    return high


def best_settings(batches: Sequence[int] = BATCHES) -> list[dict[str, float]]:
    """For each batch the fewest steps, and the rate that takes them (the middle one where several do)."""
    rows = []
    for batch in batches:
        steps = np.array([count_steps(rate, batch) for rate in RATES])
        best = np.flatnonzero(steps == steps.min())
        rows.append({"batch": batch, "steps": float(steps.min()), "rate": float(RATES[best[len(best) // 2]])})
    return rows


def simulate_loss(rate: float, batch: int, steps: int, runs: int) -> tuple[float, float]:
    """(mean loss over that at the start, its standard error) of SGD with drawn noise, from theta ~ N(0, I)."""
    rng = np.random.default_rng(batch)
    theta = rng.standard_normal((runs, DIMENSIONS))
    spread = np.sqrt(CURVATURES / batch)
    for _ in range(steps):
        theta -= rate * (CURVATURES * theta + spread * rng.standard_normal(theta.shape))
    losses = theta**2 @ CURVATURES / CURVATURES.sum()
    return float(losses.mean()), float(losses.std(ddof=1) / runs**0.5)


def fit_hyperbola(batches: Sequence[float], steps: Sequence[float]) -> Hyperbola:
    """Fit S = S_min (1 + B_crit / B) by least squares of the logarithms."""
    from scipy.optimize import least_squares

    size, count = np.asarray(batches, float), np.log(steps)
    start = [float(count.min()), float(np.log(np.exp(count - count.min()).max() * size.min()))]
    fit: Any = least_squares(lambda p: p[0] + np.log1p(np.exp(p[1]) / size) - count, start)
    scatter = (fit.fun**2).sum() / max(len(size) - 2, 1)
    errors = np.sqrt(scatter * np.diag(np.linalg.inv(fit.jac.T @ fit.jac)))
    least, critical = np.exp(fit.x)
    return Hyperbola(float(least), float(critical), (float(errors[0]), float(errors[1])), float(np.abs(fit.fun).max()))


def fit_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
