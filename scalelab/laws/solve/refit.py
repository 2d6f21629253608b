"""Refits of one problem to many resamples of its rows: each from the whole table's optimum and from seeds of its own.

Legend: R resamples, P points, K parameters.
"""

from collections.abc import Sequence

import numpy as np

from scalelab.laws.solve import near_fit, newton, optimum
from scalelab.laws.solve.problem import Columns, Problem

RESTARTS, RESTART_SPREAD = 5, 64  # grid and spread of each resample's own seeds, tried beside the fit
FALL_STEPS = 4  # points on the way from that seed to the fit at which the objective is evaluated
BATCH = 60_000  # resamples x runs fitted at once: what a processor's cache holds
SEEDED = 4  # resamples of a large table that are also fitted from seeds of their own
MIN_SIZES = {"N": 3, "D": 3, "C": 3}  # a power law with an offset needs three values; of any other column, two


def refit_weighted(problem: Problem, weights: np.ndarray, warm: np.ndarray) -> newton.Solutions:
    """Fit each row of weights [R, P] from `warm` (x [K]) and from the row's own best seed; the lower optimum counts.

    If no seed of the first batch leads lower than `warm`, later ones are skipped where the objective falls all the way
    on the straight line from the seed to the solution from `warm`: the seed lies in that solution's basin.
    Resamples of a large table (`near_fit.MANY_ROWS`) resemble each other, and few are tried from seeds.
    """
    if problem.points > near_fit.MANY_ROWS:
        return _refit_many_rows(problem, weights, warm)
    rows = max(1, BATCH // weights.shape[1])
    first_batch, n_lower = _refit_batch(problem, weights[:rows], warm, every=True)
    batches = [first_batch]
    for i in range(rows, len(weights), rows):
        batches.append(_refit_batch(problem, weights[i : i + rows], warm, every=n_lower > 0)[0])
    return join_solutions(batches)


def _refit_many_rows(problem: Problem, weights: np.ndarray, warm: np.ndarray) -> newton.Solutions:
    """Fit rows of a large table: if no seed of the first SEEDED leads lower, none of the others is tried."""
    seeded = [_refit_batch(problem, weights[i : i + 1], warm, every=True) for i in range(min(SEEDED, len(weights)))]
    parts, rest = [solutions for solutions, _ in seeded], weights[SEEDED:]
    if any(n_lower for _, n_lower in seeded):
        parts += [_refit_batch(problem, rest[i : i + 1], warm, every=True)[0] for i in range(len(rest))]
    elif len(rest):
        parts.append(near_fit.refit_near(problem, rest, warm))
    return join_solutions(parts)


def join_solutions(parts: Sequence[newton.Solutions]) -> newton.Solutions:
    """The solutions of several batches of resamples as one."""
    return newton.Solutions(*(np.concatenate(fields) for fields in zip(*map(_solution_fields, parts), strict=True)))


def _solution_fields(solutions: newton.Solutions) -> tuple[np.ndarray, ...]:
    return solutions.x, solutions.objective, solutions.converged


def _refit_batch(problem: Problem, weights: np.ndarray, warm: np.ndarray, every: bool) -> tuple[newton.Solutions, int]:
    """Fit one batch of rows: (solutions, how many of the rows' seeds led lower). `every`: skip no seed."""
    from_warm = newton.descend(problem, np.tile(warm, (len(weights), 1)), weights)
    seeds = _best_seeds(problem, weights)
    followed = np.arange(len(seeds)) if every else np.flatnonzero(~_falls_straight(problem, seeds, from_warm, weights))
    from_seeds = newton.descend(problem, seeds[followed], weights[followed])
    lower = from_seeds.objective < from_warm.objective[followed]
    n_lower = int(np.sum(from_seeds.objective < (1 - optimum.AGREE) * from_warm.objective[followed]))
    for target, source in zip(_solution_fields(from_warm), _solution_fields(from_seeds), strict=True):
        target[followed[lower]] = source[lower]
    return from_warm, n_lower


def _best_seeds(problem: Problem, weights: np.ndarray) -> np.ndarray:
    """The best seed [R, K] of each row of weights [R, P], judged by relative error, which stands in for log error."""
    searched = optimum.start_points(problem, RESTARTS, RESTART_SPREAD)
    seeds = newton.variable_projection(problem, weights, searched)
    terms, offset = problem.basis(searched)
    relative = 1.0 / problem.target if problem.objective.log else np.ones(problem.points)
    linear = problem.places(problem.law.linear)
    values = np.empty(seeds.shape[:2])
    with np.errstate(all="ignore"):
        for g in range(len(searched)):
            residuals = (seeds[:, g, linear] @ terms[g] + offset[g] - problem.target) * relative
            values[:, g] = np.einsum("rp,rp->r", weights, problem.objective.penalty(residuals))
    return seeds[np.arange(len(seeds)), np.where(np.isfinite(values), values, np.inf).argmin(axis=1)]


def _falls_straight(problem: Problem, start: np.ndarray, end: newton.Solutions, weights: np.ndarray) -> np.ndarray:
    """Whether the objective falls all the way on the straight line from start [R, K] to the solutions `end`: [R]."""
    shares = np.linspace(0.0, 1.0, FALL_STEPS + 1)[:-1, None, None]
    values = [problem.value(x, weights) for x in start + shares * (end.x - start)]
    return (np.diff([*values, end.objective], axis=0) < 0).all(axis=0) & end.converged


def unfit_reasons(weights: np.ndarray, columns: Columns, params: int) -> np.ndarray:
    """The reason [R] why a resample of weights [R, P] determines no law of `params` parameters; "" if it does."""
    drawn = weights > 0
    reasons = np.full(len(weights), "", dtype=object)
    for name, values in reversed(list(columns.items())):
        order, least = np.argsort(values, kind="stable"), MIN_SIZES.get(name, 2)
        firsts = np.flatnonzero(np.diff(values[order], prepend=np.nan))  # of each run of equal values
        different = np.logical_or.reduceat(drawn[:, order], firsts, axis=1).sum(axis=1)
        reasons[different < least] = f"fewer than {least} different {name}"
    reasons[drawn.sum(axis=1) <= params] = f"fewer than {params + 1} different runs"
    return reasons


def refit_moved(
    problem: Problem, x: np.ndarray, weights: np.ndarray, moved: np.ndarray, guess: np.ndarray
) -> np.ndarray:
    """Fit tables again whose targets moved: x [R, K], from the better one of the last fits `x` and of a `guess`."""
    guess, parts = np.clip(guess, problem.lower, problem.upper), []
    size = max(1, BATCH // problem.points)
    for rows in np.split(np.arange(len(x)), range(size, len(x), size)):
        values = [problem.value(each[rows], weights[rows], moved[rows]) for each in (x, guess)]
        starts = np.where((values[1] < values[0])[:, None], guess[rows], x[rows])
        parts.append(newton.descend(problem, starts, weights[rows], moved=moved[rows]).x)
    return np.concatenate(parts)
