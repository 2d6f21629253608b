"""Both arms compared: the loss of each cell, the exponent of the best size, the slope in tokens, FLOPs spent."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from scalelab.experiments.shared import find_runs
from scalelab.experiments.studies.one_trunk import grid
from scalelab.laws import FitError
from scalelab.laws.use.isoflop import fit_isoflop, group_budgets
from scalelab.laws.use.seed_noise import measure_noise
from scalelab.record import records

Losses = Mapping[grid.Cell, list[float]]
LEVEL = 0.9


def mean_and_error(values: Sequence[float]) -> dict[str, float]:
    """Mean over seeds, its standard error, and Student's 90 % interval."""
    error = float(np.std(values, ddof=1) / len(values) ** 0.5)
    half_width = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * error
    mean = float(np.mean(values))
    return {"mean": mean, "error": error, "low": mean - half_width, "high": mean + half_width}


def list_differences(branches: Losses, own: Losses) -> list[dict[str, Any]]:
    """A row for each cell: mean losses of both arms, and the difference by seed."""
    return [
        {
            "width": cell[0],
            "steps": cell[1],
            "flops": grid.count_flops(cell),
            "branch": float(np.mean(branches[cell])),
            "own": float(np.mean(own[cell])),
            **mean_and_error(np.subtract(branches[cell], own[cell]).tolist()),
        }
        for cell in branches
    ]


def mean_over_cells(branches: Losses, own: Losses) -> dict[str, float]:
    """The mean difference over all cells; its error is between seeds, as cells of one trunk share their noise."""
    differences = np.array([np.subtract(branches[cell], own[cell]) for cell in branches])
    return mean_and_error(differences.mean(axis=0).tolist())


def fit_exponent(losses: Losses) -> dict[str, Any] | None:
    """The power law through the best sizes, with its interval from the noise of seeds; None without two minima."""
    rows = [(cell, loss, seed) for cell, each in losses.items() for seed, loss in enumerate(each)]
    C = np.array([grid.count_flops(cell) for cell, _, _ in rows])
    N = np.array([grid.count_parameters(cell[0]) for cell, _, _ in rows])
    loss, seeds = np.array([loss for _, loss, _ in rows]), np.array([seed for _, _, seed in rows])
    noise = measure_noise(group_budgets(C), N, loss, seeds)
    try:
        return fit_isoflop(C, N, loss, noise=noise, level=LEVEL).to_json()
    except FitError:
        return None


def token_slopes(losses: Losses) -> dict[str, dict[str, float]]:
    """{width: d log L / d log D over seeds}, and `mean` over the widths."""
    by_seed = {}
    for width in sorted({width for width, _ in losses}):
        cells = [cell for cell in losses if cell[0] == width]
        log_loss = np.log([losses[cell] for cell in cells])
        by_seed[str(width)] = np.polyfit(np.log([steps for _, steps in cells]), log_loss, 1)[0]
    slopes = {width: mean_and_error(each.tolist()) for width, each in by_seed.items()}
    return slopes | {"mean": mean_and_error(np.mean([*by_seed.values()], axis=0).tolist())}


def trained_flops(folder: pathlib.Path) -> float:
    """Exact FLOPs of the steps that the runs below `folder` took themselves, from their records and logs."""
    total = 0.0
    for place in find_runs(folder).values():
        start = records.read_record(place).get("branch_from", {}).get("step", 0)
        last = max(line["step"] for line in records.read_metrics(place))
        total += grid.count_flops((records.read_config(place)["model"]["d_model"], last - start))
    return total
