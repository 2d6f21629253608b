"""Measured tables that come with the package.

quickstart.csv   the 31 runs of one quickstart (split 0, seed 0; 2026-11-22, Intel Xeon, 2 cores, Python 3.11.7's text,
jax
                 0.10.2): 26 fitted, 4 checks of the LR, and the held-out one. N total, C exact, val_loss nats per
                 token.
"""

import csv
import pathlib
from typing import Any

QUICKSTART = pathlib.Path(__file__).parent / "quickstart.csv"


def read_quickstart() -> list[dict[str, Any]]:
    """The rows of quickstart.csv, numbers as numbers, as `fit_study` takes them."""
    with QUICKSTART.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row |= {key: float(row[key]) for key in ("d_model", "steps", "peak_lr", "N", "D", "C", "val_loss")}
    return rows
