"""Quadratic surfaces of log loss over the logs of settings, by least squares: their lowest point with its error.

Legend: P rows (runs), S settings (rows of one setting differ in their seed), K columns of settings, T terms.
"""

import dataclasses
import functools
import itertools

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Runs of one group: `x` [P, K] logs of settings, `y` [P] log losses, `seed` [P] labels of seeds (0 if unknown)."""

    x: np.ndarray
    y: np.ndarray
    seed: np.ndarray

    @functools.cached_property
    def setting(self) -> np.ndarray:
        """The label [P] of each run's setting, from 0."""
        label = np.zeros(len(self.y), int)
        for column in self.x.T:
            values, which = np.unique(np.round(column, 9), return_inverse=True)
            label = np.unique(label * len(values) + which, return_inverse=True)[1]
        return label

    def take(self, chosen: np.ndarray) -> "Rows":
        """The rows where `chosen` [P] is true."""
        return Rows(self.x[chosen], self.y[chosen], self.seed[chosen])


@dataclasses.dataclass(frozen=True, eq=False)
class Surface:
    """A fitted surface a + g't + t'Ht/2, t = x - centre.

    `coefficients` [T]: a, g, the squares' and, where `cross`, the products'; `covariance` [T, T] where the noise has
    variance 1. `residual` [P] and `basis` [P, B] (orthonormal, of all that was fitted) serve tests. `degree`: above 2
    where `wide_terms` were fitted beside these.
    """

    centre: np.ndarray
    coefficients: np.ndarray
    covariance: np.ndarray
    cross: bool
    residual: np.ndarray
    basis: np.ndarray
    degree: int = 2

    @property
    def df(self) -> int:
        """Degrees of freedom of the residuals."""
        return len(self.residual) - self.basis.shape[1]

    @functools.cached_property
    def hessian(self) -> np.ndarray:
        """H [K, K]."""
        K = len(self.centre)
        hessian = np.diag(2 * self.coefficients[1 + K : 1 + 2 * K])
        for (i, j), product in zip(column_pairs(K, self.cross), self.coefficients[1 + 2 * K :], strict=True):
            hessian[i, j] = hessian[j, i] = product
        return hessian

    @functools.cached_property
    def at(self) -> np.ndarray:
        """Where the gradient is zero [K]."""
        return self.centre - np.linalg.lstsq(self.hessian, self.coefficients[1 : 1 + len(self.centre)])[0]

    def height(self, at: np.ndarray) -> float:
        """The surface at a point [K]."""
        return float(quadratic_terms((at - self.centre)[None], self.cross)[0] @ self.coefficients)

    @property
    def is_convex(self) -> bool:
        """Whether it has a lowest point."""
        return bool(np.linalg.eigvalsh(self.hessian).min() > 0)

    def vertex_slopes(self, at: np.ndarray) -> np.ndarray:
        """Derivatives [K, T] of the vertex by the coefficients, if it is `at` [K]: the delta method."""
        offset = at - self.centre
        by_square = np.diag(2 * offset)
        by_product = [
            _unit(i, len(offset)) * offset[j] + _unit(j, len(offset)) * offset[i]
            for i, j in column_pairs(len(offset), self.cross)
        ]
        columns = np.column_stack([0 * offset, np.eye(len(offset)), by_square, *by_product])
        return -np.linalg.solve(self.hessian, columns)

    def curvature_ratio(self, covariance: np.ndarray) -> float:
        """The least curvature over its standard error, over the axes of the surface; `covariance` [T, T]."""
        bends, axes = np.linalg.eigh(self.hessian)
        K = len(bends)
        parts = [[2 * axes[k] ** 2 for k in range(K)], [2 * axes[i] * axes[j] for i, j in column_pairs(K, self.cross)]]
        weights = np.array([part for half in parts for part in half])  # [squares and products, axes]
        variance = np.einsum("ta,ts,sa->a", weights, covariance[1 + K :, 1 + K :], weights)
        return float((bends / np.sqrt(np.maximum(variance, 1e-300))).min())


def fit_surface(
    rows: Rows, centre: np.ndarray, cross: bool, degree: int = 2, weights: np.ndarray | None = None
) -> Surface | None:
    """Fit a surface by least squares, with a shift for each seed; None where the rows do not determine it.

    `degree`: above 2, `wide_terms` about `centre` are fitted, too. `weights` [P] of the rows: 1 by default.
    """
    weights = np.ones(len(rows.y)) if weights is None else weights
    terms, root = quadratic_terms(rows.x - centre, cross), np.sqrt(weights)
    design = np.column_stack([terms, seed_shifts(rows), wide_terms(rows.x - centre, degree)]) * root[:, None]
    scale = np.linalg.norm(design, axis=0)
    left, size, right = np.linalg.svd(design / scale, full_matrices=False)
    if len(rows.y) < design.shape[1] or size[-1] < 1e-7 * size[0]:
        return None
    fitted = (right.T @ ((left.T @ (rows.y * root)) / size)) / scale
    T = terms.shape[1]
    # Rows that count less are not noisier for it: so many fewer rows tell.
    fewer = len(weights) * float(weights @ weights) / float(weights.sum()) ** 2
    covariance = fewer * ((right.T / size**2) @ right / scale / scale[:, None])[:T, :T]
    shifts = fitted[T : T + seed_shifts(rows).shape[1]]
    fitted[0] += shifts.sum() / (len(shifts) + 1)  # the mean over seeds
    residual = rows.y * root - left @ (left.T @ (rows.y * root))
    return Surface(centre, fitted[:T], covariance, cross, residual, left, degree)


def quadratic_terms(t: np.ndarray, cross: bool) -> np.ndarray:
    """The terms [P, T] of a surface at t [P, K]: 1, t, squares, products."""
    products = [t[:, i] * t[:, j] for i, j in column_pairs(t.shape[1], cross)]
    return np.column_stack([np.ones(len(t)), t, t**2, *products])


def wide_terms(t: np.ndarray, degree: int) -> np.ndarray:
    """The terms of `higher_terms` of all columns up to this degree (2: none) [P, W]."""
    if degree < 3:
        return np.empty((len(t), 0))
    columns = [higher_terms(t, k)[:, : None if degree > 3 else -1] for k in range(t.shape[1])]
    return np.concatenate(columns, axis=1)


def higher_terms(t: np.ndarray, k: int) -> np.ndarray:
    """Terms [P, K + 1] of column k that a surface lacks: its cube, its square times each other column, its fourth
    power."""
    mixed = [t[:, k] ** 2 * t[:, j] for j in range(t.shape[1]) if j != k]
    return np.column_stack([t[:, k] ** 3, *mixed, t[:, k] ** 4])


def seed_shifts(rows: Rows) -> np.ndarray:
    """Columns [P, seeds - 1] by which seeds shift all losses; [P, 0] where a seed has only one setting."""
    labels, which, counts = np.unique(rows.seed, return_inverse=True, return_counts=True)
    if len(labels) < 2 or counts.min() < 2:
        return np.empty((len(rows.y), 0))
    return np.eye(len(labels))[which][:, 1:]


def pure_error(rows: Rows) -> tuple[float, int]:
    """(sum of squares, degrees of freedom) of what repeated runs of a setting differ by, less the seeds' shifts."""
    if rows.setting.max() + 1 == len(rows.y):
        return 0.0, 0
    # A mean for each setting is taken out first (Frisch, Waugh and Lovell): least squares of a few columns remain.
    counts = np.bincount(rows.setting)
    y, *shifts = (
        column - (np.bincount(rows.setting, column) / counts)[rows.setting] for column in (rows.y, *seed_shifts(rows).T)
    )
    design = np.array(shifts).reshape(len(shifts), len(y)).T
    fitted, _, rank, _ = np.linalg.lstsq(design, y) if shifts else (np.empty(0), 0, 0, 0)
    residual = y - design @ fitted
    return float(residual @ residual), len(y) - len(counts) - int(rank)


def column_pairs(K: int, cross: bool) -> list[tuple[int, int]]:
    """The pairs of columns whose products are terms."""
    return list(itertools.combinations(range(K), 2)) if cross else []


def _unit(i: int, K: int) -> np.ndarray:
    return np.eye(K)[i]
