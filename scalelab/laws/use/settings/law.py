"""A power law through best settings: random-effects regression in logs, with both errors in its intervals.

Each optimum has an error of its own; optima scatter about the law besides. The scatter's variance is that of Paule &
Mandel 1982 (J. Res. NBS 87(5)); intervals are those of Knapp & Hartung 2003 (Statistics in Medicine 22), by Student's
t.
Legend: G groups, Q columns, T = Q + 1 coefficients.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

LEAST_ERROR = 1e-9  # of a log optimum: an exact parabola has no error
STEPS = 50  # of Fisher's scoring, which takes about six
COLLINEAR = 0.05  # a column less this share of its spread free of the others can't have an exponent of its own


@dataclasses.dataclass(frozen=True, eq=False)
class SettingLaw:
    """log(best setting) = b_0 + sum of b_q (log z_q - centre_q), with `coefficients` [T] and `covariance` [T, T].

    `scatter`: standard deviation of optima about the law, beyond their own errors. `df`: degrees of freedom of every
    interval, 0 where none is left to judge by. `fitted` [G] and `residuals` [G] are in logs.
    """

    setting: str
    columns: tuple[str, ...]
    centre: np.ndarray
    coefficients: np.ndarray
    covariance: np.ndarray
    scatter: float
    df: float
    level: float
    residuals: np.ndarray
    side: np.ndarray

    @property
    def exponents(self) -> dict[str, float]:
        """{column: exponent}."""
        return dict(zip(self.columns, self.coefficients[1:].tolist(), strict=True))

    @property
    def t(self) -> float:
        """Student's quantile of the intervals; inf without degrees of freedom."""
        return float(special.stdtrit(self.df, (1 + self.level) / 2)) if self.df else np.inf

    def interval(self, name: str) -> tuple[float, float]:
        """Interval of the exponent of a column."""
        i = 1 + self.columns.index(name)
        half = self.t * self.covariance[i, i] ** 0.5
        return float(self.coefficients[i] - half), float(self.coefficients[i] + half)

    def scale(self) -> tuple[float, float, float]:
        """The factor c of c N^p D^q with its interval: the best setting where every column is 1, far from any run."""
        return self.predict(dict.fromkeys(self.columns, 1.0), new=False)

    def predict(self, at: Mapping[str, float], new: bool = True) -> tuple[float, float, float]:
        """(best setting, low, high) at these values; `new`: the interval is for the optimum of a new group, which
        scatters, else for the law."""
        z = np.append(1.0, np.log([at[name] for name in self.columns]) - self.centre)
        middle = float(z @ self.coefficients)
        half = self.t * float(z @ self.covariance @ z + new * self.scatter**2) ** 0.5
        return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))


def fit_setting_law(
    setting: str,
    columns: Mapping[str, np.ndarray],
    y: np.ndarray,
    errors: np.ndarray | None,
    level: float,
    side: np.ndarray | None = None,
    common: np.ndarray | None = None,
) -> SettingLaw:
    """Fit the law of one setting to `y` [G], logs of its optima with standard errors [G], over positive columns [G].

    `side` [G]: 1 where the optimum is known to lie above y, -1 below, 0 at y. Leaving such groups out would draw the
    law to the middle of what was tried: they enter by the probability of what was seen (a Tobit model).
    """
    logs = np.log(np.stack(list(columns.values()), axis=1)) if columns else np.empty((len(y), 0))
    side = np.zeros(len(y)) if side is None else np.asarray(side, float)
    centre = logs[side == 0].mean(axis=0)
    design = np.column_stack([np.ones(len(y)), logs - centre])
    own = np.full(len(y), LEAST_ERROR) if errors is None else np.maximum(errors, LEAST_ERROR)
    data = _Optima(design, y, own**2, side)
    scatter2 = _scatter_variance(data)
    step = _solve(data, scatter2)
    df = max(float(step.known.sum()) - design.shape[1], 0.0)
    df = 0.0 if (side == 0).sum() <= design.shape[1] else df
    inflation = step.square / step.expected if df else np.inf
    weights = (step.known / (data.own + scatter2))[:, None]
    shared = step.inverse @ design.T @ (weights * (np.zeros((len(y), 1)) if common is None else common))
    # Student's t allows for a scatter estimated from few groups; errors that they share are known from all runs.
    known_better = special.ndtri((1 + level) / 2) / special.stdtrit(df, (1 + level) / 2) if df else 1.0
    covariance = step.inverse * inflation + known_better**2 * shared @ shared.T
    return SettingLaw(
        setting,
        tuple(columns),
        centre,
        step.coefficients,
        covariance,
        float(scatter2**0.5),
        df,
        level,
        y - design @ step.coefficients,
        side,
    )


class _Optima(NamedTuple):
    """What a law is fitted to: design [G, T], y [G], own variances [G], side [G]."""

    design: np.ndarray
    y: np.ndarray
    own: np.ndarray
    side: np.ndarray


class _Solved(NamedTuple):
    """Coefficients [T], the inverse of their information [T, T], `known` [G]: the information in each optimum (1,
    less for a bound), and the weighted sum of squares with its expectation."""

    coefficients: np.ndarray
    inverse: np.ndarray
    known: np.ndarray
    square: float
    expected: float


def _solve(data: _Optima, scatter2: float) -> _Solved:
    """Maximise the likelihood of optima and bounds at this variance of the scatter, by Fisher's scoring."""
    design, y, own, side = data
    root, exact = 1 / np.sqrt(own + scatter2), side == 0
    coefficients = np.linalg.lstsq(design[exact] * root[exact, None], y[exact] * root[exact])[0]
    for _ in range(STEPS if side.any() else 1):
        z = (y - design @ coefficients) * root
        pull, known, squares = _scores(z, side)
        left, size, right = np.linalg.svd(design * (root * np.sqrt(known))[:, None], full_matrices=False)
        change = right.T @ ((left.T @ (pull / np.sqrt(known))) / size)
        coefficients = coefficients + change
        if np.abs((design @ change) * root).max() < 1e-10:
            break
    inverse = (right.T / size**2) @ right
    return _Solved(coefficients, inverse, known, float(squares[exact].sum()), _expected(squares, exact, design))


def _scores(z: np.ndarray, side: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of standardised residuals z [G] (their means beyond bounds), their information, and their squares."""
    at = z * side  # beyond it lies the optimum
    hazard = np.exp(-0.5 * at**2 - 0.5 * np.log(2 * np.pi) - special.log_ndtr(-at))
    known = np.where(side == 0, 1.0, np.clip(hazard * (hazard - at), 1e-12, 1.0))
    return np.where(side == 0, z, side * hazard), known, np.where(side == 0, z**2, 1 + at * hazard)


def _expected(squares: np.ndarray, exact: np.ndarray, design: np.ndarray) -> float:
    """The expected sum of squares of exact optima, given those that lie beyond bounds."""
    return float(exact.sum() + np.sum(1 - squares[~exact]) - design.shape[1])


def _scatter_variance(data: _Optima) -> float:
    """The variance of the scatter at which the weighted sum of squares equals its expectation."""

    def excess(scatter2: float) -> float:
        step = _solve(data, scatter2)
        return step.square - step.expected

    exact = data.side == 0
    if exact.sum() <= data.design.shape[1] or excess(0.0) <= 0:
        return 0.0
    high = float(np.var(data.y)) + 1e-30
    while excess(high) > 0:
        high *= 4
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-14 * high, rtol=1e-9))


def collinear_columns(columns: Mapping[str, np.ndarray]) -> Sequence[str]:
    """Columns that do not vary, or that the others determine up to a share COLLINEAR of their spread."""
    logs = {name: np.log(values) - np.log(values).mean() for name, values in columns.items()}
    bad: list[str] = []
    for name, values in logs.items():
        others = [each for other, each in logs.items() if other != name]
        rest = values
        if others and np.ptp(values) > 0:
            design = np.stack(others, axis=1)
            rest = values - design @ np.linalg.lstsq(design, values)[0]
        if float(np.linalg.norm(rest)) <= COLLINEAR * float(np.linalg.norm(values)) + 1e-9:
            bad.append(name)
    return bad
