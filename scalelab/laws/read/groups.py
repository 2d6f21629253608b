"""Finds the rows of a table that belong together: checkpoints of one run, or seeds of one setting."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.law import Law
from scalelab.laws.read.columns import plain_name, without_prefix

# Columns that name a run, in plain spelling (`columns.plain_name`); the first wins.
RUN_NAMES = (
    "runname", "run", "runid", "runuuid", "trial", "trialid", "trialname", "experiment", "experimentname",
    "expname", "exp", "experimentid", "id", "name", "displayname", "job", "jobname", "jobid",
)  # fmt: skip
# Names of a model or a setting, which name a run if N stays where they do; several runs may share them.
SHARED_NAMES = ("model", "modelname", "modelid", "config", "configname", "configid")
# Those of them that are not a row's number, nor what several runs may share: where each row has its own, it is a run.
NAMES_OF_RUNS = ("runname", "run", "runid", "runuuid", "trial", "trialid", "trialname", "name", "displayname")
SEED_NAMES = ("seed", "train.seed")
LENGTHS = ("D", "C", "M", "step", "tokens")  # what grows while a run trains
MOST_ROWS_ALONE = 0.5  # a column is a run's name by structure if at most this share of its rows stands alone
SAME_SIZE = 1.01  # an N that follows from rounded C and D varies within a run by less than this factor
ROW_NUMBER = re.compile(
    r"(.*: )?(row \d+|.* \(row \d+\))", re.DOTALL
)  # how `table` names a row that has no name of its own
# The step at the end of a checkpoint's name: `a/step1000`, `a-step_1000-unsharded`, "a_ckpt12", `a-iter-00500.pt`.
STEP_SUFFIX = re.compile(
    r"[\s/_.\-]*(?:global_?step|step|iter(?:ation)?|ckpt|checkpoint)s?[\s_=\-]*\d+.*$", re.I | re.S
)
Column = Sequence[Any] | np.ndarray


class Groups(NamedTuple):
    """The `column` that tells which rows belong together, and the label of each row [P]."""

    column: str
    labels: Sequence[str]


def names_run(column: str, names: Sequence[str] = RUN_NAMES) -> bool:
    """Whether a column's name, in any spelling and below a tracker's prefix, is one of a run's names."""
    return _rank_name(column, names) < len(names)


def find_groups(table: Mapping[str, Column], law: Law) -> Groups | None:
    """Find the rows that belong together; None if every row stands alone.

    Checkpoints: a column that repeats while D (or C, the step) varies and the law's other columns stay. It counts by
    its name (`RUN_NAMES`), or if it holds text and no column names each row a run of its own; last, text columns
    together, such as a model and a schedule. Names such as `a/step1000` count without the step. Seeds: rows of equal
    columns but for one of `SEED_NAMES`.
    """
    table = {name: values for name, values in table.items() if not _numbers_rows(values)}
    fixed = [table[name] for name in {*law.columns, "N"} - {*LENGTHS, law.target} if name in table]
    lengths = [table[name] for name in LENGTHS if name in table and name != law.target]
    for name, labels in _candidates(table, law, bool(fixed)):
        groups = _rows_by_label(labels)
        several = [rows for rows in groups.values() if len(rows) > 1]
        named = names_run(name, (*RUN_NAMES, *SHARED_NAMES)) or len(groups) - len(several) <= MOST_ROWS_ALONE * len(
            labels
        )
        if len(groups) > 1 and several and named and _all_equal(fixed, several) and _all_vary(lengths, several):
            return Groups(name, labels)
    return _find_seeds(table, law)


def _candidates(table: Mapping[str, Column], law: Law, with_texts: bool) -> Iterable[tuple[str, list[str]]]:
    """(column, label of each row) of what may name runs: by name, without a step at its end, text, texts together."""
    names = (*RUN_NAMES, *(SHARED_NAMES if with_texts else ()))
    named = sorted((name for name in table if names_run(name, names)), key=lambda name: _rank_name(name, names))
    texts = [name for name, values in table.items() if with_texts and any(isinstance(v, str) for v in values)]
    own = [name for name in named if names_run(name, NAMES_OF_RUNS) and _all_differ(table[name])]
    yield from ((name, _labels(table[name])) for name in named)
    for name in (name for name in named if _all_differ(table[name])):
        stems = [STEP_SUFFIX.sub("", label) for label in _labels(table[name])]
        if not _all_differ(stems):
            yield name, stems
    if own:
        return  # other text, such as model sizes in words
    finest_first = sorted(texts, key=lambda name: -len(set(map(str, table[name]))))
    yield from ((name, _labels(table[name])) for name in finest_first if name not in named)
    if len(texts) > 1:
        parts = zip(*(map(str, table[name]) for name in texts), strict=True)
        yield " and ".join(texts), ["; ".join(each) for each in parts]


def _rank_name(column: str, names: Sequence[str]) -> int:
    """The place of a column's plain spelling among names; their number if it is not one of them."""
    plain = [form for form in (plain_name(column), plain_name(without_prefix(column))) if form in names]
    return min((names.index(form) for form in plain), default=len(names))


def _labels(values: Column) -> list[str]:
    """The label of each row: its text; a row without one stands alone."""
    return [f"(row {row})" if _is_blank(value) else str(value) for row, value in enumerate(values, 1)]


def _is_blank(value: Any) -> bool:
    return value is None or str(value).strip() in ("", "nan")


def _all_differ(values: Column) -> bool:
    return len(set(map(str, values))) == len(values)


def _numbers_rows(values: Column) -> bool:
    """Whether a column only holds the places of rows in their file."""
    return len(values) > 0 and all(isinstance(value, str) and ROW_NUMBER.fullmatch(value) for value in values)


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
    return all(_is_one([column[row] for row in rows]) for column in columns for rows in groups)


def _is_one(values: Sequence[Any]) -> bool:
    """Whether values are one, up to the rounding of a size."""
    if all(isinstance(value, (int, float, np.number)) for value in values) and min(values) > 0:
        return bool(max(values) < SAME_SIZE * min(values))
    return len({_round(value) for value in values}) == 1


def _all_vary(columns: Sequence[Column], groups: Sequence[list[int]]) -> bool:
    """Whether in each group some column has another value in each row."""
    return all(any(len({_round(column[row]) for row in rows}) == len(rows) for column in columns) for rows in groups)


def _round(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, (int, float, np.number)) else value
