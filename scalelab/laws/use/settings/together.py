"""Surfaces of single groups corrected by those of all: how lopsided a curve is, and how much it bends.

Legend: G groups, K columns of settings, T terms of a surface, M errors that groups share.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from scalelab.laws.use.settings.surface import Rows, Surface, column_pairs, fit_surface, quadratic_terms, seed_shifts

LEAST_TOGETHER = 4  # surfaces, for a common shape
SURE_BEND = 3.0  # a curvature must be so many of its standard errors: then the delta method holds
LOPSIDED = 0.1  # usual size of a cube's coefficient as a share of the square's, for logs: the prior's deviation
LEAST_USUAL = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnSurface:
    """A surface corrected by the other groups: `common` [T, M] is what its coefficients change by if M numbers
    that all groups share are wrong by one standard error each; the surface's covariance does not hold this."""

    surface: Surface
    common: np.ndarray


def share_shapes(surfaces: Sequence[Surface], rows: Sequence[Rows], variances: np.ndarray) -> list[DrawnSurface]:
    """Surfaces [G] fitted to `rows` [G] after a cube and a bend that all groups share; `variances` [G] of the noise.

    Fewer than LEAST_TOGETHER surfaces stay as they are, and so do those whose noise is not known.
    """
    if len(surfaces) < LEAST_TOGETHER or not np.all(variances > 0):
        return [_alone(each) for each in surfaces]
    straight, cubes = _take_off_cubes(surfaces, rows, variances)
    return [
        dataclasses.replace(drawn, common=np.column_stack([drawn.common, cube]))
        for drawn, cube in zip(_draw_together(straight, variances), cubes, strict=True)
    ]


def _take_off_cubes(
    surfaces: Sequence[Surface], rows: Sequence[Rows], variances: np.ndarray
) -> tuple[list[Surface], list[np.ndarray]]:
    """Surfaces less the cube of each column about the lowest point, with one coefficient for all groups.

    Losses rise faster on one side, the same in all groups; a parabola's lowest point is then off to the other. A prior
    of deviation LOPSIDED holds the cube where the settings tried are too close together to tell it. Returns the
    surfaces about their lowest points, and what their coefficients [T, K] change by for one standard error each.
    """
    centred, bends, left, residuals = [], [], [], []
    for surface, each in zip(surfaces, rows, strict=True):
        if surface.degree > 2:  # it has cubes of its own
            centred.append(surface)
            bends.append(np.zeros((len(surface.coefficients), each.x.shape[1])))
            left.append(np.zeros_like(each.x))
            residuals.append(surface.residual)
            continue
        at = np.clip(surface.at, each.x.min(axis=0), each.x.max(axis=0))
        here = fit_surface(each, at, surface.cross) or surface
        t = each.x - here.centre
        design = np.column_stack([quadratic_terms(t, surface.cross), seed_shifts(each)])
        centred.append(here)
        bends.append((np.linalg.pinv(design) @ t**3)[: len(here.coefficients)])
        left.append(t**3 - here.basis @ (here.basis.T @ t**3))
        residuals.append(here.residual)
    extra, noise = np.concatenate(left), float(np.median(variances))
    K = extra.shape[1]
    usual = LOPSIDED * np.median([each.coefficients[1 + K : 1 + 2 * K] for each in centred], axis=0)
    covariance = np.linalg.inv(extra.T @ extra / noise + np.diag(np.maximum(usual, LEAST_USUAL) ** -2.0))
    cube = covariance @ (extra.T @ np.concatenate(residuals)) / noise
    error = np.linalg.cholesky(covariance)
    straight = [
        dataclasses.replace(each, coefficients=each.coefficients - bend @ cube)
        for each, bend in zip(centred, bends, strict=True)
    ]
    return straight, [-bend @ error for bend in bends]


def _draw_together(surfaces: Sequence[Surface], variances: np.ndarray) -> list[DrawnSurface]:
    """Shrink the surfaces' bends towards their mean, the more the less the groups differ beyond their errors.

    The lowest point is a ratio of slope and bend; a bend that noise made too small would place it too far off, and
    weigh it too little. Empirical Bayes: each bend's prior has the mean and the spread of all groups (`variances` [G]
    of the noise).
    """
    joined = [not odd for odd in _odd_ones(surfaces, variances)]
    some = [(each, variance) for each, variance, use in zip(surfaces, variances, joined, strict=True) if use]
    K, priors = len(surfaces[0].centre), []
    for term in range(1 + K, 1 + K + _bends(K)):
        having = [(each, variance) for each, variance in some if len(each.coefficients) > term]
        if having:
            values = np.array([each.coefficients[term] for each, _ in having])
            own = np.array([variance * each.covariance[term, term] for each, variance in having])
            priors.append(_spread_of(values, own) if len(having) >= LEAST_TOGETHER else None)
    known = [prior for prior in priors if prior]
    if not known or len(known) < len(priors):
        return [_alone(each) for each in surfaces]
    return [
        _update(each, variance, np.array(known)) if use else _alone(each)
        for each, variance, use in zip(surfaces, variances, joined, strict=True)
    ]


def _alone(surface: Surface) -> DrawnSurface:
    return DrawnSurface(surface, np.zeros((len(surface.coefficients), _bends(len(surface.centre)))))


def _bends(K: int) -> int:
    """Number of squares and products."""
    return K + len(column_pairs(K, True))


def _odd_ones(surfaces: Sequence[Surface], variances: np.ndarray) -> np.ndarray:
    """Mask [G] of surfaces whose bend is not significant, but significantly below the median one."""
    K = len(surfaces[0].centre)
    squares = np.array([each.coefficients[1 + K : 1 + 2 * K] for each in surfaces])
    errors = np.sqrt(
        [v * np.diag(each.covariance)[1 + K : 1 + 2 * K] for each, v in zip(surfaces, variances, strict=True)]
    )
    less = np.median(squares, axis=0) - squares
    return np.any((squares < SURE_BEND * errors) & (less > SURE_BEND * errors), axis=1)


def _spread_of(values: np.ndarray, own: np.ndarray) -> tuple[float, float, float]:
    """(mean, variance, variance of the mean) of a prior for values with own variances, by moments."""
    spread = max(0.0, float(np.var(values, ddof=1) - own.mean()))
    weights = 1 / (own + spread)
    return float(weights @ values / weights.sum()), spread, float(1 / weights.sum())


def _update(surface: Surface, variance: float, priors: np.ndarray) -> DrawnSurface:
    """The surface after priors [terms, 3] of its bends: mean, variance, variance of the mean."""
    terms = np.arange(1 + len(surface.centre), len(surface.coefficients))
    mean, spread, of_mean = priors[: len(terms)].T
    held = surface.covariance[np.ix_(terms, terms)] + np.diag(spread / variance)
    gain = np.linalg.solve(held, surface.covariance[terms]).T  # [T, terms]
    drawn = dataclasses.replace(
        surface,
        coefficients=surface.coefficients + gain @ (mean - surface.coefficients[terms]),
        covariance=surface.covariance - gain @ surface.covariance[terms],
    )
    rest = _bends(len(surface.centre)) - len(terms)
    return DrawnSurface(drawn, np.pad(gain * np.sqrt(of_mean), ((0, 0), (0, rest))))
