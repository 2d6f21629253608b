"""Many small robust fits at once: starts by variable projection, then projected Newton to the optimum, in float64.

Legend: R problems (starts or resamples), K parameters, L linear ones, P points, G seeds.
"""

import dataclasses
import itertools

import numpy as np

from scalelab.laws.solve.problem import Problem

TOLERANCE = 1e-10  # converged: no step can lower the objective by more than this share of it
ROUNDING = 1e-28  # ... or by more than this per point (on noise-free data the objective itself goes to zero)
SINGULAR = 1e-14  # curvature below this, relative to the parameter's own, counts as zero
MOST_DAMPED = 1e30  # a step is zero long before; beyond, doubling again and again would overflow
HUGE = 1e100  # a law this many times the data is far from them, and its square may overflow


@dataclasses.dataclass(frozen=True, eq=False)
class Solutions:
    """Results of `descend`: x [R, K], objective [R], converged [R]."""

    x: np.ndarray
    objective: np.ndarray
    converged: np.ndarray


def variable_projection(problem: Problem, weights: np.ndarray, searched: np.ndarray) -> np.ndarray:
    """Solve for the best linear coordinates >= 0 at each seed of `searched` [G, K - L]: x [R, G, K].

    Given the other parameters the law is linear (variable projection: Golub & Pereyra 1973); relative error stands in
    for log error. The non-negative least squares is exact: all supports of the L coefficients are tried.
    """
    law = problem.law
    linear, others = problem.places(law.linear), problem.places(law.searched)
    x = np.zeros((len(weights), len(searched), len(law.params)))
    x[..., others] = searched
    if not linear:
        return x
    terms, offset = problem.basis(searched)
    relative = 1.0 / problem.target if problem.objective.log else np.ones(problem.points)
    terms, missing = terms * relative, (problem.target - offset) * relative
    sane = (np.abs(terms) < HUGE).all(axis=(1, 2)) & (np.abs(missing) < HUGE).all(axis=1)  # false where a term is nan
    terms, missing = np.where(sane[:, None, None], terms, 0.0), np.where(sane[:, None], missing, 0.0)
    count = len(linear)
    products = (terms[:, :, None] * terms[:, None]).reshape(-1, problem.points)
    gram = (weights @ products.T).reshape(len(weights), len(searched), count, count)
    target = np.einsum("rp,gip,gp->rgi", weights, terms, missing)
    best = np.full(gram.shape[:2], np.inf)
    for chosen in itertools.islice(itertools.product((False, True), repeat=count), 1, None):
        on = np.array(chosen)
        keep = np.outer(on, on)
        size = 1e-12 * np.trace(gram, axis1=2, axis2=3)[..., None] + 1e-300
        ridge = np.eye(count) * np.where(on, size, 1.0)[..., None, :]
        coefs = np.linalg.solve(np.where(keep, gram, 0.0) + ridge, (target * on)[..., None])[..., 0]
        misfit = np.einsum("rgi,rgij,rgj->rg", coefs, gram, coefs) - 2 * np.sum(coefs * target, axis=-1)
        better = (coefs >= 0).all(axis=-1) & (misfit < best)
        best = np.where(better, misfit, best)
        x[..., linear] = np.where(better[..., None], coefs, x[..., linear])
    x[:, ~sane] = np.nan  # not a start: `problem.value` is infinite there
    return x


def free_coordinates(x: np.ndarray, gradient: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Mask of the parameters that may move: all but those at a bound that a descent step would cross."""
    held = ((x <= lower) & (gradient >= 0)) | ((x >= upper) & (gradient <= 0))
    return ~held


def newton_step(
    curvature: np.ndarray, gradient: np.ndarray, free: np.ndarray, scale: np.ndarray, damping: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One damped Newton step: (step [R, K], decrease [R] that the undamped step promises).

    Solved in scaled coordinates for |curvature| + damping: absolute eigenvalues make every step a descent direction,
    even where the exact Hessian is indefinite.
    """
    scaled = curvature * scale[:, :, None] * scale[:, None, :] * free[:, :, None] * free[:, None, :]
    values, vectors = np.linalg.eigh(scaled)
    along = np.einsum("rij,ri->rj", vectors, gradient * scale * free)
    size = np.abs(values)
    step = -np.einsum("rij,rj->ri", vectors, along / (size + damping[:, None])) * scale * free
    return step, 0.5 * np.sum(along**2 / (size + SINGULAR), axis=1)


def descend(
    problem: Problem,
    start: np.ndarray,
    weights: np.ndarray,
    lower: np.ndarray | None = None,
    upper: np.ndarray | None = None,
    moved: np.ndarray | None = None,
    iterations: int = 1000,
) -> Solutions:
    """Minimise the objective from start [R, K] with weights [R, P], by projected, damped Newton and IRLS steps.

    Each iteration proposes an IRLS-Levenberg-Marquardt step (a majoriser: safe far away) and an exact Newton step (fast
    at the end, where Huber's kinks make IRLS slow), each with its own damping, and takes the one with the lower
    objective. Both obey the bounds (`lower`, `upper` [R, K], by default the problem's). `moved` [R, P] is added to the
    targets, in the objective's terms. Problems leave the batch as they converge.
    """
    if not len(start):
        return Solutions(start, np.empty(0), np.empty(0, bool))
    lower = np.broadcast_to(problem.lower if lower is None else lower, start.shape)
    upper = np.broadcast_to(problem.upper if upper is None else upper, start.shape)
    moved = np.zeros((len(start), 1)) if moved is None else moved
    x = np.clip(start, lower, upper)
    value = problem.value(x, weights, moved)
    done = ~np.isfinite(value)
    damping = np.full((2, len(x)), 1e-3)
    for _ in range(iterations):
        (active,) = np.nonzero(~done & (damping.min(axis=0) < 1e12))
        if not len(active):
            break
        x_now, w_now, value_now, moved_now = x[active], weights[active], value[active], moved[active]
        gradient, *curvatures = problem.derivatives(x_now, w_now, moved_now)
        known = np.isfinite(gradient).all(axis=1) & np.isfinite(curvatures).all(axis=(0, 2, 3))
        if not known.all():  # the law is finite here, but not its derivative: give up this start
            value[active[~known]], done[active[~known]] = np.inf, True
            continue
        free = free_coordinates(x_now, gradient, lower[active], upper[active])
        scale = 1.0 / np.sqrt(np.maximum(np.einsum("rii->ri", curvatures[0]), 1e-12))
        offers = [
            newton_step(c, gradient, free, scale, extra)
            for c, extra in zip(curvatures, damping[:, active], strict=True)
        ]
        promise = np.maximum(offers[0][1], offers[1][1])
        done[active] = promise <= TOLERANCE * value_now + ROUNDING * w_now.sum(axis=1)
        trials = np.clip(x_now + np.stack([step for step, _ in offers]), lower[active], upper[active])
        values = np.stack([problem.value(trial, w_now, moved_now) for trial in trials])
        lowered = values < value_now
        damping[:, active] = np.clip(damping[:, active] * np.where(lowered, 0.2, 4.0), SINGULAR, MOST_DAMPED)
        best = values.argmin(axis=0), np.arange(len(active))
        x[active] = np.where(lowered[best][:, None], trials[best], x_now)
        value[active] = np.minimum(values[best], value_now)
    return Solutions(x, value, done & np.isfinite(value))
