"""What is wrong with the grid of an IsoFLOP study, all of it at once, and a grid that works."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import NoReturn

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.experiments.ladder_runs import LadderStudy, check_runs, fit_runs, holdout_runs
from scalelab.model import count
from scalelab.sweep.scaling import ladder
from scalelab.sweep.scaling.rules import LadderRule

LEAST = 3  # budgets, and sizes, of a law of two variables
MOST_SIZES = 5
WIDTHS = (16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022: near here the best size of a budget lies
SPREAD = 16.0  # sizes whose own budget is within this factor of the study's bracket its minima
HOLDOUT_FACTOR = 4
MOST_FAULTS = 5  # in one line


def find_faults(study: LadderStudy) -> list[str]:
    """Find why runs of the study can't be made: each reason once, its numbers aside, with the runs that it stops."""
    counts: dict[str, tuple[str, list[str]]] = {}
    for budget, sizes in study.grid.items():
        for size in sizes:
            try:
                ladder.make_rung(study.base, size, budget, study.rule)
            except BadInput as fault:
                _, cells = counts.setdefault(re.sub(r"[\d.e+-]+", "#", str(fault)), (str(fault), []))
                cells.append(f"{budget:.3g} x {size}")
    if counts:
        return [f"{', '.join(cells[:3])}{', …' * (len(cells) > 3)}: {why}" for why, cells in counts.values()]
    try:
        check_runs(study)
        holdout_runs(study)
    except BadInput as fault:
        return [str(fault)]
    return []


def propose_grid(base: ConfigDict, rule: LadderRule, budgets: Sequence[float]) -> str:
    """Propose options of a grid whose runs can all be made, near `budgets` if there are enough of them; "" if none is.

    Sizes are those whose best budget, at 20 tokens a parameter, is near the budgets: their minima are then bracketed.
    No budget is beyond the largest of `budgets`, or twice that of a middle size: a proposal should not cost days.
    """
    low, high = rule.ranges.get("d_model", (WIDTHS[0], WIDTHS[-1]))
    flops_of = {width: flops for width in WIDTHS if low <= width <= high and (flops := _best_budget(base, width))}
    if len(flops_of) < LEAST:
        return ""
    middle = float(f"{list(flops_of.values())[min(len(flops_of), MOST_SIZES) // 2]:.0e}")
    usual = [middle / 2, middle, 2 * middle]
    asked = sorted(set(budgets)) if len(set(budgets)) >= LEAST else usual
    grids = [[factor * budget for budget in asked] for factor in (1, 2, 4, 8, 16, 64, 256, 1024)]
    most = max(usual[-1], asked[-1])
    for grid in [*(grid for grid in grids if grid[-1] <= most), usual]:
        centre = math.sqrt(grid[0] * grid[-1])
        near = sorted(flops_of, key=lambda width: abs(math.log(flops_of[width] / centre)))
        sizes = [w for w in near if grid[0] / SPREAD <= flops_of[w] <= grid[-1] * SPREAD][:MOST_SIZES]
        study = LadderStudy(base, {b: tuple(sorted(sizes)) for b in grid}, HOLDOUT_FACTOR * grid[-1], rule)
        if len(sizes) >= LEAST and not find_faults(study):
            texts = ",".join(f"{budget:g}" for budget in grid), ",".join(map(str, sorted(sizes)))
            return f"--budgets={texts[0]} --sizes={texts[1]}"
    return ""


def _best_budget(base: ConfigDict, width: int) -> float:
    """FLOPs of 20 tokens a parameter at this width; 0 if the family has no model of it."""
    try:
        shape = config_lib.static(ladder.resize_width(base, width)).model
    except BadInput:
        return 0.0
    params = count.count_parameters(shape)["total"]
    return TOKENS_PER_PARAMETER * params * count.flops_per_token(shape)["exact"]


def refuse_options(study: LadderStudy, faults: Sequence[str], of_grid: bool) -> None:
    """BadInput with all faults of options and runs in one line; if some are of the grid, with one that works."""
    if faults:
        beyond = dataclasses.replace(study, holdout_flops=HOLDOUT_FACTOR * max(study.grid, default=0.0))
        of_runs = find_faults(beyond) if study.grid and all(study.grid.values()) else []
        _refuse(study, [*faults, *of_runs], of_grid or bool(of_runs))


def make_runs(study: LadderStudy) -> tuple[dict[str, ConfigDict], dict[str, ConfigDict]]:
    """Make the runs of the grid and the checks. BadInput with all faults of the grid, and with a grid that works."""
    try:
        runs = fit_runs(study), check_runs(study)
        holdout_runs(study)
    except BadInput:
        if faults := find_faults(study):
            _refuse(study, faults, True)
        raise
    return runs


def _refuse(study: LadderStudy, faults: Sequence[str], of_grid: bool) -> NoReturn:
    more = [f"{len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    grid = propose_grid(study.base, study.rule, list(study.grid)) if of_grid else ""
    raise BadInput("; ".join([*faults[:MOST_FAULTS], *more]) + (f"; a grid that works here: {grid}" if grid else ""))
