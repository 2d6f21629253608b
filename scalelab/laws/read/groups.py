"""Finds the rows of a table that belong together: checkpoints of one run, or seeds of one setting."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.law import Law

RUN_NAMES = (
    "run_name",
    "run",
    "run_id",
    "trial",
    "experiment",
    "id",
    "name",
)  # columns that name a run, the first wins
NAMES_OF_RUNS = ("run_name", "run", "run_id", "trial", "name")  # those of them that are not a row's number
SEED_NAMES = ("seed", "train.seed")
LENGTHS = ("D", "C", "M", "step", "tokens")  # what grows while a run trains
MOST_ROWS_ALONE = 0.5  # a column is a run's name by structure if at most this share of its rows stands alone
Column = Sequence[Any] | np.ndarray


class Groups(NamedTuple):
    """The `column` that tells which rows belong together, and the label of each row [P]."""

    column: str
    labels: Sequence[str]


def find_groups(table: Mapping[str, Column], law: Law) -> Groups | None:
    """Find the rows that belong together; None if every row stands alone.

    Checkpoints: a column that repeats while D (or C, the step) varies and the law's other columns stay. It counts by
    its name (`RUN_NAMES`), or if it holds text and no column names each row a run of its own. Seeds: rows of equal
    columns but for one of `SEED_NAMES`.
    """
    fixed = [table[name] for name in {*law.columns, "N"} - {*LENGTHS, law.target} if name in table]
    lengths = [table[name] for name in LENGTHS if name in table and name != law.target]
    texts = [name for name, values in table.items() if fixed and any(isinstance(value, str) for value in values)]
    if any(len({str(value) for value in table[name]}) == len(table[name]) for name in NAMES_OF_RUNS if name in table):
        texts = []  # such as a column of model sizes in words
    finest_first = sorted(texts, key=lambda name: -len(set(table[name])))
    for name in (*(name for name in RUN_NAMES if name in table), *finest_first):
        labels = [str(value) for value in table[name]]
        groups = _rows_by_label(labels)
        several = [rows for rows in groups.values() if len(rows) > 1]
        named = name in RUN_NAMES or len(groups) - len(several) <= MOST_ROWS_ALONE * len(labels)
        if len(groups) > 1 and several and named and _all_equal(fixed, several) and _all_vary(lengths, several):
            return Groups(name, labels)
    return _find_seeds(table, law)


def choose_groups(table: Mapping[str, Column], law: Law, cluster: str) -> Groups | None:
    """The groups that `--cluster` asks for: a column of the table, "none", or "auto" for `find_groups`.

    BadInput for a column that the table lacks, or whose values all differ.
    """
    if cluster == "none":
        return None
    if cluster == "auto":
        return find_groups(table, law)
    if cluster not in table:
        raise BadInput(f"--cluster={cluster}: no such column{nearest_hint(cluster, table)}")
    if len({str(value) for value in table[cluster]}) == len(table[cluster]):
        raise BadInput(f"--cluster={cluster}: each row has its own value, so no two belong together; nearest: none")
    return Groups(cluster, [str(value) for value in table[cluster]])


def _find_seeds(table: Mapping[str, Column], law: Law) -> Groups | None:
    """Rows of one setting that differ in their seed."""
    seeds = next((table[name] for name in SEED_NAMES if name in table), None)
    if seeds is None:
        return None
    settings = [str(values) for values in zip(*(map(_round, table[name]) for name in law.columns), strict=True)]
    several = [each for each in _rows_by_label(settings).values() if len(each) > 1]
    return Groups("setting", settings) if len(several) > 1 and _all_vary([seeds], several) else None


def _rows_by_label(labels: Iterable[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return rows


def _all_equal(columns: Sequence[Column], groups: Sequence[list[int]]) -> bool:
    return all(len({_round(column[row]) for row in rows}) == 1 for column in columns for rows in groups)


def _all_vary(columns: Sequence[Column], groups: Sequence[list[int]]) -> bool:
    """Whether in each group some column has another value in each row."""
    return all(any(len({_round(column[row]) for row in rows}) == len(rows) for column in columns) for rows in groups)


def _round(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, (int, float, np.number)) else value
