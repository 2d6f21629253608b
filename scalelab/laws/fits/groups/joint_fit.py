"""Fits a joint law and refits it to resampled or simulated tables.

Legend: R tables, P points, G groups, K parameters of one group's law, J of the joint law, S seeds.
"""

import collections
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from scalelab.laws.fits.groups.joint_problem import JointProblem
from scalelab.laws.solve import newton, optimum
from scalelab.laws.solve.optimum import FitError, Optimum
from scalelab.laws.solve.refit import unfit_reasons
from scalelab.laws.trust.dependence import Dependence
from scalelab.laws.trust.uncertainty import Progress

RESTARTS, SPREAD = 5, 64  # grid and spread of each table's own seeds, tried beside the fit
AT_ONCE = 60_000  # tables x rows fitted at once


class Draws(NamedTuple):
    """Refits to `count` tables: x [R, J] of those that gave a fit, their tables, and how many failed by reason."""

    x: np.ndarray
    weights: np.ndarray
    moved: np.ndarray
    requested: int
    failed: dict[str, int]


def start_points(joint: JointProblem, weights: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Starts [R, S, J] at seeds [S, K - L] of the searched parameters: each group's linear ones are solved for.

    A shared linear parameter starts at the mean of the groups' solutions.
    """
    x = np.zeros((len(weights), len(seeds), len(joint.problem.law.params)))
    users = np.zeros(x.shape[-1])
    for part in joint.parts:
        x[..., part.places] += newton.variable_projection(part.problem, part.weigh(weights), seeds)
        users[part.places] += 1
    return x / users


def fit_joint(joint: JointProblem, near: np.ndarray | None = None) -> Optimum:
    """Find the minimum of the joint objective, from seeds and from starts `near` [S, J], with its certificate.

    FitError if the best start is not at a stationary point.
    """
    problem, ones = joint.problem, np.ones((1, joint.problem.points))
    (starts,) = start_points(joint, ones, optimum.start_points(joint.parts[0].problem))
    values = problem.value(starts, np.broadcast_to(ones, (len(starts), problem.points)))
    starts = starts[np.argsort(np.where(np.isfinite(values), values, np.inf), kind="stable")[: optimum.POLISHED]]
    if near is not None:
        starts = np.concatenate([starts, near])
    solutions = newton.descend(problem, starts, np.broadcast_to(ones, (len(starts), problem.points)))
    best = int(solutions.objective.argmin())
    if not solutions.converged[best]:
        raise FitError("the joint fit did not converge: the best start is not at a stationary point")
    x, value = solutions.x[best], float(solutions.objective[best])
    params = {name: float(param) for name, param in problem.to_params(x).items()}
    return Optimum(params, value, optimum.certify_optimum(problem, solutions, best, ones), x)


def fit_each(joint: JointProblem) -> tuple[Optimum, ...]:
    """Fit each group alone, as `scalelab fit` would. FitError where an optimum is not certain."""
    return tuple(
        optimum.minimise_objective(part.problem, None if part.rows is not None else part.mask) for part in joint.parts
    )


def combine(joint: JointProblem, each: tuple[Optimum, ...]) -> np.ndarray:
    """The joint x [J] of laws fitted one by one; what groups share is their mean."""
    x, users = np.zeros((2, len(joint.problem.law.params)))
    for part, best in zip(joint.parts, each, strict=True):
        x[part.places] += best.x
        users[part.places] += 1
    return x / users


def refit_tables(
    joint: JointProblem,
    best: np.ndarray,
    residuals: np.ndarray,
    count: int,
    seed: int,
    dependence: Dependence | None,
    progress: Progress | None = None,
) -> Draws:
    """Refit `count` tables: rows of each group drawn with replacement, or simulated ones where rows depend.

    FitError where no table gives a fit.
    """
    batches, reasons, done = [], collections.Counter[str](), 0
    for weights, moved in draw_tables(joint, residuals, count, seed, dependence):
        whys = _unfit_reasons(joint, weights)
        sound = whys == ""
        x, converged = refit(joint, best, weights[sound], moved[sound])
        whys[np.flatnonzero(sound)[~converged]] = "not converged"
        reasons.update(str(why) for why in whys if why)
        batches.append((x[converged], weights[whys == ""], moved[whys == ""]))
        done += len(weights)
        if progress:
            progress("resamples", done, count)
    x, weights, moved = (np.concatenate(part) for part in zip(*batches, strict=True))
    if not len(x):
        raise FitError("no resample determines the law of every group: more runs are needed for intervals")
    return Draws(x, weights, moved, count, dict(reasons))


def draw_tables(
    joint: JointProblem, residuals: np.ndarray, count: int, seed: int, dependence: Dependence | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of (weights [R, P], shifts of targets [R, P])."""
    points, size = joint.problem.points, max(1, AT_ONCE // joint.problem.points)
    if dependence:
        for errors in dependence.simulate_batches(count, seed, size):
            yield np.ones_like(errors), errors - residuals
        return
    random = np.random.default_rng(seed)
    for first in range(0, count, size):
        weights = np.zeros((min(size, count - first), points))
        for part in joint.parts:
            rows = np.flatnonzero(part.mask)
            weights[:, rows] = random.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=len(weights))
        yield weights, np.zeros((len(weights), 1))


def refit(
    joint: JointProblem, best: np.ndarray, weights: np.ndarray, moved: np.ndarray, seeded: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(x [R, J], converged [R]) of tables, from `best` and, if `seeded`, from each table's own best seed."""
    problem = joint.problem
    solutions = newton.descend(problem, np.tile(best, (len(weights), 1)), weights, moved=moved)
    if not seeded or not len(weights):
        return solutions.x, solutions.converged
    seeds = optimum.start_points(joint.parts[0].problem, RESTARTS, SPREAD)
    starts = start_points(joint, weights, seeds)
    values = np.stack([problem.value(starts[:, s], weights, moved) for s in range(len(seeds))])
    lowest = np.where(np.isfinite(values), values, np.inf).argmin(axis=0)
    others = newton.descend(problem, starts[np.arange(len(starts)), lowest], weights, moved=moved)
    lower = (others.objective < solutions.objective)[:, None]
    x = np.where(lower, others.x, solutions.x)
    return x, np.where(lower[:, 0], others.converged, solutions.converged)


def _unfit_reasons(joint: JointProblem, weights: np.ndarray) -> np.ndarray:
    """The reason [R] why a table determines no joint law, "" if it does: each group must fix its own parameters."""
    reasons = np.full(len(weights), "", dtype=object)
    for part in joint.parts:
        own = np.flatnonzero(part.mask)
        if not joint.shared:
            columns = {name: joint.problem.columns[name][own] for name in joint.law.columns}
            each = unfit_reasons(weights[:, own], columns, len(joint.law.params))
            reasons = np.where(reasons == "", each, reasons)
        least = len(joint.law.params) - len(joint.shared)
        few = (weights[:, own] > 0).sum(axis=1) <= least
        reasons[few & (reasons == "")] = f"fewer than {least + 1} different runs of a group"
    return reasons
