"""Draws of a law's misfit in a fit's JSON, for whoever decides by that file."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.trust.discrepancy import Discrepancy
from scalelab.laws.trust.form import FREQUENCIES, LENGTHS, place_basis


def draws_to_json(misfit: Discrepancy, some: np.ndarray) -> dict[str, Any] | None:
    """The chosen draws as plain JSON values, for decisions by a fit's file; None where they differ by group."""
    if misfit.basis.group:
        return None
    weights = [[float(f"{value:.6g}") for value in row] for row in misfit.weights[some]]
    return {
        "columns": list(misfit.basis.names), "centre": misfit.basis.centre.tolist(), "log": misfit.log,
        "length": misfit.length[some].tolist(), "weights": weights,
    }  # fmt: skip


def read_draws(content: Mapping[str, Any]) -> Discrepancy:
    """The inverse of `draws_to_json`. ValueError for another shape."""
    basis, _ = place_basis([str(name) for name in content["columns"]], [float(value) for value in content["centre"]])
    weights, length = np.array(content["weights"], float), np.array(content["length"], int)
    if weights.shape != (len(length), 2 * FREQUENCIES) or len(basis.names) != len(basis.centre):
        raise ValueError("bootstrap.misfit has another shape")
    if not (np.isfinite(weights).all() and set(length.tolist()) <= set(range(len(LENGTHS)))):
        raise ValueError("bootstrap.misfit has a weight or a length that no fit has")
    count = len(length)
    return Discrepancy(
        basis, weights, length, np.ones(count), np.zeros((count, 0)), bool(content["log"]), widened=1.0, forecasts=0
    )
