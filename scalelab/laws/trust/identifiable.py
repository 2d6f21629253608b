"""Can these runs tell the law's parameters apart at all? Asked before any fit: what can't be is refused, and says why.

Legend: G parameter values tried, K parameters, P points.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve import newton, optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns, Problem

SAME = 0.02  # values this close are one: steps are whole numbers, so no grid is exact
SAME_BUDGET = 0.1  # budgets: sizes and steps are both whole numbers
MIN_BUDGETS = 3
EXACT = 1e-6  # relative noise in the loss, a thousandth of any real one, at which a parameter must still be determined
TRIED = 16  # of the seeds that fit best; the runs must fail at all of them to be refused
LEAST_SHARE = 0.05  # of the target that each linear term is taken to have: a term of zero would hide its own exponent
TOGETHER = 0.02  # N and D move together where log D is a straight line in log N up to this
TAKES_PART = 0.1  # a parameter with this component of an undetermined direction is named


def check_identifiable(
    law: Law, columns: Columns, target: np.ndarray, weights: ArrayLike | None = None, log: bool = True,
    flops: ArrayLike | None = None,
) -> None:  # fmt: skip
    """BadInput where the rows (those of weight 1) cannot identify the law; it says what is missing.

    `flops` [P]: what each run cost (default: 6 N D); `log`: residuals are of logs.

    Three reasons: fewer rows than parameters; parameters that even losses exact to 1e-6 leave open, at whatever values of
    the law (one D for all N, two sizes, no repeated token, …); and for a law of loss over N and D, fewer than three
    budgets, or N and D that never vary apart: then only the curvature of the law's own form would tell the terms apart.
    """
    weights = np.ones(len(target)) if weights is None else np.asarray(weights, float)
    rows, count = weights > 0, len(law.params)
    used = {name: column[rows] for name, column in columns.items()}
    if rows.sum() < count:
        raise BadInput(f"{rows.sum()} runs: law {law.name!r} has {count} parameters and needs at least {count}")
    if open_ := undetermined_params(law, columns, target, weights, log):
        raise BadInput(f"law {law.name!r}: these runs cannot tell {_join_names(open_)}: {_describe_lack(used)}")
    if law.target == "loss" and {"N", "D"} <= set(law.columns) and count > MIN_BUDGETS:
        cost = FLOPS_PER_PARAM_TOKEN * columns["N"] * columns["D"] if flops is None else np.asarray(flops, float)
        _check_grid(law, used["N"], used["D"], cost[rows])


def _check_grid(law: Law, N: np.ndarray, D: np.ndarray, flops: np.ndarray) -> None:
    """BadInput for a grid of N and D with too few budgets, or on a line."""
    if len(distinct_values(N)) == 1 or len(distinct_values(D)) == 1:
        raise BadInput(f"law {law.name!r}: {_describe_lack({'N': N, 'D': D})}")
    budgets = distinct_values(flops, SAME_BUDGET)
    if len(budgets) < MIN_BUDGETS:
        raise BadInput(
            f"law {law.name!r}: {len(budgets)} budget{'s' * (len(budgets) > 1)} ("
            f"{', '.join(f'{C:.3g}' for C in budgets)} FLOPs); a power law with an offset needs three: add runs at "
            f"{'another' if len(budgets) == 2 else 'two others'}, a factor of 4 or more away"
        )
    n, d = np.log(N), np.log(D)
    power, constant = np.polyfit(n, d, 1)
    if np.abs(d - power * n - constant).max() < TOGETHER:
        raise BadInput(
            f"law {law.name!r}: D follows N in every run (D ~ N^{power:.2g}), so that the terms in N and in D could trade "
            "places: at some N, add runs with another D"
        )


def undetermined_params(
    law: Law, columns: Columns, target: np.ndarray, weights: np.ndarray, log: bool = True
) -> list[str]:
    """Parameters that rows of weight 1 leave open even with losses exact to 1e-6; [] where all are determined.

    Judged by the sensitivities at the law's best seeds, nearly equal column values taken as equal. A parameter is open
    where its standard error would exceed the whole range it is searched in.
    """
    rows = weights > 0
    merged = {name: np.where(rows, merge_near_values(column, rows), column) for name, column in columns.items()}
    posed = pose_problem(law, merged, target, Objective("least squares", np.inf, log=log))
    x = _plausible_params(posed, weights)
    info = posed.derivatives(x, np.broadcast_to(weights, (len(x), len(weights))))[1]
    info = info[np.isfinite(info).all(axis=(1, 2))]
    if not len(info):
        return []
    noise = EXACT if log else EXACT * target.mean()
    reach = _coordinate_reach(posed) / noise
    values, vectors = np.linalg.eigh(info * np.outer(reach, reach))
    best = values[:, 0].argmax()
    weak = np.abs(vectors[best][:, values[best] < 1.0]) > TAKES_PART
    return [name for name, takes_part in zip(law.params, weak.any(axis=1), strict=True) if takes_part]


def _plausible_params(posed: Problem, weights: np.ndarray) -> np.ndarray:
    """x [<= TRIED, K]: the best seeds of variable projection, every linear term at a share of the target that shows."""
    x = newton.variable_projection(posed, weights[None], optimum.start_points(posed))[0]
    linear = posed.places(posed.law.linear)
    x[:, linear] = np.maximum(x[:, linear], LEAST_SHARE * posed.target.mean())
    values = posed.value(x, np.broadcast_to(weights, (len(x), len(weights))))
    order = np.argsort(values, kind="stable")[:TRIED]
    return x[order[np.isfinite(values[order])]]


def _coordinate_reach(posed: Problem) -> np.ndarray:
    """Half the range [K] that each coordinate may sensibly take: of a linear term, the target's size."""
    kinds = posed.law.params.values()
    widths = [
        np.log(np.divide(*kind.starts[::-1])) if kind.how == "log" else np.subtract(*kind.starts[::-1])
        for kind in kinds
    ]
    return np.where(np.isfinite(widths), widths, posed.target.mean())


def distinct_values(values: np.ndarray, tolerance: float = SAME) -> np.ndarray:
    """The different values in rising order, those within `tolerance` of the first of a group as their geometric mean."""
    return np.unique(merge_near_values(values, np.ones(len(values), bool), tolerance))


def merge_near_values(values: np.ndarray, rows: np.ndarray, tolerance: float = SAME) -> np.ndarray:
    """Each value [P] as the geometric mean of its group (of the given rows). A dense column gives many groups, not one."""
    order = np.flatnonzero(rows)[np.argsort(values[rows], kind="stable")]
    merged, first = np.array(values, float), 0
    for i in range(1, len(order) + 1):
        if i == len(order) or values[order[i]] > values[order[first]] * (1 + tolerance):
            merged[order[first:i]] = np.exp(np.log(values[order[first:i]]).mean())
            first = i
    return merged


def _describe_lack(columns: Mapping[str, np.ndarray]) -> str:
    """What the runs lack, in words."""
    few = {name: distinct_values(values) for name, values in columns.items()}
    said = [
        f"{name} has {'one value' if len(v) == 1 else 'only two values'} ({' and '.join(f'{x:.4g}' for x in v)}) in all "
        f"{len(columns[name])} runs; vary it, with three values or more"
        for name, v in few.items()
        if len(v) < 3
    ]
    if "U" in columns and "D" in columns and not (columns["D"] > columns["U"] * (1 + SAME)).any():
        said.append("no run repeats its data (D is never above U); add runs of several epochs")
    return "; ".join(said) or "its terms do not vary independently; add runs that change one column at a time"


def _join_names(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]} apart" if len(names) > 1 else f"what {names[0]} is"
