"""Estimate the final loss from finished siblings: a regression on the present loss and the family's law."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from scalelab.diagnose.watch.curve import Curve
from scalelab.errors import BadInput
from scalelab.laws import FitError, fit

Law = Callable[[float, float], float]  # (parameters, tokens) -> loss
LEAST_SPARE = 4  # least number of siblings beyond the regression's coefficients
LEAST_FOR_LAW = 10  # least number of siblings, of three sizes and three lengths, for a law of the family
SAME_SCHEDULE = 0.05  # largest mean distance of LR / peak at which two runs count as under the same schedule
WINDOW = 0.5  # share of the steps so far, the latest, over which the mean is taken (least error of three choices)
LAST_SHARE = 0.1  # last share of a run, over which the mean is its final training loss
# Siblings lie on their fitted law, a new run off it: this widens the interval to hold 90 % of left-out runs of the
# quickstart on seed 0 (checks/diagnosis/watch.py).
INFLATION = 1.15
# Standard deviation of ln loss for each factor of e in size or length beyond all siblings. In a grid that is run from
# small to large, whose poor trials were stopped, forecasts of larger runs were off by 0.05 to 0.09 a factor on seed 0.
BEYOND = 0.05


class Estimate(NamedTuple):
    """ln of a loss: mean, standard deviation of the forecast's error, degrees of freedom (Student's t)."""

    mean: float
    sd: float
    freedom: float = math.inf

    def interval(self, level: float) -> tuple[float, float]:
        """(low, high) of the loss itself at `level`."""
        half = float(special.stdtrit(self.freedom, (1 + level) / 2)) * self.sd
        return math.exp(self.mean - half), math.exp(self.mean + half)

    def chance_above(self, log_loss: float) -> float:
        """Probability of a loss above exp(log_loss)."""
        return float(special.stdtr(self.freedom, (self.mean - log_loss) / self.sd))


def choose_siblings(run: Curve, others: Sequence[Curve]) -> list[Curve]:
    """Choose the other finished runs on the same data whose schedule has the same shape."""
    shape = run.schedule_shape()
    return [
        other
        for other in others
        if other.folder != run.folder
        and other.val_loss
        and math.isfinite(other.val_loss)
        and other.family == run.family
        and float(np.abs(other.schedule_shape() - shape).mean()) <= SAME_SCHEDULE
    ]


def fit_family_law(siblings: Sequence[Curve]) -> Law | None:
    """Fit Hoffmann's law to the siblings' final losses; None if they are too few or too alike."""
    sizes, lengths = ([getattr(run, name) for run in siblings] for name in ("n_params", "n_tokens"))
    if len(siblings) < LEAST_FOR_LAW or min(len(set(sizes)), len(set(lengths))) < 3:
        return None
    table = {"N": sizes, "D": lengths, "loss": [run.val_loss for run in siblings]}
    try:
        fitted = fit(table, "chinchilla", bootstrap=0, identify=False)
    except (BadInput, FitError):
        return None
    return fitted.loss


def estimate_from_family(run: Curve, siblings: Sequence[Curve], law: Law | None, target: str) -> Estimate | None:
    """Estimate the final `target` (val_loss or train_loss) by least squares over siblings; None if they are too few.

    ln L = a + b m + c ln L_law, with m the mean ln training loss over the later half of the steps so far, at the same
    share of each run; a column that does not vary is left out.
    """
    low, high = (1 - WINDOW) * run.progress, run.progress
    X = np.array([_features(other, low, high, law) for other in siblings])
    x, y = _features(run, low, high, law), np.array([_final(other, target) for other in siblings])
    if not len(X) or not np.isfinite(x).all():
        return None
    good = np.isfinite(X).all(axis=1) & np.isfinite(y)
    X, y = X[good], y[good]
    varies = np.append(True, X[:, 1:].std(axis=0) > 1e-6) if len(X) else np.zeros(X.shape[1], bool)
    X, x = X[:, varies], x[varies]
    if len(X) < X.shape[1] + LEAST_SPARE:
        return None
    inverse = np.linalg.pinv(X.T @ X)
    beta = inverse @ X.T @ y
    freedom = len(y) - X.shape[1]
    spread = math.sqrt(float(np.sum((y - X @ beta) ** 2)) / freedom * float(1 + x @ inverse @ x))
    sd = math.hypot(
        INFLATION * spread,
        BEYOND * _overshoot(run, [other for other, usable in zip(siblings, good, strict=True) if usable]),
    )
    return Estimate(float(x @ beta), max(sd, 1e-6), freedom)


def _overshoot(run: Curve, siblings: Sequence[Curve]) -> float:
    """ln of the factor by which the run's parameters and tokens, together, exceed the siblings' range."""
    beyond = 0.0
    for name in ("n_params", "n_tokens"):
        values = [getattr(other, name) for other in siblings]
        here = getattr(run, name)
        beyond += max(0.0, math.log(here / max(values)), math.log(min(values) / here))
    return beyond


def sigmas_off_law(run: Curve, siblings: Sequence[Curve], law: Law | None) -> float | None:
    """Distance of the present loss from siblings of equal size and length at this share, in units of their scatter.

    Positive: worse than its law. None without a law or enough siblings.
    """
    if law is None:
        return None
    low, high = (1 - WINDOW) * run.progress, run.progress
    pairs = np.array([(_log_law(other, law), other.mean_log_loss(low, high)) for other in siblings])
    here = run.mean_log_loss(low, high)
    pairs = pairs[np.isfinite(pairs).all(axis=1)] if len(pairs) else pairs
    if len(pairs) < 2 + LEAST_SPARE or not math.isfinite(here) or pairs[:, 0].std() < 1e-6:
        return None
    slope, constant = np.polyfit(pairs[:, 0], pairs[:, 1], 1)
    residuals = pairs[:, 1] - slope * pairs[:, 0] - constant
    spread = math.sqrt(float(residuals @ residuals) / (len(pairs) - 2))
    return (here - slope * _log_law(run, law) - constant) / max(spread, 1e-6)


def final_train_loss(run: Curve) -> float:
    """Mean ln training loss over the last tenth of the whole run; nan before it."""
    return run.mean_log_loss(1 - LAST_SHARE, 1.0)


def _features(run: Curve, low: float, high: float, law: Law | None) -> np.ndarray:
    own = [1.0, run.mean_log_loss(low, high)]
    return np.array([*own, _log_law(run, law)] if law else own)


def _log_law(run: Curve, law: Law) -> float:
    loss = law(run.n_params, run.n_tokens)
    return math.log(loss) if loss > 0 else math.nan


def _final(run: Curve, target: str) -> float:
    return math.log(run.val_loss) if target == "val_loss" and run.val_loss else final_train_loss(run)
