"""The best parameters of a law for given points, and a certificate: how sure the optimiser is of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.law.law import ParamKind
from scalelab.laws.solve import newton
from scalelab.laws.solve.problem import Problem

AGREE = 1e-6  # two starts reached one optimum if their objectives differ by less than this share
GRID = 8  # values per axis if at most two parameters are searched
SPREAD = 512  # quasi-random seeds if more are
POLISHED = 24  # so many of the best seeds are polished to a stationary point
FIRST_ITERATIONS = 300  # of every start; those that have not converged by then go on where few agree
ENOUGH = 3  # starts that agree; with fewer, and others not converged, more effort is spent
FURTHER = 2  # further sets of seeds at most
HARD = 7  # laws with this many searched parameters (Farseer has nine) get eight times the seeds, twice the polished


class FitError(RuntimeError):
    """A fit that did not converge; its numbers are not returned."""


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Evidence that a fit is the optimum it claims to be.

    `agree` of `starts` polished starts (all seeded by variable projection) ended within 1e-6 of the best objective. The
    next basin lies higher by `next_basin_gap`, a share of the objective (None: no other basin seen). `grad_norm` is the
    norm of the gradient and `condition` that of the exact Hessian, in the solver's coordinates, linear ones in units of
    their own size, over the parameters not at a bound; `at_bounds` names the others.
    """

    converged: bool
    starts: int
    starts_converged: int
    agree: int
    next_basin_gap: float | None
    grad_norm: float
    condition: float
    at_bounds: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self) | {"at_bounds": list(self.at_bounds)}


@dataclasses.dataclass(frozen=True, eq=False)
class Optimum:
    """Fitted parameters, the minimum of the objective, and its certificate. `x` [K]: the solver's coordinates."""

    params: dict[str, float]
    value: float
    certificate: Certificate
    x: np.ndarray


def start_points(problem: Problem, per_axis: int = GRID, spread: int = SPREAD, seed: int = 0) -> np.ndarray:
    """Seeds [G, K - L] of the searched parameters: a grid for one or two, a Sobol set (of this seed) for more."""
    kinds = [problem.law.params[name] for name in problem.law.searched]
    if not kinds:  # a linear law: variable projection alone solves it
        return np.zeros((1, 0))
    if len(kinds) <= 2:
        axes = [scale_to_range(kind, np.linspace(0.0, 1.0, per_axis)) for kind in kinds]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(kinds))
    from scipy.stats import qmc  # here: it takes 0.8 s

    unit = qmc.Sobol(len(kinds), seed=seed).random(spread)
    return np.stack([scale_to_range(kind, unit[:, i]) for i, kind in enumerate(kinds)], axis=-1)


def scale_to_range(kind: ParamKind, unit: np.ndarray) -> np.ndarray:
    """Map [0, 1] to a searched coordinate's range of starts, evenly in logs if that is positive."""
    low, high = kind.starts
    if kind.how == "log":
        return np.log(low) + unit * np.log(high / low)
    return low * (high / low) ** unit if low > 0 else low + unit * (high - low)


def minimise_objective(
    problem: Problem, weights: np.ndarray | None = None, also: Mapping[str, float] | None = None
) -> Optimum:
    """Find the global minimum of the objective with weights [P] (1.0 each by default): seeds, then exact polish.

    `also`: parameters of one more start, say a published optimum. FitError if the best start is not at a stationary
    point, or if no other start agrees and most did not converge, even with more effort.
    """
    weights = np.ones((1, problem.points)) if weights is None else np.asarray(weights, float)[None]
    starts = _best_seeds(problem, weights)
    if also is not None:
        starts = np.concatenate([starts, problem.from_params(also)[None]])
    solutions = _polish(problem, starts, weights, FIRST_ITERATIONS)
    solutions = _spend_effort(problem, weights, solutions)
    starts = solutions.x
    best = int(solutions.objective.argmin())
    value, x = float(solutions.objective[best]), solutions.x[best]
    if not solutions.converged[best]:
        raise FitError(
            f"the fit did not converge: the best of {len(starts)} starts (objective {value:.6g}, "
            f"{int(solutions.converged.sum())} others converged) is not at a stationary point"
        )
    if _count_agreeing(solutions, weights) < 2 and 2 * solutions.converged.sum() < len(starts):
        raise FitError(
            f"the fit is not certain: 1 of {len(starts)} starts reached the best objective, {value:.6g}, and "
            f"{int((~solutions.converged).sum())} did not converge: a law of fewer parameters, or more runs"
        )
    params = {name: float(param) for name, param in problem.to_params(x).items()}
    return Optimum(params, value, certify_optimum(problem, solutions, best, weights), x)


def _best_seeds(problem: Problem, weights: np.ndarray, seed: int = 0) -> np.ndarray:
    """The seeds [<= POLISHED, K] of the lowest objective, twice as many for hard laws."""
    hard = len(problem.law.searched) >= HARD
    seeds = start_points(problem, spread=8 * SPREAD if hard else SPREAD, seed=seed)
    (starts,) = newton.variable_projection(problem, weights, seeds)
    polished = 2 * POLISHED if hard else POLISHED
    if len(starts) <= polished:
        return starts
    values = problem.value(starts, np.broadcast_to(weights, (len(starts), problem.points)))
    return starts[np.argsort(values, kind="stable")[:polished]]


def _polish(problem: Problem, starts: np.ndarray, weights: np.ndarray, iterations: int) -> newton.Solutions:
    rows = np.broadcast_to(weights, (len(starts), problem.points))
    return newton.descend(problem, starts, rows, iterations=iterations)


def _count_agreeing(solutions: newton.Solutions, weights: np.ndarray) -> int:
    """Number of starts within AGREE of the best objective."""
    least = solutions.objective.min()
    return int((solutions.objective - least <= AGREE * least + newton.ROUNDING * weights.sum()).sum())


def _spend_effort(problem: Problem, weights: np.ndarray, solutions: newton.Solutions) -> newton.Solutions:
    """Go on from where starts stopped, then from further seeds, as long as few agree and others haven't converged.

    Bounded by a number of steps, not by time: equal tables give equal numbers.
    """
    for seed in range(FURTHER + 1):
        (unfinished,) = np.nonzero(~solutions.converged & np.isfinite(solutions.objective))
        if _count_agreeing(solutions, weights) >= ENOUGH or not len(unfinished):
            break
        if seed == 0:
            more = _polish(problem, solutions.x[unfinished], weights, 1000 - FIRST_ITERATIONS)
            for target, source in zip(_fields(solutions), _fields(more), strict=True):
                target[unfinished] = source
        elif len(problem.law.searched) > 2:
            more = _polish(problem, _best_seeds(problem, weights, seed), weights, FIRST_ITERATIONS)
            both = zip(_fields(solutions), _fields(more), strict=True)
            solutions = newton.Solutions(*(np.concatenate(parts) for parts in both))
    return solutions


def _fields(solutions: newton.Solutions) -> tuple[np.ndarray, ...]:
    return solutions.x, solutions.objective, solutions.converged


def certify_optimum(problem: Problem, solutions: newton.Solutions, best: int, weights: np.ndarray) -> Certificate:
    """The certificate of solution `best` among all polished starts."""
    least = solutions.objective[best]
    excess = solutions.objective - least
    same = excess <= AGREE * least + newton.ROUNDING * weights.sum()
    others = excess[solutions.converged & ~same]
    x = solutions.x[best : best + 1]
    gradient, _, hessian = problem.derivatives(x, weights)
    bound = ((x <= problem.lower) | (x >= problem.upper))[0]
    linear = np.isin(list(problem.law.params), problem.law.linear)
    scale = np.where(linear, x[0], 1.0)[~bound]
    inner = hessian[0][np.ix_(~bound, ~bound)] * np.outer(scale, scale)
    eigenvalues = np.abs(np.linalg.eigvalsh(inner)) if len(inner) else np.ones(1)
    return Certificate(
        converged=bool(solutions.converged[best]),
        starts=len(solutions.x),
        starts_converged=int(solutions.converged.sum()),
        agree=int(same.sum()),
        next_basin_gap=float(others.min() / least) if len(others) and least > 0 else None,
        grad_norm=float(np.linalg.norm(gradient[0, ~bound] * scale)),
        condition=float(eigenvalues.max() / max(eigenvalues.min(), 1e-300 * eigenvalues.max(), 1e-300)),
        at_bounds=tuple(name for name, held in zip(problem.law.params, bound, strict=True) if held),
    )
