"""Fit the GPUs' shares by size, kernel and unit on published step times; and again without each system in turn.

The shares stand in scalelab/plan/step/efficiency.py, the two factors of passes in systems.py. Errors are of the log of
seconds, in a robust loss; rows of one system on one chip count together as the square root of their number or less,
and each parameter is drawn to a prior, which decides alone where no row speaks of it.
"""

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from checks.speed.step_times.rows import PublishedStep
from scalelab.plan.step import operations
from scalelab.plan.step.device_share import Operation
from scalelab.plan.step.efficiency import GPU_EFFICIENCY, Curve, Efficiency, machine_platform
from scalelab.plan.step.links import Transfer
from scalelab.plan.step.systems import EAGER_PASSES, OUR_PASSES
from scalelab.plan.step.time import expected_of
from scalelab.plan.step.traffic import step_transfers

# parameter: (prior, its width in logs). Shares are of .6 in products and .5 in attention. cuDNN's length is that of
# Shah et al. 2024 (figures 5 and 6): few rows differ in it.
PRIORS = {
    "products": (1.05, 0.2), "products_side": (160.0, 0.7), "float8": (1.1, 0.2), "float8_side": (256.0, 0.7),
    "flash2": (0.6, 0.5), "flash2_length": (300.0, 1.0), "cudnn": (0.95, 0.3), "cudnn_length": (350.0, 0.1),
    "float32": (1.0, 0.3),
    "tensorfloat32": (1.0, 0.3), "eager_passes": (2.0, 0.3), "our_passes": (1.3, 0.5),
}  # fmt: skip
OF_GENERATION = {
    "ampere": ("products", "products_side", "flash2", "flash2_length", "eager_passes"),
    "hopper": tuple(PRIORS),
    "blackwell": ("float8", "cudnn"),
}
HBM_SHARES = (0.7, 0.85, 0.94)  # of the bandwidth: the ends of its range and what is expected, each tried by itself
MOST_ROWS, MOST_COMPARED = 12, 4  # of one system on one chip in a fit that leaves another out; in `compare_hbm`


class Row(NamedTuple):
    name: str
    published: PublishedStep
    operations: tuple[Operation, ...]
    transfers: tuple[Transfer, ...]

    @property
    def group(self) -> tuple[str, str]:
        """(system, chip)."""
        return self.name.split()[0], self.published.machine.chip.name


def prepare_rows(rows: dict[str, PublishedStep]) -> list[Row]:
    """Those of GPUs, each with its work, which no share changes."""
    return [
        Row(
            name,
            row,
            operations.step_operations(row.static, row.machine, row.traits),
            step_transfers(row.static, row.traits),
        )
        for name, row in rows.items()
        if machine_platform(row.machine) == "gpu"
    ]


def generation(row: Row) -> str:
    """ampere | hopper | blackwell, by the chip's name in the tables."""
    chip = row.published.machine.chip.name
    return "blackwell" if re.search(r"B[23]00", chip) else "hopper" if "H" in chip else "ampere"


def efficiency_of(parameters: dict[str, float]) -> Efficiency:
    """GPUs' efficiencies with these shares."""
    p = parameters
    curves = {
        "": Curve(p["products"], p["products_side"]), "float8": Curve(p["float8"], p["float8_side"]),
        "flash2": Curve(p["flash2"], p["flash2_length"]), "cudnn": Curve(p["cudnn"], p["cudnn_length"]),
        "float32": Curve(p["float32"]), "tensorfloat32": Curve(p["tensorfloat32"]),
    }  # fmt: skip
    expected = dataclasses.replace(GPU_EFFICIENCY.hbm, expected=p.get("hbm", GPU_EFFICIENCY.hbm.expected))
    return dataclasses.replace(GPU_EFFICIENCY, curves=tuple(curves.items()), hbm=expected)


def seconds(row: Row, parameters: dict[str, float]) -> float:
    """Expected seconds of a row with these parameters."""
    published, factor = row.published, 1.0
    if published.traits.wide_outputs:
        factor = parameters["our_passes"] / OUR_PASSES
    elif published.traits.passes != 1:
        factor = parameters["eager_passes"] / EAGER_PASSES
    ops = tuple(
        op if op.flops or op.part != "block" or op.name == "softmax" else op._replace(bytes=op.bytes * factor)
        for op in row.operations
    )
    return expected_of(published.static, published.machine, efficiency_of(parameters), ops, row.transfers)


def fit_parameters(rows: list[Row], names: Iterable[str], hbm: float | None = None) -> dict[str, float]:
    """The parameters that these rows are nearest to; those without a name here stay at their priors.

    `hbm`: the share of the memory's bandwidth, where it is not the plan's.
    """
    names, prior = tuple(names), {name: value for name, (value, _) in PRIORS.items()}
    prior |= {} if hbm is None else {"hbm": hbm}
    weights = [sum(other.group == row.group for other in rows) ** -0.35 for row in rows]

    def parameters(logs: np.ndarray) -> dict[str, float]:
        return prior | {name: math.exp(value) for name, value in zip(names, logs, strict=True)}

    def residuals(logs: np.ndarray) -> np.ndarray:
        at = parameters(logs)
        errors = [w * math.log(seconds(row, at) / row.published.seconds) for w, row in zip(weights, rows, strict=True)]
        drawn = [
            0.1 * (value - math.log(prior[name])) / PRIORS[name][1] for name, value in zip(names, logs, strict=True)
        ]
        return np.array(errors + drawn)

    start = np.log([prior[name] for name in names])
    solved = least_squares(residuals, start, loss="soft_l1", f_scale=0.1, diff_step=1e-3, xtol=3e-3, ftol=3e-3)
    return parameters(solved.x)


def fit_generations(rows: list[Row]) -> dict[str, dict[str, float]]:
    """The fitted parameters of each generation."""
    return {
        name: {key: round(value, 3) for key, value in fit_parameters(_of(rows, name), keys).items() if key in keys}
        for name, keys in OF_GENERATION.items()
    }


def compare_hbm(rows: list[Row]) -> dict[str, dict[str, float]]:
    """{share of the bandwidth: mean absolute error, each system left out, by generation and in all}.

    Of at most MOST_COMPARED rows of a system on a chip; Blackwell's are all of one system.
    """
    rows, means = _thinned(rows, MOST_COMPARED), dict[str, dict[str, float]]()
    names = [name for name in OF_GENERATION if len({row.group[0] for row in _of(rows, name)}) > 1]
    rows = [row for row in rows if generation(row) in names]
    for share in HBM_SHARES:
        errors = left_out_errors(rows, share)
        groups = {name: [errors[row.name] for row in _of(rows, name)] for name in names}
        groups["all"] = list(errors.values())
        means[str(share)] = {name: float(np.mean(np.abs(group))) for name, group in groups.items()}
    return means


def left_out_errors(rows: list[Row], hbm: float | None = None) -> dict[str, float]:
    """Each row's error with parameters that no row of its own system had a part in."""
    errors: dict[str, float] = {}
    for name, keys in OF_GENERATION.items():
        group = _of(rows, name)
        for system in sorted({row.group[0] for row in group}):
            others = _thinned([row for row in group if row.group[0] != system])
            fitted = fit_parameters(others, keys, hbm)
            errors |= {
                row.name: seconds(row, fitted) / row.published.seconds - 1 for row in group if row.group[0] == system
            }
    return errors


def _of(rows: list[Row], name: str) -> list[Row]:
    return [row for row in rows if generation(row) == name]


def _thinned(rows: list[Row], most: int = MOST_ROWS) -> list[Row]:
    """At most so many of each system and chip, evenly through its table."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [row for group in groups.values() for row in group[:: -(-len(group) // most)]]
