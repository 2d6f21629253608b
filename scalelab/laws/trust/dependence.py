"""The size of the error that rows of one group (checkpoints of one run, seeds of one setting) share.

The error of a row is an effect of its group plus one of its own, both Gaussian. Their variances are estimated from the
residuals, less the degrees of freedom that the law takes from each: five runs that fix three parameters leave two, and
intervals are as wide as two degrees of freedom require.
Legend: P points, G groups, K parameters, R simulated tables.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse, special

from scalelab.errors import BadInput
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import near_fit, newton
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import information

DENSE = 2000  # up to so many groups the law's projection is exact; with more it takes under 1 per mille a parameter
NODES = 400  # quantiles of each Gaussian in a mean over errors
LEAST_DOF = 1.0  # with fewer, an interval by Student's t is too wide to be of use
SURE = 1e6  # degrees of freedom beyond which Student's t is the normal distribution
FITTED_AT_ONCE = 60_000  # tables x rows: what a processor's cache holds, and often enough for a progress bar
HELD_AT_ONCE = 4_000_000  # errors of simulated large tables in memory at once
LEAST_VARIANCE = 1e-24  # of losses without error


@dataclasses.dataclass(frozen=True, eq=False)
class Dependence:
    """How rows of one group depend: `labels` [P] from 0, standard deviations by group and row, the `column` of groups.

    `dof`: degrees of freedom of the group's variance; `uncertainty` [2, 2]: covariance of the two estimated variances.
    `weights` {name: [P]}: each parameter's error is this sum over the rows' errors, linearised.
    """

    labels: np.ndarray
    group_sd: float
    row_sd: float
    dof: float
    uncertainty: np.ndarray
    weights: dict[str, np.ndarray]
    column: str = ""

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.labels.max()) + 1

    def design_effect(self, name: str, correlation: float | None = None) -> float:
        """Variance of a parameter over that under rows of the same, independent errors (Kish 1965).

        `correlation`: of two rows of one group, by default that of their errors.
        """
        own, shared = self._weight_squares(name)
        variances = self.group_sd**2, self.row_sd**2
        correlation = variances[0] / sum(variances) if correlation is None else correlation
        return 1.0 + correlation * (shared / own - 1.0) if own > 0 else 1.0

    def parameter_dof(self, name: str) -> float:
        """Degrees of freedom of a parameter's estimated variance (Satterthwaite 1946)."""
        own, shared = self._weight_squares(name)
        shares = np.array([shared, own])
        variance = float(shares @ np.array([self.group_sd, self.row_sd]) ** 2)
        spread = float(shares @ self.uncertainty @ shares)
        return float(np.clip(2 * variance**2 / spread, LEAST_DOF, SURE)) if spread > 0 else SURE

    def _weight_squares(self, name: str) -> tuple[float, float]:
        weights = self.weights[name]
        return float(np.sum(weights**2)), float(np.sum(sum_groups(self.labels, weights) ** 2))

    def objective_rise(self, name: str, objective: Objective, level: float) -> float:
        """How far the objective, profiled over a parameter, rises at the ends of its interval of this level.

        Near the optimum the rise at the true value is (variance of a score / mean slope of it) x design effect x
        F(1, dof) / 2, with mean and variance those of Gaussian errors.
        """
        spread = np.hypot(self.group_sd, self.row_sd)
        scores = self._scores(objective)
        variance, shared = np.mean(scores**2), np.mean(scores.mean(axis=1) ** 2)
        slope = 0.5 * (1.0 + objective.overestimate) * (2 * special.ndtr(objective.delta / spread) - 1.0)
        effect = self.design_effect(name, shared / variance)
        return float(variance / slope * effect * special.fdtri(1, self.parameter_dof(name), level) / 2)

    def _scores(self, objective: Objective) -> np.ndarray:
        """Scores [NODES, NODES] of rows with each of NODES group effects and as many errors of their own."""
        quantiles = special.ndtri((np.arange(NODES) + 0.5) / NODES)
        return objective.slope(self.group_sd * quantiles[:, None] + self.row_sd * quantiles)

    def simulate_errors(self, count: int, seed: int) -> np.ndarray:
        """Errors [count, P] of simulated tables.

        The effects of the groups follow Student's t of `dof` degrees of freedom, one scale a table: so an interval from
        such tables also carries the uncertainty of their standard deviation.
        """
        (errors,) = self.simulate_batches(count, seed, count)
        return errors

    def simulate_batches(self, count: int, seed: int, size: int) -> Iterator[np.ndarray]:
        """Errors of `simulate_errors`, `size` tables at a time."""
        random = np.random.default_rng(seed)
        dof = max(self.dof, LEAST_DOF)
        scale = self.group_sd * np.sqrt(dof / random.chisquare(dof, count))
        effects = scale[:, None] * random.standard_normal((count, self.groups))
        for part in np.split(effects, range(size, count, size)):
            yield part[:, self.labels] + self.row_sd * random.standard_normal((len(part), len(self.labels)))

    def select_rows(self, rows: np.ndarray) -> "Dependence":
        """The dependence of the chosen rows [P] alone."""
        return dataclasses.replace(self, labels=np.unique(self.labels[rows], return_inverse=True)[1])

    def whiten(self, columns: np.ndarray) -> np.ndarray:
        """Columns [P, n] of errors made independent, each row's own error as large as it was."""
        group, row, sizes = self.group_sd**2, self.row_sd**2, np.bincount(self.labels).astype(float)
        share = 1.0 - np.sqrt(row / (row + sizes * group))
        return columns - ((share / sizes)[:, None] * sum_groups(self.labels, columns))[self.labels]

    def shared_variance(self, weights: np.ndarray) -> np.ndarray:
        """Variance over a row's own [G], by what groups share, of new rows' errors less sums [G, P] over these rows.

        New rows belong to new groups.
        """
        together = np.sum(sum_groups(self.labels, weights.T) ** 2, axis=0)
        return (self.group_sd / self.row_sd) ** 2 * (1.0 + together)

    def new_run_errors(self, count: int = 200) -> np.ndarray:
        """Evenly spaced quantiles [count] of the error of a row in a new group."""
        spread = np.hypot(self.group_sd, self.row_sd)
        return special.stdtrit(max(self.dof, LEAST_DOF), (np.arange(count) + 0.5) / count) * spread

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "column": self.column, "groups": self.groups, "group_sd": self.group_sd, "row_sd": self.row_sd,
            "dof": self.dof, "design_effect": {name: self.design_effect(name) for name in self.weights},
        }  # fmt: skip


def group_labels(groups: ArrayLike, points: int) -> np.ndarray:
    """Group labels [P] as integers from 0, in the order of first appearance. BadInput for another shape."""
    groups = np.asarray(groups)
    if groups.shape != (points,):
        raise BadInput(f"{groups.size} group labels for {points} runs: one a run is needed")
    _, first, labels = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels]


def sum_groups(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums over each group: [G] of values [P], [G, K] of values [P, K]."""
    sums = np.zeros((int(labels.max()) + 1, *values.shape[1:]))
    np.add.at(sums, labels, values)
    return sums


def estimate_dependence(problem: Problem, best: Optimum, labels: np.ndarray, column: str = "") -> Dependence:
    """Estimate the error that rows with one label share, from residuals. BadInput if there is one group only."""
    labels = group_labels(labels, problem.points)
    if labels.max() == 0:
        raise BadInput(
            f"all {problem.points} rows belong to one {column or 'group'}: between-run error can't be told; "
            "nearest: --cluster=none"
        )
    slopes = information.law_sensitivity(problem, best, problem.columns, 1.0)
    free = np.abs(slopes).max(axis=0) > 0
    (group, row), uncertainty = _estimate_variances(slopes[:, free], problem.residuals(best.params), labels)
    dof = 2 * group**2 / uncertainty[0, 0] if group > 0 else SURE
    return Dependence(
        labels,
        float(np.sqrt(group)),
        float(np.sqrt(row)),
        float(dof),
        uncertainty,
        _error_weights(problem, best, slopes),
        column,
    )


def simulate_refits(
    problem: Problem,
    best: Optimum,
    dependence: Dependence,
    count: int,
    seed: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> newton.Solutions:
    """Refit the law to `count` simulated tables: the fitted law's values and `Dependence.simulate_errors`."""
    residuals, many = problem.residuals(best.params), problem.points > near_fit.MANY_ROWS
    parts = []
    size = max(1, (HELD_AT_ONCE if many else FITTED_AT_ONCE) // problem.points)
    for errors in dependence.simulate_batches(count, seed, size):
        weights, moved = np.ones_like(errors), errors - residuals
        starts = np.tile(best.x, (len(errors), 1))
        parts.append(
            near_fit.refit_near(problem, weights, best.x, moved)
            if many
            else newton.descend(problem, starts, weights, moved=moved)
        )
        if progress:
            progress("simulated tables", sum(len(part.x) for part in parts), count)
    fields = ("x", "objective", "converged")
    return newton.Solutions(*(np.concatenate([getattr(part, field) for part in parts]) for field in fields))


def _error_weights(problem: Problem, best: Optimum, slopes: np.ndarray) -> dict[str, np.ndarray]:
    """The linear map {name: [P]} from errors of rows to that of each parameter (of its log, where that is searched)."""
    spread = information.covariance_matrix(slopes.T @ slopes + np.diag((np.abs(slopes).max(axis=0) == 0).astype(float)))
    gradients = {name: information.param_gradient(problem, best, name, i) for i, name in enumerate(problem.law.params)}
    return {name: slopes @ (spread @ gradient) for name, gradient in gradients.items()}


def _estimate_variances(slopes: np.ndarray, residuals: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((group variance, row variance), covariance [2, 2] of these estimates), from the residuals of a fitted law.

    Two sums of squares, of all residuals and of the groups' means, are set equal to their expectations (Henderson's
    method: Searle, Casella & McCulloch 1992, ch. 5). Q projects the law's sensitivities [P, K] out of the errors.
    """
    scaled = slopes / np.linalg.norm(slopes, axis=0)
    hat = np.linalg.pinv(scaled.T @ scaled)
    clean = residuals - scaled @ (hat @ (scaled.T @ residuals))
    sizes, sums = np.bincount(labels).astype(float), sum_groups(labels, scaled)
    shared = np.diag(sizes) - sums @ hat @ sums.T if len(sizes) <= DENSE else sparse.diags_array(sizes)  # Z' Q Z
    mean = sparse.diags_array(1.0 / sizes)
    spare = len(residuals) - scaled.shape[1]
    one, two = mean @ shared, mean @ shared @ shared
    expected = np.array([[shared.trace(), spare], [two.trace(), one.trace()]])
    squares = np.array([clean @ clean, sum_groups(labels, clean) ** 2 @ (1.0 / sizes)])
    group, row = np.linalg.solve(expected, squares)
    if group < 0 or row < 0:
        group, row = max(group, 0.0), max(squares[0] / spare if group < 0 else row, 0.0)
    row = max(row, LEAST_VARIANCE)
    total = group**2 * (shared @ shared).trace() + 2 * group * row * shared.trace() + row**2 * spare
    both = group**2 * (two @ shared).trace() + 2 * group * row * two.trace() + row**2 * one.trace()
    means = group * two + row * one
    inverse = np.linalg.inv(expected)
    products = 2.0 * np.array([[total, both], [both, (means @ means).trace()]])
    return np.array([group, row]), inverse @ products @ inverse.T
