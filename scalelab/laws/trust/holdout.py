"""Whether a law extrapolates: the largest runs are held out, predicted by a fit to the rest, and scored.

In-sample error hardly separates laws; held-out error does. Legend: P points.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import optimum
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns, Problem
from scalelab.laws.trust import identifiable
from scalelab.laws.trust.dependence import estimate_dependence
from scalelab.laws.trust.information import run_sizes
from scalelab.laws.trust.misfit import resample_fit
from scalelab.laws.trust.uncertainty import Bootstrap, predict_run, resampled_values

SCORE_RESAMPLES = 200  # for the intervals of held-out rows
BY_CHANCE = (0.05, 0.95)
ERRORS_BY_CHANCE = (0.01, 0.99)  # of the mean error, which clean tables leave more often than simulated ones
SIMULATED = 1000  # tables of held-out rows, for how many lie inside by chance


@dataclasses.dataclass(frozen=True, eq=False)
class Holdout:
    """The held-out `rows` (indices in the table, the largest first), their measured and their predicted targets.

    `params` are fitted without these rows; errors are predicted / measured - 1, `mape` is their mean size, and
    `in_sample_mape` the mean size of the errors of the fitted rows. `low`, `high`: the interval of each row at `level`,
    as for one new run; None if none was asked for. `simulated` [R, rows]: targets of tables that a resampled law, its
    misfit and noise make. `asked`: the number of rows asked for, of which whole budgets may be more.
    """

    rows: np.ndarray
    scale: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    params: dict[str, float]
    in_sample_mape: float
    level: float
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    simulated: np.ndarray | None = None
    asked: int = 0

    @property
    def inside(self) -> int:
        """How many measured targets lie inside their intervals."""
        return int(np.sum((self.low <= self.measured) & (self.measured <= self.high))) if self.low is not None else 0

    @property
    def inside_by_chance(self) -> tuple[int, int] | None:
        """The range that holds `inside` in nine of ten cases if intervals are right; rows of one table err together."""
        if self.simulated is None or self.low is None or self.high is None:
            return None
        counts = np.sum((self.low <= self.simulated) & (self.simulated <= self.high), axis=1)
        low, high = np.quantile(counts, BY_CHANCE, method="inverted_cdf")
        return int(low), int(high)

    @property
    def error_by_chance(self) -> tuple[float, float] | None:
        """The range of `mape` in 98 of 100 cases if intervals are right."""
        if self.simulated is None:
            return None
        low, high = np.quantile(np.abs(self.predicted / self.simulated - 1.0).mean(axis=1), ERRORS_BY_CHANCE)
        return float(low), float(high)

    @property
    def verdict(self) -> str:
        """Whether the intervals are "too narrow", "too wide" or "as they should be"; "" without intervals.

        Too wide: errors as small as these come by chance in one of a hundred cases.
        """
        if self.inside_by_chance is None or self.error_by_chance is None:
            return ""
        if self.inside < self.inside_by_chance[0]:
            return "too narrow"
        return "too wide" if self.mape < self.error_by_chance[0] else "as they should be"

    @property
    def width(self) -> float | None:
        """Median width of the intervals over the measured target."""
        if self.low is None or self.high is None:
            return None
        return float(np.median((self.high - self.low) / np.abs(self.measured)))

    @property
    def interval_score(self) -> float | None:
        """Mean interval score of log targets (Gneiting & Raftery 2007, eq. 43): width, and a penalty where one misses.

        Lower is better: intervals that are too wide, too narrow or off the mark all score higher.
        """
        if self.low is None or self.high is None:
            return None
        ends = np.stack([self.low, self.high, self.measured])  # of a target that may be negative: as shares of its size
        low, high, measured = np.log(ends) if np.all(ends > 0) else ends / np.abs(self.measured)
        missed = np.maximum(low - measured, 0.0) + np.maximum(measured - high, 0.0)
        return float(np.mean(high - low + 2.0 / (1.0 - self.level) * missed))

    @property
    def errors(self) -> np.ndarray:
        """Relative errors of the held-out rows: predicted / measured - 1."""
        return self.predicted / self.measured - 1.0

    @property
    def mape(self) -> float:
        """Mean absolute relative error over the held-out rows."""
        return float(np.abs(self.errors).mean())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        fields = {"row": self.rows, "scale": self.scale, "measured": self.measured, "predicted": self.predicted,
                  "error": self.errors}  # fmt: skip
        if self.low is not None and self.high is not None:
            fields |= {"low": self.low, "high": self.high}
        return {
            "inside": self.inside if self.low is not None else None,
            "inside_by_chance": list(self.inside_by_chance) if self.inside_by_chance else None,
            "error_by_chance": list(self.error_by_chance) if self.error_by_chance else None,
            "verdict": self.verdict or None,
            "level": self.level,
            "interval_score": self.interval_score,
            "width": self.width,
            "asked": self.asked,
            "rows": self.rows.tolist(),
            "mape": self.mape,
            "in_sample_mape": self.in_sample_mape,
            "params": self.params,
            "per_row": [{name: values[i].item() for name, values in fields.items()} for i in range(len(self.rows))],
        }


def hold_out(
    law: Law,
    columns: Columns,
    target: np.ndarray,
    objective: Objective,
    count: int,
    scale: ArrayLike | None = None,
    *,
    labels: np.ndarray | None = None,
    resamples: int = SCORE_RESAMPLES,
    level: float = 0.9,
) -> Holdout:
    """Fit the law without the `count` largest rows and predict these, with intervals from `resamples` if that is not 0.

    Rows of a budget are held out together: equal sizes but for rounding have no larger one among them.
    Rows are ordered by `scale` [P] (default: `run_sizes`). Weights of 0 and 1 leave rows out of the fit. `labels` [P]:
    groups of dependent rows. BadInput where the rest determines no law, FitError where its fit doesn't converge.
    """
    if not 1 <= count < len(target):
        raise BadInput(f"holdout = {count}: between 1 and {len(target) - 1} of {len(target)} rows can be held out")
    scale = run_sizes(columns) if scale is None else np.asarray(scale, float)
    rows = largest_rows(scale, count)
    weights = np.ones(len(target))
    weights[rows] = 0.0
    try:
        identifiable.check_identifiable(law, columns, target, weights, objective.log)
    except BadInput as why:
        raise BadInput(f"without the {len(rows)} largest rows: {why}") from None
    best = optimum.minimise_objective(pose_problem(law, columns, target, objective), weights)
    predicted = law(columns, best.params)
    error = np.abs(predicted / target - 1.0)
    low, high, simulated = None, None, None
    if resamples:
        rest = np.sort(np.setdiff1d(np.arange(len(target)), rows))
        small = pose_problem(law, {name: column[rest] for name, column in columns.items()}, target[rest], objective)
        groups = labels[rest] if labels is not None and len(set(labels[rest])) > 1 else None
        fitted = dataclasses.replace(best, x=small.from_params(best.params))
        low, high, simulated = _predict_rows(small, fitted, columns, rows, groups, resamples, level)
    return Holdout(
        rows,
        scale[rows],
        target[rows],
        predicted[rows],
        best.params,
        float(error[weights > 0].mean()),
        level,
        low,
        high,
        simulated,
        count,
    )


def largest_rows(scale: np.ndarray, count: int) -> np.ndarray:
    """The `count` largest rows, the largest first, and all others of the least one's budget.

    `count` alone where that would leave none.
    """
    order = np.argsort(-scale, kind="stable")
    budgets = identifiable.merge_near_values(scale, np.ones(len(scale), bool), identifiable.SAME_BUDGET)
    whole = int(np.sum(budgets >= budgets[order[count - 1]]))
    return order[: whole if whole < len(scale) else count]


def _predict_rows(
    problem: Problem,
    best: Optimum,
    columns: Columns,
    rows: np.ndarray,
    labels: np.ndarray | None,
    resamples: int,
    level: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(low, high, each [rows], of new runs at these rows; simulated targets of all of them [SIMULATED, rows])."""
    dependence = None if labels is None else estimate_dependence(problem, best, labels)
    boot, _, _ = resample_fit(problem, best, resamples, 0, dependence)
    assert boot  # resamples is not 0
    points = [{name: float(column[row]) for name, column in columns.items()} for row in rows]
    predictions = [predict_run(problem, best, boot, point, level) for point in points]
    low, high = np.array([each.low for each in predictions]), np.array([each.high for each in predictions])
    return low, high, _simulate_runs(problem, boot, {name: column[rows] for name, column in columns.items()})


def _simulate_runs(problem: Problem, boot: Bootstrap, columns: Columns) -> np.ndarray:
    """Targets [SIMULATED, rows] of new runs, all rows of one table by one resampled law and its misfit."""
    random = np.random.default_rng(0)
    values = resampled_values(problem, boot, columns)
    tables = np.arange(SIMULATED) % len(values)
    noise = random.choice(boot.noise, (SIMULATED, values.shape[1]))
    noise *= boot.misfit.noise_share[tables, None] if boot.misfit else 1.0
    return values[tables] * np.exp(noise) if problem.objective.log else values[tables] + noise
