"""Test of a law's form: is more of its residuals systematic than chance would give?

A wrong form leaves a smooth pattern. Two statistics see it: the share of the residuals' variance that a polynomial in
the logs of the law's columns explains, and along each column the number of runs of residuals of one sign. Their null
distributions are computed from residuals in random order, or, where rows depend, from simulated errors.
Legend: P points, K parameters, R random orders.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.law.law import logs_of
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import information
from scalelab.laws.trust.dependence import Dependence

ORDERS = 999
CHUNK = 4_000_000  # orders x rows at once
REJECT = 0.01  # of the smallest p-value, corrected for the number of statistics: one right law in a hundred is rejected
DEGREES = (3, 2)  # of the polynomial: the first that leaves SPARE rows for each of its terms
SPARE = 2.0
POWER = 0.8  # of the test, at the misfit that it would have shown
# Of smooth errors of a law, for the power and for `discrepancy.py`:
LENGTHS = (2.0, 4.0, 8.0)  # e-folds of a column over which delta changes, equally likely before the rows are seen
FREQUENCIES = 32
GROUP_DISTANCE = np.sqrt(np.log(2.0))  # of each group from all others in the kernel: half of the variance is shared
LEAST_COLUMN = 1e-300  # a new run may have a column of zero, which no fitted one has
TRIALS = 200  # simulated tables for the power
HALVINGS = 7


class Basis(NamedTuple):
    """Where delta lives: its columns, the `centre` of their logs, frequencies [columns, FREQUENCIES] of length 1.

    Rows of different groups, numbered in column `group`, share half of delta's variance: `marks` [groups, FREQUENCIES].
    """

    names: tuple[str, ...]
    centre: np.ndarray
    frequencies: np.ndarray
    group: str = ""
    marks: np.ndarray = np.zeros((1, 1))

    def features(self, columns: Mapping[str, Any], length: float) -> np.ndarray:
        """Features [..., F] at columns [...]; their products approximate the kernel."""
        values = np.broadcast_arrays(*(np.asarray(columns[name], float) for name in self.names))
        phase = (np.log(np.maximum(np.stack(values, axis=-1), LEAST_COLUMN)) - self.centre) @ (
            self.frequencies / length
        )
        if self.group:
            phase = phase + self.marks[np.asarray(columns[self.group], int) - 1]
        return np.concatenate([np.cos(phase), np.sin(phase)], axis=-1) / np.sqrt(FREQUENCIES)


@dataclasses.dataclass(frozen=True)
class FormTest:
    """The share of the residuals' variance that is smooth, `by_chance` its 5 % to 95 % range under the right law.

    `p_values`: of the share ("surface") and of the signs along each column. `fails`: the least of them, times their
    number, is below REJECT. `visible`: the least misfit (root mean square about the nearest law over the rows, in the
    objective's terms) that would have failed the test in POWER of tables like this one; None if no misfit does.
    """

    share: float
    by_chance: tuple[float, float]
    p_values: dict[str, float]
    visible: float | None = None

    @property
    def fails(self) -> bool:
        """Whether the residuals are too systematic for a law of the right form."""
        return min(self.p_values.values()) * len(self.p_values) < REJECT

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self) | {"by_chance": list(self.by_chance), "fails": self.fails}


def make_basis(columns: Mapping[str, np.ndarray], group: str = "") -> Basis | None:
    """The basis over the logs of all columns that are positive and vary, `group` apart; None without any."""
    logs = {name: np.log(values) for name, values in columns.items() if name != group and np.all(values > 0)}
    names = tuple(name for name, values in logs.items() if np.std(values) > 0)
    if not names:
        return None
    basis, random = place_basis(names, [float(logs[name].mean()) for name in names])
    if not group:
        return basis
    marks = GROUP_DISTANCE * random.standard_normal((int(columns[group].max()), FREQUENCIES))
    return basis._replace(group=group, marks=marks)


def place_basis(names: Sequence[str], centre: Sequence[float]) -> tuple[Basis, np.random.Generator]:
    """The basis of columns `names` about `centre`, which is the same each time, and the generator that it came from."""
    random = np.random.default_rng(0)
    return Basis(tuple(names), np.array(centre), random.standard_normal((len(names), FREQUENCIES))), random


def judge_form(problem: Problem, best: Optimum, dependence: Dependence | None = None, seed: int = 0) -> FormTest | None:
    """Test the form of a fitted law on its own residuals; None where too few rows are left to tell."""
    tangent = information.orthonormal_basis(information.law_sensitivity(problem, best, problem.columns, 1.0))
    logs = {name: logs_of(column) for name, column in problem.columns.items()}
    basis = _smooth_basis(list(logs.values()), tangent)
    if basis is None:
        return None
    residuals = problem.residuals(best.params)
    orders = [np.lexsort([*(logs[other] for other in logs if other != name), logs[name]]) for name in logs]
    parts = [_statistics(errors, tangent, basis, orders) for errors in _random_errors(residuals, dependence, seed)]
    statistics = np.concatenate(parts, axis=1)
    if not np.isfinite(statistics[0, 0]):
        return None
    low, high = np.quantile(statistics[0, 1:], [0.05, 0.95])
    p_values = {name: _tail(each) for name, each in zip(("surface", *logs), statistics, strict=True)}
    visible = _visible_misfit(problem, residuals, (tangent, basis, orders), statistics[:, 1:], dependence, seed)
    return FormTest(float(statistics[0, 0]), (float(low), float(high)), p_values, visible)


def _visible_misfit(
    problem: Problem,
    residuals: np.ndarray,
    test: tuple[np.ndarray, np.ndarray, list[np.ndarray]],
    null: np.ndarray,
    dependence: Dependence | None,
    seed: int,
) -> float | None:
    """The least misfit that fails the test in POWER of simulated tables: smooth errors of one size, drawn at random."""
    shapes_basis = make_basis(problem.columns)
    if shapes_basis is None:
        return None
    count = int(np.clip(CHUNK // (TRIALS * len(residuals)), 1, TRIALS))
    random = np.random.default_rng([seed, 2])
    features = shapes_basis.features(problem.columns, LENGTHS[len(LENGTHS) // 2])
    shapes = random.standard_normal((count, features.shape[1])) @ features.T
    shapes -= (shapes @ test[0]) @ test[0].T
    shapes /= np.sqrt(np.mean(shapes**2, axis=1, keepdims=True))
    _, noise = itertools.islice(_random_errors(residuals, dependence, seed + 1), 2)
    noise = noise[:count]
    allowed = int(np.ceil(REJECT / len(null) * (ORDERS + 1))) - 2  # so many random errors may be as extreme
    limits = np.sort(null, axis=1)[:, -1 - allowed]
    unit = float(np.sqrt(np.mean(residuals**2)))
    low, high = np.log(unit / 30), np.log(unit * 30)

    def power(size: float) -> float:
        each = _statistics(noise + size * shapes[: len(noise)], *test)
        return float(np.mean((each > limits[:, None]).any(axis=0)))

    if power(np.exp(high)) < POWER:
        return None
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if power(np.exp(middle)) >= POWER else (middle, high)
    return float(np.exp(high))


def _random_errors(residuals: np.ndarray, dependence: Dependence | None, seed: int) -> Iterator[np.ndarray]:
    """The residuals [1, P], then ORDERS errors as they would be under the right law, in chunks [R, P]."""
    yield residuals[None]
    rows = max(1, CHUNK // len(residuals))
    random = np.random.default_rng(seed)
    for first in range(0, ORDERS, rows):
        count = min(rows, ORDERS - first)
        if dependence:
            yield dependence.simulate_errors(count, int(random.integers(2**31)))
        else:
            yield random.permuted(np.tile(residuals, (count, 1)), axis=1)


def _statistics(errors: np.ndarray, tangent: np.ndarray, basis: np.ndarray, orders: list[np.ndarray]) -> np.ndarray:
    """[1 + columns, R]: the smooth share of each row of errors [R, P], and minus its runs of signs along each order."""
    errors = errors - (errors @ tangent) @ tangent.T
    with np.errstate(invalid="ignore"):  # a law without error has no share
        shares = np.sum((errors @ basis) ** 2, axis=1) / np.sum(errors**2, axis=1)
    runs = [-np.sum(np.diff(errors[:, order] > 0, axis=1), axis=1) for order in orders]
    return np.stack([shares, *runs])


def _tail(statistic: np.ndarray) -> float:
    """Share of statistics [1 + R] that are at least the first."""
    return float(np.mean(statistic >= statistic[0]))


def _smooth_basis(logs: list[np.ndarray], tangent: np.ndarray) -> np.ndarray | None:
    """Orthonormal basis [P, B] of polynomials in standardised logs, less the directions of the law's parameters."""
    rows = len(tangent)
    standard = [(log - log.mean()) / max(log.std(), 1e-12) for log in logs if log.std() > information.FLAT]
    for degree in DEGREES:
        powers = itertools.product(range(degree + 1), repeat=len(standard))
        terms = [
            np.prod([log**power for log, power in zip(standard, each, strict=True)], axis=0)
            for each in powers
            if 0 < sum(each) <= degree
        ]
        if not terms or rows - tangent.shape[1] < SPARE * (len(terms) + 1):
            continue
        polynomials = information.orthonormal_basis(np.column_stack([np.ones(rows), *terms]))
        vectors, values, _ = np.linalg.svd(polynomials - tangent @ (tangent.T @ polynomials), full_matrices=False)
        basis = vectors[:, values > information.FLAT]
        return basis if basis.shape[1] else None
    return None
