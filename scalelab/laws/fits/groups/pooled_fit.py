"""Fits with pooled exponents: those of each group move towards the mean, and its other parameters follow.

Legend: R draws, G groups, J parameters of the joint law.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.fits.groups.joint_fit import Draws
from scalelab.laws.fits.groups.joint_law import own_name
from scalelab.laws.fits.groups.joint_problem import JointProblem
from scalelab.laws.fits.groups.pooling import Pooled, draw_pooled, pool
from scalelab.laws.solve import newton
from scalelab.laws.solve.optimum import Optimum


def pool_exponents(
    joint: JointProblem, best: Optimum, draws: Draws | None, names: Sequence[str], seed: int, level: float
) -> dict[str, Any]:
    """Pool the exponents of separate fits: {"params", "draws", "pooled"} as `GroupFits` has them.

    The error of each exponent is that of its resamples (half the width of the middle 68 %, which outliers hardly move).
    BadInput without resamples, or for a law whose exponents have no coordinate of their own.
    """
    if draws is None:
        raise BadInput("--exponents=pooled needs the error of each exponent, and --bootstrap=0 gives none")
    law, groups = joint.law, len(joint.parts)
    exponents = [name for name, kind in law.params.items() if kind.how == "direct" and name not in joint.shared]
    if joint.parts[0].problem.mixed or not exponents:
        raise BadInput(f"law {law.name!r} has no exponents that can be pooled one by one: --exponents=separate")
    places = list(joint.problem.law.params)
    x, spread, pooled = best.x.copy(), draws.x.copy(), dict[str, Pooled]()
    for count, name in enumerate(exponents):
        at = [places.index(own_name(name, g)) for g in range(groups)]
        low, high = np.quantile(draws.x[:, at], [0.16, 0.84], axis=0)
        errors = np.maximum(0.5 * (high - low), 1e-12)
        pooled[name] = pool(best.x[at], errors, level)
        x[at] = pooled[name].shrunk
        spread[:, at] = draw_pooled(best.x[at], errors, draws.x[:, at], seed + 1 + count)
    held = np.array([place.partition("[")[0] in exponents for place in places])
    x = _refit_others(joint, x[None], held, np.ones((1, joint.problem.points)), np.zeros((1, 1)))
    spread = _refit_others(joint, spread, held, draws.weights, draws.moved)
    point, each = joint.problem.to_params(x[0]), joint.problem.to_params(spread)
    return {
        "params": {
            name: {n: float(v) for n, v in joint.params_of(point, g).items()} for g, name in enumerate(names)
        },
        "draws": {name: joint.params_of(each, g) for g, name in enumerate(names)},
        "pooled": pooled,
    }  # fmt: skip


def _refit_others(
    joint: JointProblem, x: np.ndarray, held: np.ndarray, weights: np.ndarray, moved: np.ndarray
) -> np.ndarray:
    """Fit all but the held coordinates again: x [R, J]."""
    problem = joint.problem
    x = np.clip(x, problem.lower, problem.upper)
    lower, upper = np.where(held, x, problem.lower), np.where(held, x, problem.upper)
    return newton.descend(problem, x, weights, lower, upper, moved).x
