"""Robust statistics of logged curves: flags above a running median, runs of flagged lines, slopes, level shifts."""

from typing import NamedTuple

import numpy as np

WINDOW = 64  # number of accepted lines that a line is compared with (stability.md 2.2: at least 64 of 128)
SIGMAS = 6.0  # the threshold of OLMo-core, Levanter and MaxText
LEAST_RISE = 0.02  # least rise of ln loss that is reported (stability.md 2.2)
TINY = 1e-30
MAD_TO_SIGMA = 1.4826  # of a normal distribution


class Flags(NamedTuple):
    """Flagged lines [n] (bool), and how far each line is above its window's median, in units of the threshold."""

    flagged: np.ndarray
    over: np.ndarray


def safe_log(values: np.ndarray) -> np.ndarray:
    """ln of values, limited below by TINY; values that are not finite are kept."""
    return np.log(np.maximum(values, TINY))


def flag_above(values: np.ndarray, least: float = LEAST_RISE, window: int = WINDOW, since: int = WINDOW // 2) -> Flags:
    """Flag values more than max(SIGMAS x robust sigma, `least`) above the median of the last accepted `window`.

    The window's own trend (a line by Theil-Sen on halves) is taken off, flagged and non-finite values never enter it,
    and nothing is flagged before `since` values were accepted.
    """
    flagged, over = np.zeros(len(values), bool), np.zeros(len(values))
    accepted: list[float] = []
    for i, value in enumerate(values):
        recent = np.array(accepted[-window:])
        if len(recent) >= since:
            centre, sigma = _level(recent)
            over[i] = (value - centre) / max(SIGMAS * sigma, least) if np.isfinite(value) else np.inf
            flagged[i] = over[i] > 1.0
        if np.isfinite(value) and not flagged[i]:
            accepted.append(float(value))
    return Flags(flagged, over)


def _level(recent: np.ndarray) -> tuple[float, float]:
    """Estimate (the next value's level, its robust sigma): later half's median, spread about both halves' medians."""
    half = len(recent) // 2
    parts = recent[:half], recent[half:]
    medians = [float(np.median(part)) for part in parts]
    residuals = np.concatenate([part - median for part, median in zip(parts, medians, strict=True)])
    return medians[1], MAD_TO_SIGMA * float(np.median(np.abs(residuals)))


def join_spans(flagged: np.ndarray, gap: int = 2) -> list[tuple[int, int]]:
    """Join flagged lines into spans (first, last), over at most `gap` lines between them."""
    runs: list[tuple[int, int]] = []
    for i in np.flatnonzero(flagged).tolist():
        if runs and i - runs[-1][1] <= gap + 1:
            runs[-1] = runs[-1][0], i
        else:
            runs.append((i, i))
    return runs


def smooth_values(values: np.ndarray, width: int = 9) -> np.ndarray:
    """Running median over `width` values, fewer at the ends."""
    half = width // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])


def fit_slope(x: np.ndarray, y: np.ndarray, most: int = 300) -> float:
    """Theil-Sen slope of y over x: the median slope of all pairs, of at most `most` evenly spread points."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), most)).astype(int))
    x, y = x[chosen], y[chosen]
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i]))) if len(i) else 0.0
