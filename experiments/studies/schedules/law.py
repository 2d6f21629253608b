"""The multi-power law fitted to two curves, and the curves of schedules that it has not seen."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.curves.curve import Curve
from scalelab.laws.curves.fit import fit_curves

FITTED = ("constant", "cosine")
LEAST_RESAMPLES = 20  # intervals are not reported: two schedules are too few to trust them


def score_law(curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Parameters, and for each schedule the mean relative error of its curve, of its end, and of the baseline."""
    fitted = fit_curves([curves[arm] for arm in FITTED], "multi_power", bootstrap=LEAST_RESAMPLES)
    rows = []
    for arm, curve in curves.items():
        prediction = fitted.predict(curve)
        measured = prediction.measured
        assert measured is not None
        rows.append(
            {
                "arm": arm,
                "fitted": arm in FITTED,
                "error": relative_error(prediction.loss, measured),
                "baseline": relative_error(prediction.baseline, measured),
                "end": float(prediction.loss[-1] / measured[-1] - 1),
                "steps": prediction.steps.tolist(),
                "loss": prediction.loss.tolist(),
                "measured": measured.tolist(),
            }
        )
    return {"params": fitted.best.params, "rows": rows}


def relative_error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Mean of |predicted / measured - 1|."""
    return float(np.abs(predicted / measured - 1).mean())
