"""The runs of a scaling study: the grid, the checks of the ladder's learning rate and batch, and the held-out run."""

import dataclasses
from collections.abc import Callable, Iterator

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.sweep.scaling import ladder
from scalelab.sweep.scaling.rules import LadderRule

CHECK_FACTORS = {"lr": (0.5, 2.0), "batch": (0.5, 2.0)}  # factors on the rule's own
WIDTH_MULTIPLE = 8  # step between the widths from which the held-out run is chosen


@dataclasses.dataclass(frozen=True)
class LadderStudy:
    """A study to run: the family, `{budget: sizes}` in FLOPs and d_model, the held-out budget, the rule, its checks."""

    base: ConfigDict
    grid: dict[float, tuple[int, ...]]
    holdout_flops: float
    rule: LadderRule
    checked: tuple[str, ...] = ("lr", "batch")


def fit_runs(study: LadderStudy) -> dict[str, ConfigDict]:
    """The runs of the grid, most expensive first."""
    cells = [(budget, size) for budget, sizes in study.grid.items() for size in sizes]
    runs = {f"fit-{_cell(b, size)}": ladder.make_rung(study.base, size, b, study.rule) for b, size in cells}
    return _most_expensive_first(runs)


def check_runs(study: LadderStudy) -> dict[str, ConfigDict]:
    """The checks of LR and batch, most expensive first."""
    checks = {name: _check(study, cell, kind, factor) for name, cell, kind, factor in list_checks(study)}
    return _most_expensive_first(checks)


def list_checks(study: LadderStudy) -> Iterator[tuple[str, tuple[float, int], str, float]]:
    """(name, (budget, size), "lr" or "batch", factor) of each check.

    Checks are at the smallest and the largest size, each at its cheapest budget.
    """
    for size in check_sizes(study):
        budget = min(budget for budget, sizes in study.grid.items() if size in sizes)
        for kind in study.checked:
            for factor in CHECK_FACTORS[kind]:
                yield f"check-{_cell(budget, size)}-{kind}-x{factor:g}", (budget, size), kind, factor


def checked_twin_name(cell: tuple[float, int]) -> str:
    """The name of the grid run whose LR and batch are checked in this cell."""
    return f"fit-{_cell(*cell)}"


def check_sizes(study: LadderStudy) -> tuple[int, int]:
    """The smallest and the largest width of the grid."""
    sizes = [size for row in study.grid.values() for size in row]
    return min(sizes), max(sizes)


def holdout_runs(study: LadderStudy) -> list[ConfigDict]:
    """The runs from which the held-out one is chosen: all widths in and around the grid that the rule covers.

    BadInput if there are none.
    """
    smallest, largest = check_sizes(study)
    runs, refusals = [], []
    for width in range(smallest, 2 * largest + 1, WIDTH_MULTIPLE):
        try:
            runs.append(ladder.make_rung(study.base, width, study.holdout_flops, study.rule, "holdout"))
        except BadInput as refusal:
            refusals.append(refusal)
    if not runs:
        raise refusals[0]
    return runs


def predicted_best(study: LadderStudy, loss: Callable[[int, int], float]) -> ConfigDict:
    """The run of `holdout_runs` with the least predicted loss."""
    return min(holdout_runs(study), key=lambda run: loss(*size_and_tokens(run)))


def size_and_tokens(run: ConfigDict) -> tuple[int, int]:
    """(N total, D) of a run that isn't trained yet, as in its future record."""
    N = count.count_parameters(config_lib.static(run).model)["total"]
    return N, run.train.steps * run.train.global_batch * run.model.seq_len


def training_flops(run: ConfigDict) -> float:
    """Exact training FLOPs of a run."""
    return run.train.steps * ladder.flops_per_step(run)


def _check(study: LadderStudy, cell: tuple[float, int], kind: str, factor: float) -> ConfigDict:
    budget, size = cell
    return ladder.make_rung(study.base, size, budget, study.rule, "check", **{f"{kind}_factor": factor})


def _cell(budget: float, size: int) -> str:
    return f"{budget:.3g}-d{size}"


def _most_expensive_first(runs: dict[str, ConfigDict]) -> dict[str, ConfigDict]:
    return dict(sorted(runs.items(), key=lambda item: -training_flops(item[1])))
