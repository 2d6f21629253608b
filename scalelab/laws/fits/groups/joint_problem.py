"""The fit of a joint law as a problem for the solver: a sum of the groups' own problems, with shared coordinates.

Legend: R problems, P points, G groups, K parameters of one group's law, J of the joint law.
"""

import dataclasses
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

    `problem` has the group's rows alone, or all rows (`rows` None): then rows of others get weight zero, and
    derivatives that must be compiled are compiled once for all groups.
    """

    problem: Problem
    places: np.ndarray
    mask: np.ndarray
    rows: np.ndarray | None

    def weigh(self, weights: np.ndarray) -> np.ndarray:
        """Select the part's weights from those of all rows [R, P]."""
        return weights * self.mask if self.rows is None else weights[:, self.rows]

    def move(self, moved: Moved) -> Moved:
        """Select the part's shifts of targets from those of all rows: [R, P], [R, 1] or a number."""
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
        """Select one group's parameters from those of the joint law."""
        return group_params(self.law, self.shared, dict(params), group)


@dataclasses.dataclass(frozen=True, eq=False)
class SumOfParts(Problem):
    """The fit of a joint law as the sum of the groups' problems; starts come from these (`joint_fit.start_points`)."""

    parts: tuple[GroupPart, ...]
    group_law: Law
    shared: tuple[str, ...]

    def value(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> np.ndarray:
        """The sum of the parts' objectives [R]."""
        each = [part.problem.value(x[:, part.places], part.weigh(weights), part.move(moved)) for part in self.parts]
        return np.sum(each, axis=0)

    def derivatives(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        """The sum of the parts' derivatives, each at its own coordinates."""
        size = x.shape[1]
        gradient, majoriser, hessian = np.zeros((len(x), size)), *np.zeros((2, len(x), size, size))
        for part in self.parts:
            slope, *curvatures = part.problem.derivatives(x[:, part.places], part.weigh(weights), part.move(moved))
            gradient[:, part.places] += slope
            block = part.places[:, None], part.places
            for total, curvature in zip((majoriser, hessian), curvatures, strict=True):
                total[:, *block] += curvature
        return gradient, majoriser, hessian

    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals [R, P] and their derivatives [R, J, P], each row's from its own group."""
        residuals, jac = np.zeros((len(x), self.points)), np.zeros((len(x), x.shape[1], self.points))
        for part in self.parts:
            r, each = part.problem.slopes(x[:, part.places])
            rows = np.flatnonzero(part.mask)
            residuals[:, rows] = r if part.rows is not None else r[:, rows]
            jac[:, part.places[:, None], rows] = each if part.rows is not None else each[..., rows]
        return residuals, jac

    def to_params(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters of the joint law; shared ones by the first group's coordinates."""
        each = [part.problem.to_params(x[..., part.places]) for part in self.parts]
        separate = {own_name(name, g): values for g, params in enumerate(each) for name, values in params.items()}
        return {name: separate[name] if name in separate else each[0][name] for name in self.law.params}

    def from_params(self, params: Mapping[str, Any]) -> np.ndarray:
        """The inverse of `to_params`."""
        groups = [group_params(self.group_law, self.shared, dict(params), g) for g in range(len(self.parts))]
        each = [part.problem.from_params(values) for part, values in zip(self.parts, groups, strict=True)]
        x = np.zeros((*each[0].shape[:-1], len(self.law.params)))
        for part, coordinates in zip(self.parts, each, strict=True):
            x[..., part.places] = coordinates
        return x

    def basis(self, searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Not defined: shared coordinates are not linear in one group's terms."""
        raise NotImplementedError("a joint problem's starts come from its parts: `joint_fit.start_points`")


def build_joint_problem(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, group: np.ndarray, shared: Sequence[str]
) -> JointProblem:
    """Build the problem of `law` for rows of groups 0 to G - 1 (`group` [P]), with parameters `shared` by all."""
    joint = join_law(law, int(group.max()) + 1, shared)
    parts = tuple(_build_parts(law, columns, target, objective, group, joint, shared))
    problem = SumOfParts(joint, {**columns, GROUP: group + 1.0}, target, objective, parts, law, tuple(shared))
    return JointProblem(problem, law, tuple(shared), parts)


def _build_parts(
    law: Law,
    columns: Columns,
    target: np.ndarray,
    objective: Objective,
    group: np.ndarray,
    joint: Law,
    shared: Sequence[str],
) -> list[GroupPart]:
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
