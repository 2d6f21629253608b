"""The best parameters of a law for given points, and how sure the optimiser is that they are: a certificate."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import qmc

from scalelab.laws.law.law import ParamKind
from scalelab.laws.solve import newton
from scalelab.laws.solve.problem import Problem

AGREE = 1e-6  # two starts found the same optimum where their objectives differ by less than this share
GRID = 8  # values an axis where at most two parameters are searched
SPREAD = 512  # quasi-random seeds where more are
POLISHED = 24  # the best seeds, each polished to a stationary point
HARD = 7  # from so many searched parameters on (Farseer's nine), eight times the seeds and twice the polished


class FitError(RuntimeError):
    """A fit that did not converge. Its numbers are not handed out."""


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Evidence that a fit is the optimum it claims to be.

    `agree` of `starts` polished starts (all seeded by variable projection) ended within 1e-6 of the best objective; the
    next basin lies `next_basin_gap` (a share of the objective; None: no other seen) higher. `grad_norm` and `condition` are
    of the objective and its exact Hessian in the solver's coordinates, each scaled by its own size (scales and exponents
    as they are), over the parameters not at a bound; `at_bounds` names those that are.
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


def start_points(problem: Problem, per_axis: int = GRID, spread: int = SPREAD) -> np.ndarray:
    """Seeds [G, K - L] over the parameters that are searched: a grid for one or two, a Sobol set for more."""
    kinds = [problem.law.params[name] for name in problem.law.searched]
    if not kinds:  # a linear law: variable projection alone solves it
        return np.zeros((1, 0))
    if len(kinds) <= 2:
        axes = [scale_to_range(kind, np.linspace(0.0, 1.0, per_axis)) for kind in kinds]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(kinds))
    unit = qmc.Sobol(len(kinds), seed=0).random(spread)
    return np.stack([scale_to_range(kind, unit[:, i]) for i, kind in enumerate(kinds)], axis=-1)


def scale_to_range(kind: ParamKind, unit: np.ndarray) -> np.ndarray:
    """[0, 1] -> the range of starts of a searched parameter's coordinate, evenly in logs where it is positive."""
    low, high = kind.starts
    if kind.how == "log":
        return np.log(low) + unit * np.log(high / low)
    return low * (high / low) ** unit if low > 0 else low + unit * (high - low)


def minimise_objective(
    problem: Problem, weights: np.ndarray | None = None, also: Mapping[str, float] | None = None
) -> Optimum:
    """The global minimum of the objective with weights [P] (one each by default): seeds, then exact polish.

    `also` is a further start, a published optimum say. FitError where the best start didn't reach a stationary point.
    """
    weights = np.ones((1, problem.points)) if weights is None else np.asarray(weights, float)[None]
    hard = len(problem.law.searched) >= HARD
    starts = newton.variable_projection(problem, weights, start_points(problem, spread=8 * SPREAD if hard else SPREAD))[
        0
    ]
    polished = 2 * POLISHED if hard else POLISHED
    if len(starts) > polished:
        values = problem.value(starts, np.broadcast_to(weights, (len(starts), problem.points)))
        starts = starts[np.argsort(values, kind="stable")[:polished]]
    if also is not None:
        starts = np.concatenate([starts, problem.from_params(also)[None]])
    found = newton.descend(problem, starts, np.broadcast_to(weights, (len(starts), problem.points)))
    best = int(found.objective.argmin())
    if not found.converged[best]:
        raise FitError(
            f"the fit did not converge: the best of {len(starts)} starts (objective {found.objective[best]:.6g}, "
            f"{int(found.converged.sum())} others converged) is not at a stationary point"
        )
    params = {name: float(value) for name, value in problem.to_params(found.x[best]).items()}
    return Optimum(params, float(found.objective[best]), certify_optimum(problem, found, best, weights), found.x[best])


def certify_optimum(problem: Problem, found: newton.Solutions, best: int, weights: np.ndarray) -> Certificate:
    """The certificate of solution `best` among all polished starts."""
    least = found.objective[best]
    excess = found.objective - least
    same = excess <= AGREE * least + newton.ROUNDING * weights.sum()
    others = excess[found.converged & ~same]
    x = found.x[best : best + 1]
    gradient, _, hessian = problem.derivatives(x, weights)
    bound = ((x <= problem.lower) | (x >= problem.upper))[0]
    linear = np.isin(list(problem.law.params), problem.law.linear)
    scale = np.where(linear, x[0], 1.0)[~bound]
    inner = hessian[0][np.ix_(~bound, ~bound)] * np.outer(scale, scale)
    eigenvalues = np.abs(np.linalg.eigvalsh(inner)) if len(inner) else np.ones(1)
    return Certificate(
        converged=bool(found.converged[best]),
        starts=len(found.x),
        starts_converged=int(found.converged.sum()),
        agree=int(same.sum()),
        next_basin_gap=float(others.min() / least) if len(others) and least > 0 else None,
        grad_norm=float(np.linalg.norm(gradient[0, ~bound] * scale)),
        condition=float(eigenvalues.max() / max(eigenvalues.min(), 1e-300 * eigenvalues.max(), 1e-300)),
        at_bounds=tuple(name for name, held in zip(problem.law.params, bound, strict=True) if held),
    )
