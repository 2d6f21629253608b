"""Read a CSV, JSON-lines or parquet table of runs that were trained elsewhere into the rows that `study.fit_study` takes."""

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
# Other names of a field, of which the first that a table has counts: `scalelab runs --csv` writes (and wrote) them so.
ALIASES = {
    "loss": ("val_loss",), "width": ("model.d_model", "d_model"), "depth": ("model.n_layers", "n_layers"),
    "lr": ("optim.peak_lr", "peak_lr"), "U": ("data.unique_tokens", "unique_tokens"),
}  # fmt: skip
EXAMPLES = {"N": "params", "D": "tokens", "C": "flops"} | {field: names[-1] for field, names in ALIASES.items()}
ROW = "(row)"  # the place in the file, under a name that no expression can hold
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
    """Rows for `study.fit_study`, what N is in them, what was derived rather than read ("" where nothing was), and how
    many rows the subset left out."""

    rows: list[dict[str, Any]]
    n_convention: str
    derived: str
    left_out: int = 0


def known_fields(law: Law) -> tuple[str, ...]:
    """What --columns may name: the base fields, the columns of every built-in law, and the law's own and its target."""
    others = (column for each in LAWS.values() for column in each.columns)
    return tuple(dict.fromkeys((*BASE_FIELDS, *law.columns, law.target, *others)))


def parse_columns(text: str | None, known: Iterable[str] = BASE_FIELDS) -> dict[str, str]:
    """`N=params,loss=val` -> {"N": "params", "loss": "val"}: which column of the table holds which field."""
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
    """Rows with name, val_loss, the `needed` fields of a law, and all of the table's own columns.

    `columns` maps fields (N, D, C, M, U, width, loss, …) to the table's own names; by default the field's own or one of
    `ALIASES`. Any two of N, D, C suffice: the third follows from C = 6 N D, and M = D / N. `where` are expressions
    (`where.filter_rows`) over fields and the table's own columns. An empty cell is None (the run is not fitted, and said so);
    one that is not a number, or a number that is not finite and positive in a run that is done, is BadInput with its row.
    """
    path = pathlib.Path(path)
    lines = read_raw_rows(path)
    header = list(dict.fromkeys(key for line in lines for key in line))
    names = _resolve_columns(columns or {}, needed, header, path)
    rules = _derivation_rules(names)
    rows = [_make_row(line, names, rules, f"row {number}", path.name) for number, line in enumerate(lines, 1)]
    kept = filter_rows(rows, where)
    for row in kept:
        _check_possible(row, names, path.name)
    used = [text for field, _, text, _ in rules if field in needed or (field == "C" and {"N", "D"} <= set(needed))]
    convention = f"column {names['N']!r}" if "N" in names else next((t for f, _, t, _ in rules if f == "N"), "not used")
    return Table([_finish_row(row) for row in kept], convention, ", ".join(used), len(rows) - len(kept))


def _resolve_columns(
    columns: Mapping[str, str], needed: Sequence[str], header: list[str], path: pathlib.Path
) -> dict[str, str]:
    """Field -> column of this table; BadInput where a named column is absent or too few are known."""
    for column in columns.values():
        if column not in header:
            raise BadInput(
                f"--columns: {path.name} has no column {column!r}{nearest_hint(column, map(shorten_text, header))}"
            )

    def own(fields: Iterable[str]) -> dict[str, str]:
        names = {field: [name for name in (field, *ALIASES.get(field, ())) if name in header] for field in fields}
        return {field: known[0] for field, known in names.items() if field not in columns and known}

    names = {**columns, **own(needed)}
    if not set(needed) <= set(names):  # then from the others, if they are there
        names |= own("NDCM")
    if {"N", "D"} <= set(needed):
        names |= own("C")  # the runs' own count of FLOPs, where they have one
    if missing := [field for field in needed if field not in {*names, *(rule[0] for rule in _derivation_rules(names))}]:
        raise BadInput(_describe_missing(missing, needed, header, path))
    return names


def _describe_missing(missing: Sequence[str], needed: Sequence[str], header: list[str], path: pathlib.Path) -> str:
    third = " (two of N, D, C give the third)" if {"N", "D"} & set(missing) else ""
    example = ",".join(f"{field}={EXAMPLES.get(field, field.lower())}" for field in needed)
    shown = ", ".join(map(shorten_text, header[:20])) + (f" and {len(header) - 20} more" if len(header) > 20 else "")
    close = next((name for name in header for field in missing if shorten_text(name).lower() == field.lower()), "")
    hint = f"; did you mean {close!r}?" if close else ""
    return f"{path.name} has no {', '.join(missing)}{third} among its columns {shown}{hint}; name them: --columns={example}"


def _derivation_rules(names: Mapping[str, str]) -> list[Rule]:
    """The rules that give N, D, C, M where they are not read, in an order in which each has what it needs."""
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
    """BadInput for a number that can't be, in a run that is said to be done: a mistake in the table, not a poor run."""
    if row.get("status") not in (None, "", "done"):
        return
    for field, column in names.items():
        value = row[field]
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadInput(
                f"{table}, {row[ROW]}, {shorten_text(column)!r}: {field} is {value:g}; it must be finite and positive"
            )


def _finish_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its loss where the records of runs have it, and nothing that would be taken for what it isn't."""
    row = {**row, "val_loss": row["loss"]} if "loss" in row else row
    idle = [key for key in ("status", "role") if not row.get(key)] + [ROW]
    idle += ["C"] if isinstance(row.get("C"), str) else []  # a column of that name that no law asked for
    return {key: value for key, value in row.items() if key not in idle}


def _parse_cell(entry: Any) -> Any:
    """A cell of the table's own columns: a number where it is one, None where it is empty."""
    if entry is None or entry == "":
        return None
    if isinstance(entry, str):
        try:
            return float(entry)
        except ValueError:
            return entry
    return entry


def _parse_number(entry: Any, where: str) -> float | None:
    """The number in a cell; None where it is empty."""
    if entry is None or entry == "":
        return None
    try:
        if isinstance(entry, bool):
            raise TypeError
        return float(entry)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{where}: {shorten_text(entry)!r} is not a number") from None
