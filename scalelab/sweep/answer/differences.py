"""The difference of two settings' mean losses, with Student's interval: paired where their seeds agree."""

import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import special

LEVEL = 0.9


class MeanDifference(NamedTuple):
    """A mean difference, its standard error, and Student's interval with `freedom` degrees of freedom."""

    mean: float
    error: float
    low: float
    high: float
    freedom: float
    paired: bool

    @property
    def sigmas(self) -> float:
        """The signed difference in standard errors; infinite if the difference has no spread at all."""
        return self.mean / self.error if self.error else math.copysign(math.inf, self.mean) if self.mean else 0.0


def mean_difference(
    a: Mapping[Hashable, float], b: Mapping[Hashable, float], level: float = LEVEL
) -> MeanDifference | None:
    """Mean of `a` minus mean of `b` (losses by seed), with the interval at `level`; None if a loss is infinite.

    Paired if both have the same seeds, since one seed means the same first weights and batches; else Welch's, with
    Satterthwaite's degrees of freedom. The interval is about these two settings; their choice adds uncertainty that is
    not in it. ValueError if either side has fewer than two seeds.
    """
    if min(len(a), len(b)) < 2:
        raise ValueError(f"{len(a)} and {len(b)} seeds: a difference needs two on each side, or it has no spread")
    if not all(map(math.isfinite, (*a.values(), *b.values()))):
        return None
    paired = set(a) == set(b)
    if paired:
        numbers = _paired(np.array([a[seed] - b[seed] for seed in a]))
    else:
        numbers = _welch(*(np.array(list(side.values())) for side in (a, b)))
    mean, error, freedom = map(float, numbers)
    half_width = float(special.stdtrit(freedom, (1 + level) / 2)) * error
    return MeanDifference(mean, error, mean - half_width, mean + half_width, freedom, paired)


def _paired(differences: np.ndarray) -> tuple[float, float, float]:
    """(mean, standard error, degrees of freedom)."""
    n = len(differences)
    return differences.mean(), math.sqrt(differences.var(ddof=1) / n), n - 1.0


def _welch(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """(difference of means, standard error, Satterthwaite's degrees of freedom)."""
    parts = [side.var(ddof=1) / len(side) for side in (a, b)]
    variance = sum(parts)
    terms = [part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True)]
    freedom = variance**2 / sum(terms) if variance else len(a) + len(b) - 2.0
    return a.mean() - b.mean(), math.sqrt(variance), freedom
