"""Whether these runs can tell the law's parameters apart: checked before any fit; if not, BadInput says why.

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

SAME = 0.02  # values this close count as equal: steps are whole numbers, so no grid is exact
SAME_BUDGET = 0.1  # ... for budgets, whose sizes and steps are both whole numbers
MIN_BUDGETS = 3
EXACT = 1e-6  # relative noise of the loss, a thousandth of real noise, at which each parameter must be determined
TRIED = 16  # so many of the best seeds are judged; runs are refused only if they fail at all of them
LEAST_SHARE = 0.05  # least share of the target in each linear term: a term of zero would hide its own exponent
TOGETHER = 0.02  # N and D move together if log D is a straight line in log N up to this
TAKES_PART = 0.1  # a parameter with this component of an undetermined direction is named


def check_identifiable(
    law: Law,
    columns: Columns,
    target: np.ndarray,
    weights: ArrayLike | None = None,
    log: bool = True,
    flops: ArrayLike | None = None,
) -> None:
    """Check that the rows of weight 1 identify the law; else BadInput says what is missing.

    `flops` [P]: the cost of each run (default: 6 N D); `log`: residuals are of logs.

    Three reasons to refuse: fewer rows than parameters; parameters left open even by losses exact to 1e-6, at all seeds
    (one D for all N, two sizes, no repeated token, …); and for a law of loss over N and D, fewer than three budgets, or
    N and D that never vary apart: then only the curvature of the law's own form would tell the terms apart.
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
    """BadInput for a grid of N and D with too few budgets, or with all runs on one line."""
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
            f"law {law.name!r}: D follows N in every run (D ~ N^{power:.2g}), so that the terms in N and in D could "
            "trade places: at some N, add runs with another D"
        )


def undetermined_params(
    law: Law, columns: Columns, target: np.ndarray, weights: np.ndarray, log: bool = True
) -> list[str]:
    """Parameters that rows of weight 1 leave open even with losses exact to 1e-6; [] if all are determined.

    Judged by the sensitivities at the law's best seeds; nearly equal column values count as equal. A parameter is open
    if its standard error would exceed the whole range of its search.
    """
    rows = weights > 0
    merged = {name: np.where(rows, merge_near_values(column, rows), column) for name, column in columns.items()}
    posed = pose_problem(law, merged, target, Objective("least squares", np.inf, log=log))
    x = _plausible_params(posed, weights)
    if not len(x):
        raise BadInput(_describe_undefined(posed))
    return open_params(posed, x, weights)


def open_params(posed: Problem, x: np.ndarray, weights: np.ndarray) -> list[str]:
    """Parameters that rows of weight 1 leave open at all of x [G, K], even with losses exact to 1e-6."""
    info = posed.derivatives(x, np.broadcast_to(weights, (len(x), len(weights))))[1]
    info = info[np.isfinite(info).all(axis=(1, 2))]
    if not len(info):
        return []
    noise = EXACT if posed.objective.log else EXACT * np.abs(posed.target).mean()
    reach = _coordinate_reach(posed) / noise
    values, vectors = np.linalg.eigh(info * np.outer(reach, reach))
    best = values[:, 0].argmax()
    weak = np.abs(vectors[best][:, values[best] < 1.0]) > TAKES_PART
    return [name for name, takes_part in zip(posed.law.params, weak.any(axis=1), strict=True) if takes_part]


def _plausible_params(posed: Problem, weights: np.ndarray) -> np.ndarray:
    """The best seeds of variable projection [<= TRIED, K], each linear term at least LEAST_SHARE of the target."""
    seeds = newton.variable_projection(posed, weights[None], optimum.start_points(posed))[0]
    linear = posed.places(posed.law.linear)
    for share in (LEAST_SHARE, LEAST_SHARE / 10, LEAST_SHARE / 100):  # a large subtracted term makes a law negative
        x = seeds.copy()
        x[:, linear] = np.maximum(x[:, linear], share * np.abs(posed.target).mean())
        values = posed.value(x, np.broadcast_to(weights, (len(x), len(weights))))
        order = np.argsort(values, kind="stable")[:TRIED]
        if np.isfinite(values[order]).any():
            break
    return x[order[np.isfinite(values[order])]]


def _describe_undefined(posed: Problem) -> str:
    """The error line for a law without a finite penalty at any seed: the rows where it never is a number."""
    law, seeds = posed.law, optimum.start_points(posed)
    params = {name: np.ones(len(seeds)) for name in law.linear}
    for name, values in zip(law.searched, seeds.T, strict=True):
        params[name] = np.exp(values) if law.params[name].how == "log" else values
    losses = law(posed.columns, {name: values[:, None] for name, values in params.items()})
    never = ~np.isfinite(np.broadcast_to(losses, (len(seeds), posed.points))).any(axis=0)
    where = f"is not a finite number at {never.sum()} of {posed.points} rows" if never.any() else "is not positive"
    return f"law {law.name!r} {where}, whatever its parameters: look at its logs, roots, powers and signs"


def _coordinate_reach(posed: Problem) -> np.ndarray:
    """The width [K] of the range that each coordinate may sensibly take; for a linear term, the target's size."""
    ends = [(kind.how, kind.starts[::-1]) for kind in posed.law.params.values()]
    widths = [np.log(np.divide(*pair)) if how == "log" else np.subtract(*pair) for how, pair in ends]
    return np.where(np.isfinite(widths), widths, np.abs(posed.target).mean())


def distinct_values(values: np.ndarray, tolerance: float = SAME) -> np.ndarray:
    """The different values in rising order, near ones merged (`merge_near_values`)."""
    return np.unique(merge_near_values(values, np.ones(len(values), bool), tolerance))


def merge_near_values(values: np.ndarray, rows: np.ndarray, tolerance: float = SAME) -> np.ndarray:
    """Replace each value [P] of the given rows by the geometric mean of its group.

    A group holds the values within `tolerance` of its first, so that a dense column gives many groups, not one.
    """
    order = np.flatnonzero(rows)[np.argsort(values[rows], kind="stable")]
    merged, first = np.array(values, float), 0
    for i in range(1, len(order) + 1):
        if i == len(order) or values[order[i]] > values[order[first]] * (1 + tolerance):
            merged[order[first:i]] = np.exp(np.log(values[order[first:i]]).mean()) if values[order[first]] > 0 else 0.0
            first = i
    return merged


def _describe_lack(columns: Mapping[str, np.ndarray]) -> str:
    """Describe what the runs lack, for an error line."""
    few = {name: distinct_values(values) for name, values in columns.items()}
    lacks = [
        f"{name} has {'one value' if len(v) == 1 else 'only two values'} ({' and '.join(f'{x:.4g}' for x in v)}) in "
        f"all {len(columns[name])} runs; vary it, with three values or more"
        for name, v in few.items()
        if len(v) < 3
    ]
    if "U" in columns and "D" in columns and not (columns["D"] > columns["U"] * (1 + SAME)).any():
        lacks.append("no run repeats its data (D is never above U); add runs of several epochs")
    return "; ".join(lacks) or "its terms do not vary independently; add runs that change one column at a time"


def _join_names(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]} apart" if len(names) > 1 else f"what {names[0]} is"
