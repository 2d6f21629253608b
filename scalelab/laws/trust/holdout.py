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
from scalelab.laws.trust.uncertainty import predict_run

SCORE_RESAMPLES = 200  # for the intervals of held-out rows


@dataclasses.dataclass(frozen=True, eq=False)
class Holdout:
    """The held-out `rows` (indices in the table, the largest first), their measured and their predicted targets.

    `params` are fitted without these rows; errors are predicted / measured - 1, `mape` is their mean size, and
    `in_sample_mape` the mean size of the errors of the fitted rows. `low`, `high`: the interval of each row at `level`,
    as for one new run; None if none was asked for.
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

    @property
    def inside(self) -> int:
        """How many measured targets lie inside their intervals."""
        return int(np.sum((self.low <= self.measured) & (self.measured <= self.high))) if self.low is not None else 0

    @property
    def inside_by_chance(self) -> tuple[int, int]:
        """The range that holds `inside` in nine of ten cases, if errors are independent and intervals right."""
        from scipy.stats import binom  # here: it takes 0.8 s, and few commands need it

        low, high = binom.interval(0.9, len(self.rows), self.level)
        return int(low), int(high)

    @property
    def interval_score(self) -> float | None:
        """Mean interval score of log targets (Gneiting & Raftery 2007, eq. 43): width, and a penalty where one misses.

        Lower is better: intervals that are too wide, too narrow or off the mark all score higher.
        """
        if self.low is None or self.high is None:
            return None
        low, high, measured = np.log(self.low), np.log(self.high), np.log(self.measured)
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
            "inside_by_chance": list(self.inside_by_chance),
            "level": self.level,
            "interval_score": self.interval_score,
            "rows": self.rows.tolist(),
            "mape": self.mape,
            "in_sample_mape": self.in_sample_mape,
            "params": self.params,
            "per_row": [{name: values[i].item() for name, values in fields.items()} for i in range(len(self.rows))],
        }


def hold_out(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, count: int, scale: ArrayLike | None = None, *,
    labels: np.ndarray | None = None, resamples: int = SCORE_RESAMPLES, level: float = 0.9,
) -> Holdout:  # fmt: skip
    """Fit the law without the `count` largest rows and predict these, with intervals from `resamples` if that is not 0.

    Rows are ordered by `scale` [P] (default: `run_sizes`). Weights of 0 and 1 leave rows out of the fit. `labels` [P]:
    groups of dependent rows. BadInput where the rest determines no law, FitError where its fit doesn't converge.
    """
    if not 1 <= count < len(target):
        raise BadInput(f"holdout = {count}: between 1 and {len(target) - 1} of {len(target)} rows can be held out")
    scale = run_sizes(columns) if scale is None else np.asarray(scale, float)
    rows = np.argsort(-scale, kind="stable")[:count]
    weights = np.ones(len(target))
    weights[rows] = 0.0
    try:
        identifiable.check_identifiable(law, columns, target, weights, objective.log)
    except BadInput as why:
        raise BadInput(f"without the {count} largest rows: {why}") from None
    best = optimum.minimise_objective(pose_problem(law, columns, target, objective), weights)
    predicted = law(columns, best.params)
    error = np.abs(predicted / target - 1.0)
    low, high = None, None
    if resamples:
        rest = np.sort(np.setdiff1d(np.arange(len(target)), rows))
        small = pose_problem(law, {name: column[rest] for name, column in columns.items()}, target[rest], objective)
        groups = labels[rest] if labels is not None and len(set(labels[rest])) > 1 else None
        fitted = dataclasses.replace(best, x=small.from_params(best.params))
        low, high = _predict_rows(small, fitted, columns, rows, groups, resamples, level)
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
    )


def _predict_rows(
    problem: Problem,
    best: Optimum,
    columns: Columns,
    rows: np.ndarray,
    labels: np.ndarray | None,
    resamples: int,
    level: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Intervals (low, high), each [rows], of new runs at these rows."""
    dependence = None if labels is None else estimate_dependence(problem, best, labels)
    boot, _ = resample_fit(problem, best, resamples, 0, dependence, level)
    assert boot  # resamples is not 0
    points = [{name: float(column[row]) for name, column in columns.items()} for row in rows]
    predictions = [predict_run(problem, best, boot, point, level) for point in points]
    return np.array([each.low for each in predictions]), np.array([each.high for each in predictions])
