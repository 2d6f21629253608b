"""Fits to rows with a noise of their own: weights that a table gives, or noise that goes as a power of the runs' size.

Residuals are divided by each row's noise, in units of its geometric mean, so that the objective's threshold goes with
it. P points.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.design.scatter import measure_scatter
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem, weigh_rows
from scalelab.laws.trust.information import run_sizes

BY_SIZE = "scale"


class Weights(NamedTuple):
    """How rows are weighted: the least and the largest noise of a row over their mean, and the power of the size."""

    least: float
    most: float
    slope: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"by": "column" if self.slope is None else BY_SIZE, **self._asdict()}


def weigh(plain: Problem, best: Optimum, weights: str | ArrayLike) -> tuple[Problem, Weights]:
    """The problem whose rows have the noise of `weights`: "scale", or inverse variances [P], up to a factor.

    "scale": noise that goes as a power of the run's size, likeliest for the residuals of `best`, a fit without weights.
    BadInput for weights that are not positive, or where too few rows tell.
    """
    slope = None
    if isinstance(weights, str):
        if weights != BY_SIZE:
            raise BadInput(f"weights={weights!r}: {BY_SIZE!r}, or a weight for each row")
        scatter = measure_scatter(plain, best)
        if scatter is None:
            raise BadInput(
                f"--weights={BY_SIZE}: {plain.points} rows for {len(best.params)} parameters leave too few, or no "
                "error, to tell how the noise changes"
            )
        slope, scale = scatter.slope, scatter.at(plain.columns)
    else:
        given = np.asarray(weights, float)
        if given.shape != (plain.points,) or not np.all((given > 0) & np.isfinite(given)):
            raise BadInput("--weights: a weight is a positive number, the inverse of a row's variance, one a row")
        scale = given**-0.5
    weighted = weigh_rows(plain, scale, run_sizes)
    return weighted, Weights(float(weighted.row_scale.min()), float(weighted.row_scale.max()), slope)


def describe_weights(weights: Weights) -> str:
    """One line on the weights."""
    head = f"weights: noise from {weights.least:.3g} to {weights.most:.3g} times its mean"
    return head if weights.slope is None else f"{head}, as size^{weights.slope:.2g}"
