"""Rows of one configuration, and rows that are copies of each other. P points."""

import numpy as np
from scipy import special
from scipy.spatial import cKDTree

from scalelab.laws.law.law import logs_of
from scalelab.laws.read.finding import Finding
from scalelab.laws.solve.problem import Columns

NEAR = 0.01  # rows this close in every column are one configuration
SAME = 1e-9
CHANCE = 0.01  # tables of honest seeds whose equal losses, by rounding, are called copies
USUAL_NOISE = 0.002  # of a run's loss, where no two rows of a configuration differ
MOST_DIGITS = 12


def repeated_rows(columns: Columns, target: np.ndarray) -> list[Finding]:
    """Rows that are copies of each other, and rows of (nearly) one configuration."""
    logs = np.stack([logs_of(values) for values in columns.values()], axis=1)
    copy = _nearest_distance(np.column_stack([logs, logs_of(target)])) < SAME
    if copy.any() and _rounding_explains(logs, target):
        copy[:] = False
    close = (_nearest_distance(logs) < np.log1p(NEAR)) & ~copy
    findings = []
    if copy.any():
        text = f"equal to another row, loss and all: {copy.sum()} rows; each such run counts twice"
        findings.append(Finding("duplicates", text, _rows(copy)))
    if close.any():
        text = (
            f"within {NEAR:.0%} of another row in every column: {close.sum()} rows; "
            "they tell about noise, hardly more about the law: resample them together"
        )
        findings.append(Finding("near-duplicates", text, _rows(close)))
    return findings


def _rounding_explains(logs: np.ndarray, target: np.ndarray) -> bool:
    """Whether as many seeds of one configuration have equal losses by chance, as these are rounded."""
    _, label = np.unique(np.round(logs, 9), axis=0, return_inverse=True)
    order = np.lexsort([target, label.ravel()])
    steps = np.diff(logs_of(target)[order])[np.diff(label.ravel()[order]) == 0]  # neighbours of one configuration
    apart = steps[steps > SAME]
    noise = np.sqrt(np.mean(steps**2) / 2) if len(apart) else USUAL_NOISE
    unit = float(target.mean()) if np.all(target > 0) else 1.0  # steps are of logs, or of the target itself
    tie = min(1.0, _resolution(target) / unit / (2 * np.sqrt(np.pi) * noise))
    ties = len(steps) - len(apart)
    return bool(special.bdtrc(ties - 1, len(steps), tie) >= CHANCE)


def _resolution(target: np.ndarray) -> float:
    """The step by which the losses are rounded."""
    for digits in range(MOST_DIGITS):
        if np.allclose(np.round(target, digits), target, rtol=1e-12, atol=0):
            return float(10.0**-digits)
    return float(10.0**-MOST_DIGITS)


def _nearest_distance(points: np.ndarray) -> np.ndarray:
    """Distance [P] of points [P, columns] to their nearest neighbours: the largest difference in any coordinate."""
    return cKDTree(points).query(points, k=2, p=np.inf)[0][:, 1]


def _rows(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())
