"""A wider form for dense grids, whose losses follow no parabola even near their lowest point: a quartic surface.

A dense grid with little noise shows what a parabola misses in any window, however small. So cubes and fourth powers are
fitted beside the quadratic surface, and a setting counts the less, the more of the loss it loses (local polynomials:
Fan & Gijbels 1996). The larger the share that still counts, the more settings tell the lowest point, and the more the
form misses; what it misses counts as noise, so that the optima's errors hold it.
Legend: G groups, P rows of a group, K columns of settings.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from scalelab.laws.use.settings.surface import Rows, Surface, fit_surface, quadratic_terms, wide_terms

DEGREES = (4, 3, 2)  # the highest that leaves SPARE settings for each of its terms
SPARE = 1.3
SHARES = (0.05, 0.03, 0.02, 0.015, 0.01)  # of the loss, lost beside the best setting: the deviation of the weights
AS_GOOD = 1.2  # the widest share whose errors are at most this much above the least counts
LEAST_WEIGHT = 1e-3
ROUNDS = 30  # of moving the centre to the lowest point
LONGEST = 0.5  # step, in logs
LEVEL = 1e-3  # least curvature of a step, in log loss
Placed = TypeVar("Placed")
_Fit = tuple[Surface, np.ndarray]


def choose_share(
    groups: Sequence[Rows], make: Callable[[Surface, np.ndarray, Rows], Placed]
) -> tuple[list[Placed], float] | None:
    """(the groups' surfaces, made by `make`, the share of the loss that they hold); None if some group has none."""
    tried = []
    for share in SHARES:
        fits = [_place(rows, share) for rows in groups]
        whole = [each for each in fits if each and each[0].is_convex]
        if len(whole) == len(groups) > 0:
            tried.append((share, whole, float(np.mean([_log_error(surface) for surface, _ in whole]))))
    if not tried:
        return None
    least = min(error for _, _, error in tried)
    share, whole, _ = next(each for each in tried if each[2] <= least + np.log(AS_GOOD))
    made = [make(surface, inside, rows.take(inside)) for rows, (surface, inside) in zip(groups, whole, strict=True)]
    return made, share


def _place(rows: Rows, share: float) -> _Fit | None:
    """(a surface centred at its lowest point, the rows that it is fitted to), by weights for this share of the loss."""
    means = np.bincount(rows.setting, rows.y) / np.bincount(rows.setting)
    weight = np.exp(-(((means - means.min()) / share) ** 2) / 2)
    inside = weight[rows.setting] > LEAST_WEIGHT
    inner, K, weights = rows.take(inside), rows.x.shape[1], weight[rows.setting][inside]
    settings = weight.sum() ** 2 / (weight @ weight)  # so many that count in full tell as much
    fitting = [degree for degree in DEGREES if settings >= SPARE * _term_count(rows.x[:1], degree)]
    if not fitting:
        return None
    centre, low, high = rows.x[rows.setting == means.argmin()][0], rows.x.min(axis=0), rows.x.max(axis=0)
    surface: Surface | None = None
    for _ in range(ROUNDS):
        surface = fit_surface(inner, centre, K > 1, fitting[0], weights)
        if surface is None or surface.df < 1:
            return None
        bends, axes = np.linalg.eigh(surface.hessian)
        slope = surface.coefficients[1 : 1 + K]
        step = -axes @ ((axes.T @ slope) / np.maximum(np.abs(bends), LEVEL))
        step = np.clip(centre + np.clip(step, -LONGEST, LONGEST), low, high) - centre
        if np.abs(step).max() < 1e-6:
            break
        centre = centre + step
    return (surface, inside) if surface else None


def _term_count(x: np.ndarray, degree: int) -> int:
    """Number of terms of a surface of the columns of x [P, K]."""
    return quadratic_terms(x, x.shape[1] > 1).shape[1] + wide_terms(x, degree).shape[1]


def _log_error(surface: Surface) -> float:
    """Mean log of the lowest point's standard errors, from the surface's own residuals."""
    slopes = surface.vertex_slopes(surface.centre)
    variance = surface.residual @ surface.residual / surface.df * slopes @ surface.covariance @ slopes.T
    return float(0.5 * np.mean(np.log(np.diag(variance))))
