"""Rows numbered by group, and a check that they identify each group's own parameters. Legend: P points."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.design import design
from scalelab.laws.fits.groups import joint_fit
from scalelab.laws.fits.groups.joint_problem import JointProblem
from scalelab.laws.law.law import Law
from scalelab.laws.read.finding import Finding
from scalelab.laws.read.groups import Groups, choose_groups, names_run
from scalelab.laws.solve import optimum
from scalelab.laws.trust import identifiable

MOST_GROUPS = 20


class GroupRows(NamedTuple):
    """Groups by name, the reference first; the number of each row's group [P]; how many rows each has."""

    names: tuple[str, ...]
    number: np.ndarray
    counts: tuple[int, ...]


def number_groups(labels: Sequence[Any], order: Sequence[Any], by: str, against: str | None) -> GroupRows:
    """Number the groups of rows with equal labels [P], `against` first, then as in `order` or as they appear.

    BadInput for a row without a label, one group, too many groups, or an unknown `against`.
    """
    missing = [row for row, label in enumerate(labels) if label is None or str(label).strip() in ("", "nan")]
    if missing:
        raise BadInput(f"--by={by}: {len(missing)} rows have no value there; leave them out by --where")
    texts = [str(label) for label in labels]
    names = [name for name in dict.fromkeys(map(str, (*order, *texts))) if name in set(texts)]
    if len(names) < 2:
        raise BadInput(f"--by={by}: all {len(texts)} rows have {names[0]!r}: nothing to compare; leave --by out")
    if len(names) > MOST_GROUPS:
        raise BadInput(f"--by={by}: {len(names)} groups of {len(texts)} rows; at most {MOST_GROUPS}: a column of names")
    if against is not None and against not in names:
        raise BadInput(
            f"--against={against}: no such group of {by!r}{nearest_hint(against, names)}; one of {', '.join(names)}"
        )
    if against is not None:
        names = [against, *(name for name in names if name != against)]
    number = np.array([names.index(text) for text in texts])
    return GroupRows(tuple(names), number, tuple(np.bincount(number).tolist()))


def run_labels(
    table: Mapping[str, Any], labels: Sequence[Any], law: Law, groups: GroupRows, by: str, cluster: str | Groups
) -> Groups | None:
    """Labels of rows that share a part of their error (`groups.choose_groups`), different in each group.

    Run 3 of one optimizer is not run 3 of another. None if no two rows of a group belong together.
    """
    if isinstance(cluster, Groups):
        return _split_by_group(cluster, groups)
    names = [name for name, values in table.items() if names_run(name) or any(isinstance(v, str) for v in values)]
    arrays = {name: np.asarray(values) for name, values in table.items()}
    arrays |= {name: np.array(_label_by_group(groups, table[name])) for name in names}
    arrays[by] = np.array([str(label) for label in labels])
    runs = choose_groups(arrays, dataclasses.replace(law, columns=(*law.columns, by)), cluster)
    return _split_by_group(runs, groups) if runs and runs.column != by else None


def _split_by_group(runs: Groups, groups: GroupRows) -> Groups | None:
    labels = _label_by_group(groups, runs.labels)
    return Groups(runs.column, labels) if len(set(labels)) < len(labels) else None


def _label_by_group(groups: GroupRows, labels: Iterable[Any]) -> list[str]:
    return [f"{group}: {label}" for group, label in zip(groups.number, labels, strict=True)]


def check_rows(joint: JointProblem, groups: GroupRows, flops: np.ndarray | None, alone: bool) -> list[Finding]:
    """Check that the rows identify the parameters of each group, fitted `alone` or all together; BadInput names it.

    Returns weak points of the rows of each group, if it is fitted alone.
    """
    law, problem, findings = joint.law, joint.problem, list[Finding]()
    own = len(law.params) - len(joint.shared)
    for g, (name, count) in enumerate(zip(groups.names, groups.counts, strict=True)):
        rows = np.flatnonzero(groups.number == g)
        if count <= own:
            raise BadInput(
                f"group {name!r} has {count} rows, and {own} parameters of its own need at least {own + 1}; "
                "leave it out by --where, or share more by --shared"
            )
        if alone:
            columns = {column: problem.columns[column][rows] for column in law.columns}
            cost = None if flops is None else flops[rows]
            try:
                each = design.row_findings(law, columns, problem.target[rows], cost, problem.objective.log)
            except BadInput as refusal:
                raise BadInput(f"group {name!r}: {refusal}; nearest: --exponents=shared") from None
            findings += [
                dataclasses.replace(f, text=f"{name}: {f.text}", rows=tuple(int(rows[row]) for row in f.rows))
                for f in each
            ]
    if not alone:
        _check_together(joint, groups)
    return findings


def _check_together(joint: JointProblem, groups: GroupRows) -> None:
    """BadInput if rows leave a parameter of the joint law open, even with losses exact to 1e-6."""
    problem, ones = joint.problem, np.ones((1, joint.problem.points))
    (x,) = joint_fit.start_points(joint, ones, optimum.start_points(joint.parts[0].problem))
    linear = [place for place, kind in enumerate(problem.law.params.values()) if kind.how == "linear"]
    x[:, linear] = np.maximum(x[:, linear], identifiable.LEAST_SHARE * problem.target.mean())
    values = problem.value(x, np.broadcast_to(ones, (len(x), problem.points)))
    x = x[np.argsort(np.where(np.isfinite(values), values, np.inf), kind="stable")[: identifiable.TRIED]]
    if open_ := identifiable.open_params(problem, x, ones[0]):
        name, bracket, rest = open_[0].partition("[")
        where = f"group {groups.names[int(rest[:-1])]!r}" if bracket else "all groups"
        raise BadInput(
            f"law {joint.law.name!r}: the rows of {where} cannot tell what {name} is: vary its columns there, "
            f"leave the group out by --where, or --shared={name}"
        )
