"""Whether a law extrapolates: the largest runs are held out, predicted by a fit to the rest, and scored.

In-sample error hardly separates laws; held-out error does. Legend: P points.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns
from scalelab.laws.trust import identifiable
from scalelab.laws.trust.information import sizes_and_tokens

LEADING = ("C", "D", "N", "width")  # columns that measure how large a run is, the best first


@dataclasses.dataclass(frozen=True, eq=False)
class Holdout:
    """The held-out `rows` (indices in the table, the largest first), their measured and their predicted targets.

    `params` are fitted without these rows; errors are predicted / measured - 1, `mape` is their mean size, and
    `in_sample_mape` the mean size of the errors of the fitted rows.
    """

    rows: np.ndarray
    scale: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    params: dict[str, float]
    in_sample_mape: float

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
        return {
            "rows": self.rows.tolist(),
            "mape": self.mape,
            "in_sample_mape": self.in_sample_mape,
            "params": self.params,
            "per_row": [{name: values[i].item() for name, values in fields.items()} for i in range(len(self.rows))],
        }


def hold_out(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, count: int, scale: ArrayLike | None = None
) -> Holdout:
    """Fit the law without the `count` largest rows and predict these.

    Rows are ordered by `scale` [P] (default: `run_sizes`). Weights of 0 and 1 leave rows out of the fit. BadInput where
    the rest determines no law, FitError where its fit doesn't converge.
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
    return Holdout(rows, scale[rows], target[rows], predicted[rows], best.params, float(error[weights > 0].mean()))


def run_sizes(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """A measure of each run's size [P], for ordering: C, else N D, else the first of D, N, width; else 1 / loss."""
    if "C" in columns:
        return columns["C"]
    N, D = sizes_and_tokens(columns)
    if len(N):
        return N * D
    leading = next((name for name in LEADING if name in columns), None)
    return columns[leading] if leading else 1.0 / next(iter(columns.values()))
