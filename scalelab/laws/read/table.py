"""Reads a CSV, JSON-lines or parquet table of runs trained elsewhere into rows for `study.fit_study`."""

import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.law import Law
from scalelab.laws.law.names import LAWS
from scalelab.laws.read.readers import read_raw_rows, shorten_text
from scalelab.laws.read.where import filter_rows

BASE_FIELDS = ("N", "D", "C", "M", "loss")
CHINCHILLA_FIELDS = ("N", "D", "loss")
# Other names of a field, as `scalelab runs --csv` writes them now or did once; the first one in the table counts.
ALIASES = {
    "loss": ("val_loss",), "width": ("model.d_model", "d_model"), "depth": ("model.n_layers", "n_layers"),
    "lr": ("optim.peak_lr", "peak_lr"), "U": ("data.unique_tokens", "unique_tokens"),
}  # fmt: skip
EXAMPLES = {"N": "params", "D": "tokens", "C": "flops"} | {field: names[-1] for field, names in ALIASES.items()}
ROW = "(row)"  # key of the place in the file: a name that no expression can contain
K = FLOPS_PER_PARAM_TOKEN
Rule = tuple[str, tuple[str, str], str, Callable[[float, float], float]]
RULES: tuple[Rule, ...] = (
    ("D", ("M", "N"), "D = M N", lambda M, N: M * N),
    ("N", ("C", "D"), "N = C / 6D", lambda C, D: C / (K * D)),
    ("D", ("C", "N"), "D = C / 6N", lambda C, N: C / (K * N)),
    ("C", ("N", "D"), "C = 6ND", lambda N, D: K * N * D),
    ("M", ("D", "N"), "M = D / N", lambda D, N: D / N),
)


class Table(NamedTuple):
    """Rows for `study.fit_study`.

    `n_convention`: where N comes from; `derived`: the rules of derived columns ("" if all were read); `left_out`: how
    many rows `where` left out.
    """

    rows: list[dict[str, Any]]
    n_convention: str
    derived: str
    left_out: int = 0


def known_fields(law: Law) -> tuple[str, ...]:
    """Fields that --columns may name: the base fields, the law's columns and target, the columns of built-in laws."""
    others = (column for each in LAWS.values() for column in each.columns)
    return tuple(dict.fromkeys((*BASE_FIELDS, *law.columns, law.target, *others)))


def parse_columns(text: str | None, known: Iterable[str] = BASE_FIELDS) -> dict[str, str]:
    """Parse `N=params,loss=val` into {field: column}: {"N": "params", "loss": "val"}. BadInput for anything else."""
    columns: dict[str, str] = {}
    for part in text.split(",") if text else []:
        field, equals, column = part.partition("=")
        if not equals or not column or field not in known:
            hint = nearest_hint(field, known) if len(field) > 1 else f"; fields: {', '.join(dict.fromkeys(known))}"
            raise BadInput(f"--columns: {part!r} is not FIELD=COLUMN{hint}")
        if field in columns:
            raise BadInput(f"--columns names {field} twice: {columns[field]!r} and {column!r}")
        columns[field] = column
    return columns


def read_table(
    path: str | os.PathLike[str], columns: Mapping[str, str] | None = None, needed: Sequence[str] = CHINCHILLA_FIELDS,
    where: Iterable[str] = (),
) -> Table:  # fmt: skip
    """Read rows with name, val_loss, the `needed` fields of a law, and all of the table's own columns.

    `columns` maps fields (N, D, C, M, U, width, loss, …) to the table's names; by default the field's own name or one
    of `ALIASES`. Any two of N, D, C suffice: the third follows from C = 6 N D, and M = D / N. `where` holds expressions
    (`where.filter_rows`) over fields and the table's own columns. An empty cell is None: the run is listed as not
    fitted. BadInput, with the row, for a cell that is not a number, and in a finished run for one that is not finite
    and positive.
    """
    path = pathlib.Path(path)
    lines = read_raw_rows(path)
    header = list(dict.fromkeys(key for line in lines for key in line))
    names = _resolve_columns(columns or {}, needed, header, path)
    rules = _derivation_rules(names)
    rows = [_make_row(line, names, rules, f"row {number}", path.name) for number, line in enumerate(lines, 1)]
    selected = filter_rows(rows, where)
    for row in selected:
        _check_possible(row, names, path.name)
    used = [text for field, _, text, _ in rules if field in needed or (field == "C" and {"N", "D"} <= set(needed))]
    convention = f"column {names['N']!r}" if "N" in names else next((t for f, _, t, _ in rules if f == "N"), "not used")
    return Table([_finish_row(row) for row in selected], convention, ", ".join(used), len(rows) - len(selected))


def _resolve_columns(
    columns: Mapping[str, str], needed: Sequence[str], header: list[str], path: pathlib.Path
) -> dict[str, str]:
    """{field: column of this table}; BadInput where a named column is absent or too few are known."""
    for column in columns.values():
        if column not in header:
            raise BadInput(
                f"--columns: {path.name} has no column {column!r}{nearest_hint(column, map(shorten_text, header))}"
            )

    def default_columns(fields: Iterable[str]) -> dict[str, str]:
        names = {field: [name for name in (field, *ALIASES.get(field, ())) if name in header] for field in fields}
        return {field: known[0] for field, known in names.items() if field not in columns and known}

    names = {**columns, **default_columns(needed)}
    if not set(needed) <= set(names):  # then from the others, if they are there
        names |= default_columns("NDCM")
    if {"N", "D"} <= set(needed):
        names |= default_columns("C")  # the runs' own count of FLOPs, if the table has it
    if missing := [field for field in needed if field not in {*names, *(rule[0] for rule in _derivation_rules(names))}]:
        raise BadInput(_describe_missing(missing, needed, header, path))
    return names


def _describe_missing(missing: Sequence[str], needed: Sequence[str], header: list[str], path: pathlib.Path) -> str:
    third = " (two of N, D, C give the third)" if {"N", "D"} & set(missing) else ""
    example = ",".join(f"{field}={EXAMPLES.get(field, field.lower())}" for field in needed)
    shown = ", ".join(map(shorten_text, header[:20])) + (f" and {len(header) - 20} more" if len(header) > 20 else "")
    close = next((name for name in header for field in missing if shorten_text(name).lower() == field.lower()), "")
    hint = f"; did you mean {close!r}?" if close else ""
    return (
        f"{path.name} has no {', '.join(missing)}{third} among its columns {shown}{hint}; "
        f"name them: --columns={example}"
    )


def _derivation_rules(names: Mapping[str, str]) -> list[Rule]:
    """The rules that derive N, D, C, M where they are not read, each after those it needs."""
    known, used = set(names), []
    for rule in RULES:
        field, sources, _, _ = rule
        if field not in known and set(sources) <= known:
            known.add(field)
            used.append(rule)
    return used


def _make_row(
    line: Mapping[str, Any], names: Mapping[str, str], rules: Sequence[Rule], name: str, table: str
) -> dict[str, Any]:
    row = {key: _parse_cell(value) for key, value in line.items()}
    row |= {
        field: _parse_number(line.get(column), f"{table}, {name}, {shorten_text(column)!r}")
        for field, column in names.items()
    }
    for field, sources, _, rule in rules:
        values = [row[source] for source in sources]
        possible = all(value is not None and value > 0 for value in values)
        row[field] = rule(*values) if possible else None
    return row | {"name": str(line.get("name") or name), ROW: name}


def _check_possible(row: Mapping[str, Any], names: Mapping[str, str], table: str) -> None:
    """BadInput for an impossible number in a run that is done: a mistake in the table, not a poor run."""
    if row.get("status") not in (None, "", "done"):
        return
    for field, column in names.items():
        value = row[field]
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadInput(
                f"{table}, {row[ROW]}, {shorten_text(column)!r}: {field} is {value:g}; it must be finite and positive"
            )


def _finish_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with `val_loss` as in records of runs, without empty or foreign fields that `study` would misread."""
    row = {**row, "val_loss": row["loss"]} if "loss" in row else row
    idle = [key for key in ("status", "role") if not row.get(key)] + [ROW]
    idle += ["C"] if isinstance(row.get("C"), str) else []  # a column named C that the law does not use
    return {key: value for key, value in row.items() if key not in idle}


def _parse_cell(entry: Any) -> Any:
    """A cell of the table's own columns: a float if it reads as one, None if empty, else as it is."""
    if entry is None or entry == "":
        return None
    if isinstance(entry, str):
        try:
            return float(entry)
        except ValueError:
            return entry
    return entry


def _parse_number(entry: Any, where: str) -> float | None:
    """The number in a cell; None if empty; BadInput for anything else."""
    if entry is None or entry == "":
        return None
    try:
        if isinstance(entry, bool):
            raise TypeError
        return float(entry)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{where}: {shorten_text(entry)!r} is not a number") from None
