"""The fit of a joint law as a problem for the solver: a sum of the groups' own problems, with shared coordinates.

Legend: R problems, P points, G groups, K parameters of one group's law, J of the joint law.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.fits.groups.joint_law import GROUP, group_params, join_law, own_name
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.pose import has_own_derivatives, pose_problem
from scalelab.laws.solve.problem import Columns, Derivatives, Moved, Problem


class GroupPart(NamedTuple):
    """One group's problem: the places [K] of its coordinates in the joint x, and which rows [P] are its own.

    `problem` has the group's rows alone, or all rows (`rows` None): then others get weight zero, and a law whose
    derivatives are compiled is compiled once for all groups.
    """

    problem: Problem
    places: np.ndarray
    mask: np.ndarray
    rows: np.ndarray | None

    def weigh(self, weights: np.ndarray) -> np.ndarray:
        """The part's weights, of those of all rows [R, P]."""
        return weights * self.mask if self.rows is None else weights[:, self.rows]

    def move(self, moved: Moved) -> Moved:
        """The part's shifts of targets, of those of all rows: [R, P], [R, 1] or a number."""
        if self.rows is None or np.ndim(moved) == 0 or np.shape(moved)[-1] == 1:
            return moved
        return np.asarray(moved)[:, self.rows]


class JointProblem(NamedTuple):
    """A joint law's `problem`, the `law` of one group, its `shared` parameters, and the groups' `parts`."""

    problem: Problem
    law: Law
    shared: tuple[str, ...]
    parts: tuple[GroupPart, ...]

    def params_of(self, params: Mapping[str, Any], group: int) -> dict[str, Any]:
        """One group's parameters, of those of the joint law."""
        return group_params(self.law, self.shared, dict(params), group)


def build_joint_problem(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, group: np.ndarray, shared: Sequence[str]
) -> JointProblem:
    """Build the problem of `law` for rows of groups 0 to G - 1 (`group` [P]), with parameters `shared` by all."""
    count = int(group.max()) + 1
    joint = join_law(law, count, shared)
    parts = tuple(_build_parts(law, columns, target, objective, group, joint, shared))
    size = len(joint.params)

    def value(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> np.ndarray:
        each = [part.problem.value(x[:, part.places], part.weigh(weights), part.move(moved)) for part in parts]
        return np.sum(each, axis=0)

    def derivatives(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        gradient, majoriser, hessian = np.zeros((len(x), size)), *np.zeros((2, len(x), size, size))
        for part in parts:
            slope, *curvatures = part.problem.derivatives(x[:, part.places], part.weigh(weights), part.move(moved))
            gradient[:, part.places] += slope
            block = part.places[:, None], part.places
            for total, curvature in zip((majoriser, hessian), curvatures, strict=True):
                total[:, *block] += curvature
        return gradient, majoriser, hessian

    def slopes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residuals, jac = np.zeros((len(x), len(target))), np.zeros((len(x), size, len(target)))
        for part in parts:
            r, each = part.problem.slopes(x[:, part.places])
            own = np.flatnonzero(part.mask)
            residuals[:, own] = r if part.rows is not None else r[:, own]
            jac[:, part.places[:, None], own] = each if part.rows is not None else each[..., own]
        return residuals, jac

    def to_params(x: np.ndarray) -> dict[str, np.ndarray]:
        given = [part.problem.to_params(x[..., part.places]) for part in parts]
        names = {own_name(name, g): values for g, each in enumerate(given) for name, values in each.items()}
        return {name: names[name] if name in names else given[0][name] for name in joint.params}

    def from_params(params: Mapping[str, Any]) -> np.ndarray:
        given = [part.problem.from_params(group_params(law, shared, dict(params), g)) for g, part in enumerate(parts)]
        x = np.zeros((*given[0].shape[:-1], size))
        for part, each in zip(parts, given, strict=True):
            x[..., part.places] = each
        return x

    def basis(searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError("a joint problem's starts come from its parts: `joint_fit.start_points`")

    lower, upper = np.zeros(size), np.zeros(size)
    for part in parts:
        lower[part.places], upper[part.places] = part.problem.lower, part.problem.upper
    problem = Problem(
        joint, objective, {**columns, GROUP: group + 1.0}, target, lower, upper, value, derivatives, basis,
        to_params, from_params, slopes,
    )  # fmt: skip
    return JointProblem(problem, law, tuple(shared), parts)


def _build_parts(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, group: np.ndarray, joint: Law,
    shared: Sequence[str],
) -> list[GroupPart]:  # fmt: skip
    """The groups' problems, all centred alike: a shared coordinate has the same meaning in each."""
    names = list(joint.params)
    by_hand = has_own_derivatives(law, objective)
    whole = None if by_hand else pose_problem(law, columns, target, objective)
    parts = []
    for g in range(int(group.max()) + 1):
        places = np.array([names.index(name if name in shared else own_name(name, g)) for name in law.params])
        mask = group == g
        rows = np.flatnonzero(mask) if by_hand else None
        own = {name: values[mask] for name, values in columns.items()}
        problem = whole or pose_problem(law, own, target[mask], objective, centre_at=columns)
        parts.append(GroupPart(problem, places, mask.astype(float), rows))
    return parts
