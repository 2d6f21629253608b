"""Checks of IsoFLOP grids: where each budget's minimum lies, and the error of approach 2 on this very grid.

Legend: P points.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from scalelab.laws.law.law import Law
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.use import decision, isoflop

CENTRAL = 0.25  # a minimum with less than this share of the sizes' range (in log N) on one side is off-centre
FLAT = 0.003  # a smaller rise of the loss at an end (a share of it) says little against the noise of one run
TIGHT = 2 * isoflop.SAME_BUDGET  # largest spread of C in one budget, as a share of it
LOOSE, MANY = 0.25, 8  # ... for a budget of MANY sizes: budgets read off a figure are that loose
STRAY = 1 / 3  # a group with a smaller share of the largest budget's rows is runs that happen to cost the same
CHANCE = 0.01  # grids of which noise alone makes some budget look off-centre
SHARE = 0.5  # a table is an IsoFLOP grid if budgets of three sizes or more hold this share of its rows


@dataclasses.dataclass(frozen=True)
class GridBudget:
    """One budget of a grid and its `rows`.

    `place`: where the minimum lies in the range of log N (0 to 1); `interior`: whether it lies inside; `rise`: the
    share by which the loss rises from there to the lower end. By Akima interpolation, as parabolas are off on wide
    grids.
    """

    C: float
    rows: tuple[int, ...]
    place: float
    rise: float
    interior: bool


def isoflop_budgets(C: np.ndarray, N: np.ndarray, loss: np.ndarray) -> list[GridBudget]:
    """The budgets with three sizes or more; [] if they hold less than half of the rows (not an IsoFLOP grid)."""
    labels, budgets = isoflop.group_budgets(C), []
    for budget in np.unique(labels):
        (rows,) = np.nonzero(labels == budget)
        sizes = len(np.unique(N[rows]))
        if sizes < isoflop.MIN_SIZES or np.ptp(C[rows]) > (LOOSE if sizes >= MANY else TIGHT) * budget:
            continue  # too few sizes; or a chain of runs, each a little dearer than the last
        profile = isoflop.profile_budget(budget, N[rows], loss[rows])
        low, high = np.log([N[rows].min(), N[rows].max()])
        height = profile.curve[1]
        budgets.append(
            GridBudget(
                C=float(budget),
                rows=tuple(rows.tolist()),
                place=float((np.log(profile.N) - low) / (high - low)),
                rise=float(height[[0, -1]].min() / profile.loss - 1.0),
                interior=profile.interior,
            )
        )
    most = max((len(each.rows) for each in budgets), default=0)
    budgets = [each for each in budgets if len(each.rows) >= STRAY * most]
    return budgets if sum(len(each.rows) for each in budgets) >= SHARE * len(C) else []


def surely_off_centre(grid: Sequence[GridBudget], N: np.ndarray, loss: np.ndarray) -> list[bool]:
    """Whether noise doesn't explain that each budget's minimum lies off its centre: in CHANCE of grids it seems to.

    A parabola and a cube that all budgets share, and a level and a slope of each, are fitted to log loss over log N;
    the test is Student's, of the slope where the central part begins. True where no row is left to tell the noise.
    """
    rows = np.array([row for each in grid for row in each.rows])
    label = np.repeat(np.arange(len(grid)), [len(each.rows) for each in grid])
    ends = np.log([[N[list(each.rows)].min(), N[list(each.rows)].max()] for each in grid])
    middle, width = ends.mean(axis=1), np.diff(ends, axis=1)[:, 0]
    x, own = np.log(N[rows]) - middle[label], np.eye(len(grid))[label]
    design = np.column_stack([own, own * x[:, None], x**2, x**3])
    fitted, _, rank, _ = np.linalg.lstsq(design, np.log(loss[rows]))
    spare = len(rows) - rank
    if spare < 1:
        return [True] * len(grid)
    noise = np.sum((np.log(loss[rows]) - design @ fitted) ** 2) / spare
    side = np.where([each.place < 0.5 for each in grid], -1.0, 1.0)
    at = side * (0.5 - CENTRAL) * width
    slopes = np.column_stack([0 * own[: len(grid)], np.eye(len(grid)), 2 * at, 3 * at**2])
    spread = np.sqrt(noise * np.einsum("bi,ij,bj->b", slopes, np.linalg.pinv(design.T @ design), slopes))
    beyond = -side * (slopes @ fitted)  # above 0 where the loss still falls there, away from the middle
    return [bool(each) for each in beyond > special.stdtrit(spare, 1 - CHANCE / len(grid)) * spread]


@dataclasses.dataclass(frozen=True)
class Approach2:
    """Approach 2 on exact losses of a known law on a grid: exponent a of N_opt ~ C^a, and the error of D at `C` FLOPs.

    `a_true` is the law's own exponent; `D_error` is approach 2's D over the law's own, minus 1.
    """

    method: str
    a: float
    a_true: float
    C: float
    D_error: float

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)


def approach2_bias(
    law: Law,
    params: Mapping[str, float],
    grid: Sequence[GridBudget],
    N: np.ndarray,
    target_flops: float,
    k: float,
    method: str = "parabola",
    held: Mapping[str, float] | None = None,
) -> Approach2:
    """Fit noise-free losses of the law, at the grid's budgets and sizes, by approach 2, and compare both at the target.

    The bias follows from the exponents and the grid's width alone (arXiv 2603.22339): a parabola is symmetric, the law
    around its minimum is not. N [P] are the sizes to which `grid` refers; C = k N D. FitError where the grid has fewer
    than two interior minima or the law has no best size.
    """
    law_at = {name: np.asarray(value, float) for name, value in params.items()}
    C = np.concatenate([np.full(len(each.rows), each.C) for each in grid])
    sizes = np.concatenate([N[list(each.rows)] for each in grid])
    fitted = isoflop.fit_isoflop(C, sizes, decision.losses_at_budget(law, law_at, sizes, C, k, held or {}), method)
    ends = np.array([C.max(), target_flops])
    true_N = np.array([decision.optimal_size(law, law_at, end, k, held or {})[0] for end in ends])
    if not (np.isfinite(true_N) & (true_N > 0)).all():
        raise FitError(f"the law has no compute-optimal size at {target_flops:.3g} FLOPs")
    return Approach2(
        method=method,
        a=fitted.a,
        a_true=float(np.diff(np.log(true_N))[0] / np.diff(np.log(ends))[0]),
        C=float(target_flops),
        D_error=float(true_N[1] / fitted.n_opt(target_flops) - 1.0),
    )
