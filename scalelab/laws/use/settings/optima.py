"""Best settings of each group of runs: the lowest point of a surface through its runs, with a standard error.

All groups share three choices: how far from the lowest point a setting may lie, how noisy a run's loss is, and whether
what the surface misses is more than the noise of seeds.
Legend: G groups, P rows of a group, K columns of settings.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import optimize, special

from scalelab.laws.use.settings import surface as surface_lib
from scalelab.laws.use.settings import wide
from scalelab.laws.use.settings.surface import Rows, Surface, fit_surface
from scalelab.laws.use.settings.together import SURE_BEND, DrawnSurface, share_shapes

WINDOWS = (np.inf, 4.0, 3.0, 2.0, 1.5, 1.0)  # octaves from the lowest point: the widest in which the form holds counts
ROUNDS = 4  # of moving a window to the lowest point inside it
MISFIT = 0.1  # p-value below which a window is too wide
MOST_SHARED = 1e6  # degrees of freedom from which groups share one noise
LEAST_VALUES = 3  # of each column, for an optimum
Status = Literal["used", "edge", "flat", "few"]


@dataclasses.dataclass(frozen=True, eq=False)
class GroupOptimum:
    """The best settings of one group, `at` [K] in logs, and the log loss there.

    `status`: "used", "edge" (the optimum lies at or beyond an end of what was tried), "flat" (no lowest point that
    noise could not make) or "few" (too few settings). `why` says it in words. `covariance` [K, K] of `at`; None if
    nothing tells the noise. `df`: degrees of freedom of the noise. `ends` [K]: -1 or 1 where the optimum is at the
    lower or upper end, else 0. `tried` [K, 2]: the least and the largest log of each column.
    """

    status: Status
    why: str
    runs: int
    settings: int
    seeds: int
    tried: np.ndarray
    ends: np.ndarray
    at: np.ndarray | None = None
    value: float | None = None
    own: np.ndarray | None = None
    common: np.ndarray | None = None
    df: float = np.nan
    surface: Surface | None = None
    inside: np.ndarray | None = None

    @property
    def own_errors(self) -> np.ndarray | None:
        """Standard errors [K] of `at`, without the error that all groups share."""
        return None if self.own is None else np.sqrt(np.diag(self.own))

    @property
    def standard_errors(self) -> np.ndarray | None:
        """Standard errors [K] of `at`."""
        return (
            None
            if self.own is None or self.common is None
            else np.sqrt(np.diag(self.own + self.common @ self.common.T))
        )


@dataclasses.dataclass(frozen=True)
class Noise:
    """What groups share: relative noise `sd` of one run, its prior degrees of freedom, the window, the tests.

    `window`: octaves (inf: all settings count). `form_p`: p-value of what surfaces in that window miss (nan: too few
    settings to tell). `share`: of the loss, lost by settings that still count where the form is the wider one of
    `wide.py`, without a window. `seeds_only`: False if the surfaces miss more than seeds explain, so that the error is
    taken from their residuals alone.
    """

    sd: float
    prior_df: float
    window: np.ndarray
    form_p: np.ndarray
    seeds_only: bool
    share: float | None = None


def find_optima(groups: Sequence[Rows], names: Sequence[str]) -> tuple[list[GroupOptimum], Noise]:
    """Find the best settings of every group; `names` [K] of the columns, for `why`."""
    usable = [_too_few(rows, names) == "" for rows in groups]
    some = [rows for rows, use in zip(groups, usable, strict=True) if use]
    chosen, window, form_p = _choose_window(some, len(names))
    wider = wide.choose_share(some, _Placed) if (form_p * len(names) < MISFIT).any() else None
    if wider:
        chosen, window, form_p = list(wider[0]), np.full(len(names), np.inf), np.full(len(names), np.nan)
    rest = iter(chosen)
    placed = [next(rest) if use else None for use in usable]
    variances, noise = _share_noise([each for each in placed if each], window, form_p)
    noise = dataclasses.replace(noise, share=wider[1] if wider else None)
    fitted = [each for each in placed if each]
    together = share_shapes(
        [each.surface for each in fitted], [each.rows for each in fitted], np.array([v for v, _ in variances])
    )
    optima, shared = [], iter(zip(together, variances, strict=True))
    for rows, place in zip(groups, placed, strict=True):
        optima.append(_judge(rows, place, *next(shared), names) if place else _few(rows, names))
    return optima, noise


@dataclasses.dataclass(frozen=True, eq=False)
class _Placed:
    """A surface and the rows [P] that it was fitted to."""

    surface: Surface
    inside: np.ndarray
    rows: Rows


def _choose_window(groups: Sequence[Rows], K: int) -> tuple[list[_Placed | None], np.ndarray, np.ndarray]:
    """The widest window [K] within which all groups together show nothing that a quadratic surface lacks.

    Where they do, the column that shows most is narrowed. Returns (the surfaces in it, the window, p [K]).
    """
    steps = np.zeros(K, int)
    while True:
        window = np.take(WINDOWS, steps)
        placed = [_place(rows, window) for rows in groups]
        p = _form_p([each for each in placed if each], K)
        suspects = np.where((p * K < MISFIT) & (steps + 1 < len(WINDOWS)), p, np.inf)
        if not np.isfinite(suspects).any():
            return placed, window, p
        steps[suspects.argmin()] += 1


def _place(rows: Rows, window: np.ndarray) -> _Placed | None:
    """Fit a surface within the window [K] around its own lowest point."""
    means = np.bincount(rows.setting, rows.y) / np.bincount(rows.setting)
    centre, placed = rows.x[rows.setting == means.argmin()][0], None
    low, high = rows.x.min(axis=0), rows.x.max(axis=0)
    for _ in range(ROUNDS if np.isfinite(window).any() else 1):
        inside = _near(rows.x, centre, window)
        inner = rows.take(inside)
        surface = None
        for cross in (True, False) if rows.x.shape[1] > 1 else (False,):
            surface = surface or _fit_with_spare(inner, centre, cross)
        if surface is None:
            return placed
        placed = _Placed(surface, inside, inner)
        if not surface.is_convex or np.allclose(np.clip(surface.at, low, high), centre, atol=1e-6):
            break
        centre = np.clip(surface.at, low, high)
    return placed


def _fit_with_spare(rows: Rows, centre: np.ndarray, cross: bool) -> Surface | None:
    """A surface; with products only where a setting is left to check it."""
    surface = fit_surface(rows, centre, cross)
    return None if surface and cross and surface.df < 1 else surface


def _near(x: np.ndarray, centre: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Rows [P] within the window [K] of each column: at least to the third nearest of the column's values."""
    inside = np.ones(len(x), bool)
    for column, middle, octaves in zip(x.T, centre, window, strict=True):
        away = np.abs(np.unique(np.round(column, 9)) - middle)
        reach = max(octaves * np.log(2), np.sort(away)[LEAST_VALUES - 1])
        inside &= np.abs(column - middle) <= reach + 1e-6
    return inside


def _form_p(placed: Sequence[_Placed], K: int) -> np.ndarray:
    """p-values [K] of cubes and fourth powers of each column: of one coefficient for all groups, and of one for each;
    the lesser, twice. nan where too few degrees of freedom are left.
    """
    partials = [
        [_partial(surface_lib.higher_terms(each.rows.x - each.surface.at, k), each.surface) for k in range(K)]
        for each in placed
    ]
    residuals = [each.surface.residual for each in placed]
    return np.array([_column_p([each[k] for each in partials], residuals, placed) for k in range(K)])


def _partial(extra: np.ndarray, surface: Surface) -> np.ndarray:
    """What of `extra` [P, E] the surface does not hold."""
    return extra - surface.basis @ (surface.basis.T @ extra)


def _column_p(extras: Sequence[np.ndarray], residuals: Sequence[np.ndarray], placed: Sequence[_Placed]) -> float:
    own_square = own_df = rest_square = rest_df = 0.0
    for extra, residual, each in zip(extras, residuals, placed, strict=True):
        basis, size, _ = np.linalg.svd(extra, full_matrices=False)
        along = basis[:, size > 1e-7 * max(1.0, size[0])].T @ residual
        own_square, own_df = own_square + along @ along, own_df + len(along)
        rest_square += max(residual @ residual - along @ along, 0.0)
        rest_df += each.surface.df - len(along)
    if not own_df or rest_df < 2 or not rest_square > 0:
        return np.nan
    noise = rest_square / rest_df
    p_own = special.fdtrc(own_df, rest_df, own_square / own_df / noise)
    extra, residual = np.concatenate(extras), np.concatenate(residuals)
    fitted, _, rank, _ = np.linalg.lstsq(extra, residual)
    square = max(residual @ residual - np.sum((residual - extra @ fitted) ** 2), 0.0)
    p_shared = special.fdtrc(max(rank, 1), rest_df, square / max(rank, 1) / noise)
    return float(min(1.0, 2 * min(p_own, p_shared)))


def _share_noise(
    placed: Sequence[_Placed], window: np.ndarray, form_p: np.ndarray
) -> tuple[list[tuple[float, float]], Noise]:
    """The noise variance of a run in each group with its degrees of freedom, and what groups share.

    Each group's variance is drawn towards that of all, the more the less the groups differ (Smyth 2004, Statistical
    Applications in Genetics and Molecular Biology 3(1), "moderated" variances).
    """
    squares = np.array([each.surface.residual @ each.surface.residual for each in placed])
    df = np.array([float(each.surface.df) for each in placed])
    pure = np.array([surface_lib.pure_error(each.rows) for each in placed]).reshape(-1, 2)
    # Never below zero, as it would be by rounding where the seeds' means lie on the surface: fdtrc would be nan there.
    missed, missed_df = max(squares.sum() - pure[:, 0].sum(), 0.0), df.sum() - pure[:, 1].sum()
    seeds_only = True
    if pure[:, 1].sum() > 0 and missed_df > 0 and pure[:, 0].sum() > 0:
        ratio = missed / missed_df / (pure[:, 0].sum() / pure[:, 1].sum())
        seeds_only = bool(special.fdtrc(missed_df, pure[:, 1].sum(), ratio) > MISFIT)
    if not seeds_only:
        squares, df = np.maximum(squares - pure[:, 0], 0.0), df - pure[:, 1]
    if not df.sum():
        return [(np.nan, 0.0)] * len(placed), Noise(np.nan, 0.0, window, form_p, seeds_only)
    prior, common = _prior_noise(squares, df)
    if np.isinf(prior):
        variances = [(common, float(df.sum()))] * len(placed)
    else:
        variances = [((prior * common + s) / (prior + d), prior + d) for s, d in zip(squares, df, strict=True)]
    return variances, Noise(float(np.sqrt(squares.sum() / df.sum())), float(prior), window, form_p, seeds_only)


def _prior_noise(squares: np.ndarray, df: np.ndarray) -> tuple[float, float]:
    """Prior (degrees of freedom, variance) of the groups' variances, by the moments of their logs (Smyth 2004, 6.2)."""
    known = (df > 0) & (squares > 0)
    pooled = float(squares.sum() / df.sum())
    if known.sum() < 3:
        return np.inf, pooled
    half = df[known] / 2
    logs = np.log(squares[known] / df[known]) - special.digamma(half) + np.log(half)
    spread = float(logs.var(ddof=1) - special.polygamma(1, half).mean())
    if spread <= special.polygamma(1, MOST_SHARED / 2):
        return np.inf, pooled
    prior = 2 * optimize.brentq(lambda half: special.polygamma(1, half) - spread, 1e-3, MOST_SHARED)
    return prior, float(np.exp(logs.mean() + special.digamma(prior / 2) - np.log(prior / 2)))


def _judge(
    rows: Rows, placed: _Placed, drawn: DrawnSurface, noise: tuple[float, float], names: Sequence[str]
) -> GroupOptimum:
    """The verdict on one group's surface; `noise`: variance of a run, its degrees of freedom."""
    surface, (variance, df), plain = drawn.surface, noise, _few(rows, names)
    plain = dataclasses.replace(plain, surface=surface, inside=placed.inside, df=df)
    if not surface.is_convex:
        return dataclasses.replace(plain, status="flat", why="the losses do not bend upwards")
    low, high = plain.tried.T
    ends = np.where(surface.at >= high, 1, np.where(surface.at <= low, -1, 0))
    slopes = surface.vertex_slopes(np.clip(surface.at, low, high))
    own = None if np.isnan(variance) else variance * slopes @ surface.covariance @ slopes.T
    optimum = dataclasses.replace(
        plain, at=surface.at, value=surface.height(surface.at), ends=ends, own=own, common=slopes @ drawn.common
    )
    bends = variance * surface.covariance + drawn.common @ drawn.common.T
    if variance > 0 and surface.curvature_ratio(bends) < SURE_BEND:
        return dataclasses.replace(optimum, status="flat", why="the losses bend too little for their noise")
    sides = [
        f"its best {name} lies at the {'largest' if end > 0 else 'smallest'} tried or beyond"
        for name, end in zip(names, ends, strict=True)
        if end
    ]
    return dataclasses.replace(optimum, status="edge" if sides else "used", why=" and ".join(sides))


def _few(rows: Rows, names: Sequence[str]) -> GroupOptimum:
    """The optimum of a group before any fit: its counts and ranges, of status "few"."""
    why = _too_few(rows, names) or "the settings tried determine no surface"
    tried = np.stack([rows.x.min(axis=0), rows.x.max(axis=0)], axis=1)
    seeds = len(np.unique(rows.seed))
    return GroupOptimum("few", why, len(rows.y), _count_settings(rows), seeds, tried, np.zeros(len(names), int))


def _too_few(rows: Rows, names: Sequence[str]) -> str:
    """Why these rows have no optimum whatever their losses; "" if they may have one."""
    for name, column in zip(names, rows.x.T, strict=True):
        count = len(np.unique(np.round(column, 9)))
        if count < LEAST_VALUES:
            return f"{count} value{'s' * (count != 1)} of {name}; an optimum needs {LEAST_VALUES}"
    settings, terms = _count_settings(rows), count_terms(rows.x.shape[1])
    return f"{settings} settings; a surface needs {terms}" if settings < terms else ""


def count_terms(K: int) -> int:
    """The terms of a surface over K columns, without products: so many settings determine it."""
    return 1 + 2 * K


def _count_settings(rows: Rows) -> int:
    return int(rows.setting.max()) + 1
