"""Fit a run's own loss curve, with the effect of the learning rate: the forecast of a run without a family.

L = L_end (e + (1 - e) s1^-alpha) - c L_end s2, with s1 the sum of learning rates so far over that of all steps and s2
the annealing so far: each fall of the rate takes effect gradually, as in Tissue et al. 2024
(arXiv 2408.11029, eq. 1: L0 + A S1^-alpha - C S2). Amplitudes are shares of L_end, unlike their constants, so that one
prior serves losses of any size.
"""

import dataclasses
import itertools

import numpy as np
from scipy.optimize import least_squares

# Prior means of (e, alpha, c): those of the 31 whole curves of the quickstart on seed 0, split 0.
# Their scatter, 0.09, 0.05 and 0.02, is doubled, since another family has other constants.
PRIOR_MEAN = np.array([0.7, 0.33, 0.10])
PRIOR_SD = np.array([0.18, 0.1, 0.04])
FORGETTING = 0.1  # share of all steps over which annealing takes effect (Tissue: 1 / (1 - lambda), 1,000 steps)
SKIPPED_SHARE = 0.1  # share of the steps so far that is left out, like the warm-up: the power law does not hold there
CORRELATED = 2.0  # number of lines that count as one, as neighbours err alike (chosen on the quickstart's seed 0)


@dataclasses.dataclass(frozen=True)
class AnnealedFit:
    """`theta`: (ln L_end, e, alpha, c) with `covariance`; `s1`, `s2` [T] of the schedule; `noise`: sd of ln loss."""

    theta: np.ndarray
    covariance: np.ndarray
    s1: np.ndarray
    s2: np.ndarray
    noise: float

    def predict(self, s1: float, s2: float) -> tuple[float, float]:
        """Predict (ln loss, its standard deviation without batch noise) at a point of this or another schedule."""
        value = float(_log_loss(self.theta, s1, s2))
        gradient = np.array([_log_loss(self.theta + step, s1, s2) - value for step in 1e-5 * np.eye(4)]) / 1e-5
        return value, float(np.sqrt(gradient @ self.covariance @ gradient))


def sum_annealing(lr: np.ndarray, forgetting: float) -> np.ndarray:
    """Compute s2 [T] of learning rates [T]: 0 at the peak, near 1 some time after a fall to 0; `forgetting` in steps.

    Only falls count; the steps before the first peak are warm-up.
    """
    peak = max(float(lr.max()), 1e-30)
    falls = np.maximum(-np.diff(lr, prepend=lr[:1]), 0.0) / peak
    falls[: int(np.argmax(lr))] = 0.0
    decay = np.exp(-1.0 / max(forgetting, 1e-9))
    # Not scipy.signal's filter, whose import takes half a second of CPU.
    momentum = itertools.accumulate(falls.tolist(), lambda before, fall: fall + decay * before)
    return np.cumsum(list(momentum)) * (1 - decay)


def fit_annealed(steps: np.ndarray, losses: np.ndarray, lr: np.ndarray, warmup: int) -> AnnealedFit:
    """Fit the curve seen so far: losses [n] after `steps` [n], and the learning rates [T] of the whole schedule."""
    sums = np.cumsum(lr)
    s1, s2 = sums / sums[-1], sum_annealing(lr, FORGETTING * len(lr))
    used = (steps > max(warmup, SKIPPED_SHARE * steps[-1])) & np.isfinite(losses) & (losses > 0)
    used = used if used.sum() >= 3 else np.isfinite(losses) & (losses > 0)
    at, y = np.clip(steps[used] - 1, 0, len(lr) - 1).astype(int), np.log(losses[used])
    noise = _noise(y)

    def residuals(theta: np.ndarray) -> np.ndarray:
        misfit = (_log_loss(theta, s1[at], s2[at]) - y) / (noise * CORRELATED**0.5)
        return np.concatenate([misfit, (theta[1:] - PRIOR_MEAN) / PRIOR_SD])

    first = np.array([y[-max(1, len(y) // 5) :].mean(), *PRIOR_MEAN])
    best = least_squares(residuals, first, bounds=([-np.inf, 0.0, 0.02, 0.0], [np.inf, 0.98, 3.0, 0.6]))
    return AnnealedFit(best.x, np.linalg.inv(best.jac.T @ best.jac), s1, s2, noise)


def _noise(log_losses: np.ndarray) -> float:
    """Standard deviation of one line, from differences of neighbours, which are free of a trend."""
    if len(log_losses) < 3:
        return 0.1
    return max(float(np.std(np.diff(log_losses))) / 2**0.5, 1e-4)


def _log_loss(theta: np.ndarray, s1: np.ndarray | float, s2: np.ndarray | float) -> np.ndarray:
    log_end, e, alpha, c = theta
    shape = e + (1 - e) * np.maximum(s1, 1e-9) ** -alpha - c * np.asarray(s2)
    return log_end + np.log(np.maximum(shape, 1e-3))
