"""From a table of runs to a fit: which runs count, the law, its intervals, and the JSON block that others read.

The one way for studies, the report and `scalelab fit`: equal rows give equal numbers, bit for bit, in any order.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.design import design, shares
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.fits.fitting import fit
from scalelab.laws.fits.groups.fit_groups import fit_groups
from scalelab.laws.fits.groups.group_fits import GroupFits
from scalelab.laws.fits.weights import BY_SIZE
from scalelab.laws.law.law import Law
from scalelab.laws.law.names import load_law
from scalelab.laws.read import checkpoints as checkpoints_lib
from scalelab.laws.read.finding import Finding
from scalelab.laws.read.groups import Groups, choose_groups
from scalelab.laws.read.points import is_numeric, law_columns
from scalelab.laws.read.raw_grid import refuse_raw_grid
from scalelab.laws.trust import identifiable

Row = Mapping[str, Any]
N_COLUMNS = {
    "total": "N", "active": "N_active", "non_embedding": "N_non_embedding", "kaplan": "N_kaplan",
    "chinchilla": "N_chinchilla",
}  # fmt: skip

ROLES = {"fit": True, "check": False, "holdout": False}  # of log.role: whether laws are fitted to such runs
FITTED_ROLES = tuple(role for role, is_fitted in ROLES.items() if is_fitted)


def default_convention(rows: Iterable[Row]) -> str:
    """The N of runs if none is chosen: active where experts make it differ from the total, as compute goes by it."""
    return "active" if any(row.get("N_active") not in (None, row.get("N")) for row in rows) else "total"


def fit_study(
    rows: Sequence[Row],
    law: str | Law = "chinchilla",
    n_convention: str = "total",
    drop_top_loss: int = 0,
    cluster: str = "auto",
    checkpoints: str = "auto",
    weights: str | None = None,
    **options: Any,
) -> Fitted:
    """Fit a law to the finished runs of a table; `options` are those of `fit.fit`.

    A row has `val_loss` (nats per token), N in the convention's column (`N_COLUMNS`), the law's other columns and,
    where known, `name`, `status`, `role` and `mixed` (what changed during the run). Rows of role "fit" are fitted if
    there are any, else all rows. Rows that are not done, are mixed, have no finite loss, or are among the
    `drop_top_loss` worst are never fitted. Rows with equal values in column `cluster` share a part of their error
    (`groups.choose_groups`). `checkpoints`: fit "all" rows of a run, the "last" alone, or "auto": the last, if enough
    runs are left (`split_checkpoints`). `weights`: a column of inverse variances, or "scale". BadInput where too few
    are left.
    """
    law = load_law(law) if isinstance(law, str) else law
    rows, early, doubts = split_checkpoints(rows, law, n_convention, cluster, checkpoints)
    table, selected, excluded = study_table(rows, law, n_convention, drop_top_loss)
    every = _every_column(selected, table)
    refuse_raw_grid(every, law)
    groups = choose_groups(every, law, cluster if not early or cluster == "none" else "auto")
    given = weights if weights in (None, BY_SIZE) else weight_column(selected, weights)
    sizes: dict[str, Any] = {
        name: every[name] for name in ("N", "D") if name in every and is_numeric(every[name])
    }  # not all are used
    fitted = fit(sizes | table, law, cluster=groups or "none", n_convention=n_convention, weights=given, **options)
    excluded += early
    doubts += shares.split_findings(fitted.problem, fitted.best, _other_columns(every, law, groups)) or (
        shares.shared_error_findings(fitted.problem, fitted.best) if groups is None and cluster == "auto" else []
    )
    findings = (*fitted.design, *doubts, *design.exclusion_findings(excluded))
    return dataclasses.replace(fitted, kept=tuple(selected), excluded=tuple(excluded), design=findings)


def weight_column(rows: Sequence[Row], name: str) -> list[float]:
    """The weights of rows in a column. BadInput for a column that is not there, or a row without a positive number."""
    columns = dict.fromkeys(key for row in rows for key in row)
    if name not in columns:
        hint = nearest_hint(name, [BY_SIZE, *columns])
        raise BadInput(f"--weights={name}: no such column{hint}; {BY_SIZE}: by the size of runs")
    values: list[Any] = [row.get(name) for row in rows]
    odd = [value for value in values if isinstance(value, bool | str | None) or not 0 < value < math.inf]
    if odd:
        raise BadInput(f"--weights={name}: a weight is a positive number, and {len(odd)} rows have {odd[0]!r} there")
    return values


def fit_group_study(
    rows: Sequence[Row],
    by: str,
    law: str | Law = "chinchilla",
    n_convention: str = "total",
    drop_top_loss: int = 0,
    cluster: str = "auto",
    checkpoints: str = "auto",
    **options: Any,
) -> GroupFits:
    """Fit a law to the groups of rows that have equal values in column `by`; `options` are those of `fit_groups`.

    Rows count as in `fit_study`. BadInput for a column that no row has.
    """
    law = load_law(law) if isinstance(law, str) else law
    known = dict.fromkeys(key for row in rows for key in row)
    if by not in known:
        raise BadInput(f"--by={by}: no such column{nearest_hint(by, known)}")
    rows, early, doubts = split_checkpoints(rows, law, n_convention, cluster, checkpoints, by)
    table, selected, excluded = study_table(rows, law, n_convention, drop_top_loss)
    every = _every_column(selected, table)
    for group in dict.fromkeys(every[by]):
        rows_of = np.flatnonzero([label == group for label in every[by]])
        refuse_raw_grid({key: [values[row] for row in rows_of] for key, values in every.items()}, law)
    order = [label for label in dict.fromkeys(row.get(by) for row in rows) if label is not None]
    fits = fit_groups(
        every,
        [row.get(by) for row in selected],
        law,
        by=by,
        order=order,
        cluster=cluster if not early or cluster == "none" else "auto",
        n_convention=n_convention,
        **options,
    )
    excluded += early
    findings = (*fits.design, *doubts, *design.exclusion_findings(excluded))
    return dataclasses.replace(fits, kept=tuple(selected), excluded=tuple(excluded), design=findings)


def split_checkpoints(
    rows: Sequence[Row], law: Law, n_convention: str, cluster: str, way: str, by: str | None = None
) -> tuple[Sequence[Row], list[dict[str, str]], list[Finding]]:
    """Split off a run's checkpoints (`checkpoints.find_checkpoints`): (rows to fit, {"name", "reason"}, doubts).

    `way` "auto" fits all of them, with a doubt, where the last rows alone are few or can't identify the law. `by`: the
    column that names groups, each of which is fitted by itself.
    """
    checkpoints_lib.check_way(way)
    if way == "all" or cluster == "none":
        return rows, [], []
    of_group = dataclasses.replace(law, columns=(*law.columns, by)) if by else law
    table, selected, _ = study_table(rows, law, n_convention, 0)
    every = _every_column(selected, table)
    groups_of_rows = choose_groups(every, of_group, cluster)
    early = checkpoints_lib.find_checkpoints(every, law, groups_of_rows)
    if early is None:
        return rows, [], _unnamed_checkpoints(table, groups_of_rows, cluster)
    groups = [row.get(by) for row in selected] if by else [""] * len(selected)
    if way == "auto" and (why := _too_few_last(table, law, ~early.early, groups)):
        text = (
            f"{early.early.sum()} of {len(selected)} rows are checkpoints ({early.why}), whose losses lie above those "
            f"of runs that end there, unless the rate is constant; all are fitted, as {why} (--checkpoints=last)"
        )
        return rows, [], [Finding("checkpoints", text, tuple(np.flatnonzero(early.early).tolist()))]
    left = {id(row) for row, is_early in zip(selected, early.early, strict=True) if is_early}
    reason = f"checkpoints, not final losses: {early.why} (--checkpoints=all fits them)"
    names = [{"name": str(row.get("name", "?")), "reason": reason} for row in rows if id(row) in left]
    return [row for row in rows if id(row) not in left], names, []


def _other_columns(every: Mapping[str, Any], law: Law, groups: Groups | None) -> dict[str, Any]:
    """The columns that neither the law uses nor the groups of rows come from."""
    used = {*law.columns, law.target, "name", *([groups.column] if groups else [])}
    return {name: values for name, values in every.items() if name not in used}


def _unnamed_checkpoints(table: Mapping[str, np.ndarray], groups: Groups | None, cluster: str) -> list[Finding]:
    """The doubt about rows that look like checkpoints though no column names their runs; [] without one."""
    named = groups is not None or cluster != "auto" or not {"N", "D"} <= set(table)
    if named or not checkpoints_lib.look_like_checkpoints(table["N"], table["D"]):
        return []
    text = (
        "rows of equal N are evenly spaced in D, as checkpoints are, and no column names runs: a checkpoint's loss "
        "lies above that of a run that ends there; --cluster=COLUMN names the runs (--cluster=none: these are runs)"
    )
    return [Finding("checkpoints", text)]


def _too_few_last(table: Mapping[str, np.ndarray], law: Law, last: np.ndarray, groups: Sequence[Any]) -> str:
    """Why the last rows alone are too few for a fit; "" if they are enough."""
    needed = design.SPARE * len(law.params)
    for group in dict.fromkeys(groups):
        rows = last & np.array([each == group for each in groups])
        if rows.sum() <= needed:
            of = f" of {group!r}" if group else ""
            return f"the {rows.sum()} last rows{of} are few for {len(law.params)} parameters"
        try:
            columns, target = law_columns({name: values[rows] for name, values in table.items()}, law)
            identifiable.check_identifiable(law, columns, target)
        except BadInput:
            return "the last rows alone can't identify the law"
    return ""


def _every_column(selected: Sequence[Row], table: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """All columns of the rows, and the numbers of those that are fitted."""
    return {key: [row.get(key) for row in selected] for key in selected[0]} | dict(table)


def study_table(
    rows: Sequence[Row], law: Law, n_convention: str, drop_top_loss: int
) -> tuple[dict[str, np.ndarray], list[Row], list[dict[str, str]]]:
    """(columns [P] of the rows that count, these rows, {"name", "reason"} of the others). BadInput if none counts."""
    if n_convention not in N_COLUMNS:
        raise BadInput(f"--n-convention={n_convention}: unknown convention{nearest_hint(n_convention, N_COLUMNS)}")
    names = {"N": N_COLUMNS[n_convention], "loss": "val_loss"}
    needed = [names.get(column, column) for column in (*law.columns, law.target)]
    absent = {"C", "M"} - {key for row in rows for key in row}  # these follow from N and D
    needed = [column for column in needed if column not in absent]
    selected, excluded = select_rows(rows, needed, names.get(law.target, law.target), drop_top_loss, law)
    if not selected:
        raise BadInput(
            f"none of {len(rows)} runs can be fitted: {design.describe_exclusions(excluded) or 'there are none'}"
        )
    table = {column: np.array([float(row[column]) for row in selected]) for column in needed}
    for field, column in names.items():
        if column in table:
            table[field] = table[column]
    if all(row.get("C") for row in selected):
        table["C"] = np.array([float(row["C"]) for row in selected])
    return table, selected, excluded


def select_rows(
    rows: Sequence[Row], needed: Sequence[str], target: str, drop_top_loss: int = 0, law: Law | None = None
) -> tuple[list[Row], list[dict[str, str]]]:
    """Select the rows to fit: (rows in an order set by their values only, {"name", "reason"} of the excluded)."""
    if drop_top_loss < 0:
        raise BadInput(f"drop_top_loss = {drop_top_loss}: a number of runs, 0 or more")
    only_fit = any(row.get("role") in FITTED_ROLES for row in rows)
    selected, excluded = [], []
    for index, row in enumerate(rows):
        reason = _exclusion_reason(row, needed, only_fit, law)
        if reason:
            excluded.append({"name": str(row.get("name", f"row {index + 1}")), "reason": reason})
        else:
            selected.append(row)
    selected.sort(key=lambda row: (row[target], *[row[column] for column in needed]))
    n_selected = len(selected) - min(drop_top_loss, len(selected))
    for row in selected[n_selected:]:
        excluded.append({"name": str(row.get("name", "?")), "reason": f"one of the {drop_top_loss} largest losses"})
    return selected[:n_selected], excluded


def _exclusion_reason(row: Row, needed: Sequence[str], only_fit: bool, law: Law | None) -> str:
    """The reason why a row is not fitted; "" if it is fitted."""
    if only_fit and row.get("role") not in FITTED_ROLES:
        return f"role {row.get('role') or 'none'}"
    if row.get("status", "done") != "done":
        return str(row["status"])
    if row.get("mixed"):
        return f"mixed: {row['mixed']}"
    if row.get("rewinds"):
        return f"rewound {row['rewinds']} times by the guard, so it skipped batches"
    for key in needed:
        value = row.get(key)
        if value is None:
            return f"no {key}"
        if not (law.allows(key, value) if law else math.isfinite(value) and value > 0):
            return f"{key} is {value:g}"
    return ""
