"""The gradient noise scale from gradients of single sequences (McCandlish et al. 2018, appendix A.1).

For sequences of gradient g with mean G and covariance Sigma, the simple noise scale is tr Sigma / |G|^2 (equation 2.9):
the batch at which noise and gradient are equally large. The squared norm of a mean of n holds one n-th of the noise, so
|G|^2 and tr Sigma are taken from two batch sizes, here 1 and n (equation A.2). Both estimates are unbiased; their ratio
is taken last, because the mean of small samples' ratios is too large.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
LEAST_SEQUENCES = 8  # fewest sequences; with fewer the jackknife's own error is as large as the quantity


class NoiseScale(NamedTuple):
    """Estimates with standard errors: `trace` tr Sigma of a sequence's gradient, `signal` |G|^2; `scale` their ratio.

    `scale`, and the ends `low` and `high` of its interval, are in sequences; infinite where |G|^2 may be zero.
    """

    scale: float
    low: float
    high: float
    trace: float
    trace_error: float
    signal: float
    signal_error: float


def estimate_noise_scale(norms: np.ndarray, products: np.ndarray, level: float = LEVEL) -> NoiseScale:
    """Estimate from |g_i|^2 [n] and g_i . (sum of all g) [n] of independent sequences.

    Errors are the jackknife's over sequences, the interval of the ratio is Fieller's (1954), which has no upper end
    where |G|^2 is not told apart from zero.
    """
    n, norms, products = len(norms), np.asarray(norms, float), np.asarray(products, float)
    total = products.sum()  # |sum g|^2
    signal = (total - norms.sum()) / (n * (n - 1))
    trace = norms.mean() - signal
    without = (total - 2 * products + norms - (norms.sum() - norms)) / ((n - 1) * (n - 2))
    values = np.stack([(norms.sum() - norms) / (n - 1) - without, without])
    covariance = (n - 1) * np.cov(values, bias=True)
    scale = trace / signal if signal > 0 else math.inf
    low, high = ratio_interval(trace, signal, covariance, level)
    errors = np.sqrt(np.diag(covariance))
    return NoiseScale(*map(float, (scale, low, high, trace, errors[0], signal, errors[1])))


def ratio_interval(over: float, under: float, covariance: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Fieller's interval of over / under, both positive in truth; (0, inf) if nothing is known.

    It holds each r for which over - r under is within its own error of zero.
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    (var_over, shared), (_, var_under) = z**2 * covariance
    square, half, rest = under**2 - var_under, over * under - shared, over**2 - var_over
    if half**2 - square * rest < 0:
        return 0.0, math.inf
    root = math.sqrt(half**2 - square * rest)
    if square > 0 and under > 0:
        return max(0.0, (half - root) / square), (half + root) / square
    # Values beyond the positive root, if there is one: the denominator may be zero.
    return (max(0.0, (half - root) / square) if square < 0 < rest else 0.0), math.inf


def step_factor(batch: float, scale: float) -> float:
    """Steps to a loss over those of a batch without noise: 1 + B_noise / B (McCandlish et al. 2018, equation 2.7)."""
    return 1 + scale / batch


def token_factor(batch: float, scale: float) -> float:
    """Tokens to a loss over those of the smallest batch: 1 + B / B_noise (equations 2.7 and 2.11)."""
    return 1 + batch / scale if scale > 0 else math.inf
