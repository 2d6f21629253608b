"""Uncertainty of comparisons: Student intervals of differences, the luck of tuning and seeds, ranks with intervals.

Pure functions of losses (nats/token). A run that diverged has an infinite loss.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from scalelab.sweep.answer.differences import LEVEL, MeanDifference, mean_difference

__all__ = ("MeanDifference", "mean_difference")  # from the library, for readers of results


class FinalsRecord(NamedTuple):
    """The losses behind the final loss of one tuned method.

    `tuned` [T]: losses of its tuning trials. `finalists` [K]: which of these ran again, best first. `choosing` [K, S]:
    their losses on the seeds that decide which is taken. `reported` [K, R]: on the seeds whose mean is its loss.
    """

    tuned: Sequence[float]
    finalists: Sequence[int]
    choosing: Sequence[Sequence[float]]
    reported: Sequence[Sequence[float]]

    @property
    def chosen(self) -> int:
        """The finalist with the least mean on the choosing seeds; the best tuned one if no mean is finite."""
        means = np.mean(self.choosing, axis=1)
        return int(np.argmin(means))

    @property
    def loss(self) -> float:
        """The chosen finalist's mean over the reported seeds, which had no part in the choice (no winner's curse)."""
        return float(np.mean(self.reported[self.chosen]))


def final_losses(methods: Sequence[FinalsRecord], draws: int = 2000, seed: int = 0, level: float = LEVEL) -> np.ndarray:
    """Final losses [draws, methods] under other luck: trials, choosing seeds and reported seeds drawn with replacement.

    A draw repeats the whole procedure: of its trials the finalists among them are compared on its choosing seeds, and
    the winner's mean is taken over its reported seeds. All methods share a draw's seeds, so differences stay paired.
    Where a draw holds no finalist (about exp(-K)), its best trial counts at its tuned loss plus what the finalists'
    losses rose by on fresh seeds. Few seeds spread too little under a bootstrap: deviations over reported seeds are
    widened by sqrt(n/(n-1)) t/z at `level` (the expanded percentile interval of Hesterberg 2015, The American
    Statistician 69(4)).
    """
    random = np.random.default_rng(seed)
    n = len(methods[0].reported[0])
    n_choosing = len(methods[0].choosing[0])
    widen = math.sqrt(n / (n - 1)) * stats.t.ppf((1 + level) / 2, n - 1) / stats.norm.ppf((1 + level) / 2)
    choosing, reported = random.integers(n_choosing, size=(draws, n_choosing)), random.integers(n, size=(draws, n))
    columns = []
    for method in methods:
        tuned, finalists = np.asarray(method.tuned), np.asarray(method.finalists)
        trials = random.integers(len(tuned), size=(draws, len(tuned)))
        present = (trials[:, :, None] == finalists).any(axis=1)  # [draws, K]
        deciding = np.asarray(method.choosing)[:, choosing].mean(axis=2).T  # [draws, K]
        winners = np.where(present, deciding, np.inf).argmin(axis=1)
        means = np.asarray(method.reported).mean(axis=1)
        resampled = np.asarray(method.reported)[:, reported].mean(axis=2)  # [K, draws]
        with np.errstate(invalid="ignore"):  # a diverged seed: inf less inf
            wide = np.where(
                np.isfinite(means[:, None]), means[:, None] + widen * (resampled - means[:, None]), resampled
            )
            rises = means - tuned[finalists]
        rise = float(np.mean(rises[np.isfinite(rises)])) if np.isfinite(rises).any() else math.inf
        winner_losses = np.take_along_axis(wide, winners[None], axis=0)[0]
        columns.append(np.where(present.any(axis=1), winner_losses, tuned[trials].min(axis=1) + rise))
    return np.stack(columns, axis=1)


def percentile_interval(value: float, draws: ArrayLike, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of the draws, extended to `value` if that lies outside."""
    low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), method="nearest")
    return min(float(low), value), max(float(high), value)


def rank_losses(losses: ArrayLike) -> list[int]:
    """The rank of each loss, 1 for the least; equal losses in the given order, infinite ones last."""
    order = np.argsort(np.asarray(losses), kind="stable")
    places = np.empty(len(order), int)
    places[order] = np.arange(1, len(order) + 1)
    return places.tolist()


def rank_intervals(losses: ArrayLike, draws: ArrayLike, level: float = LEVEL) -> list[tuple[int, int]]:
    """For each of [methods] losses its ranks at `level`, from draws [draws, methods] of them under other luck.

    A rank is 1 plus the methods that are surely ahead, up to the number of methods less those surely behind, sure
    meaning that the largest of the studentised differences to all others leaves room for it (Mogstad, Romano, Shaikh &
    Wilhelm 2024, "Inference for Ranks", Review of Economic Studies 91, section 3). What is surely ahead has the lesser
    loss, so `rank_losses` is inside by construction, whatever the draws.
    """
    observed, drawn = np.asarray(losses, float), np.asarray(draws, float)
    finite = np.concatenate([observed[np.isfinite(observed)], drawn[np.isfinite(drawn)]])
    # In nats: a diverged run ranks behind all finished ones, by a finite step.
    worst = finite.max() + 1.0 if finite.size else 0.0
    observed, drawn = (np.where(np.isfinite(x), x, worst) for x in (observed, drawn))
    intervals = []
    for j in range(len(observed)):
        gaps = observed[j] - observed
        deviations = (drawn[:, [j]] - drawn) - gaps
        error = np.sqrt(np.mean(deviations**2, axis=0))
        largest = np.max(np.abs(deviations) / np.where(error > 0, error, 1.0), axis=1)
        reach = np.quantile(largest, level) * error
        intervals.append((1 + int(np.sum(gaps > reach)), len(observed) - int(np.sum(gaps < -reach))))
    return intervals
