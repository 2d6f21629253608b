"""Reads a CSV, JSON-lines or parquet table of runs trained elsewhere into rows for `study.fit_study`."""

import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.errors import BadInput, nearest_hint, nearest_name
from scalelab.laws.law.law import Law
from scalelab.laws.read.columns import (
    EXPERT_FIELDS,
    describe_choice,
    describe_missing,
    fitting_columns,
    nearest_columns,
    plain_name,
    refuse_two,
    split_conversion,
    unit_factor,
    without_prefix,
    write_columns,
)
from scalelab.laws.read.groups import names_run
from scalelab.laws.read.points import Rule, derivation_rules, describe_allowed
from scalelab.laws.read.readers import fill_merged, read_raw_rows, shorten_text
from scalelab.laws.read.trackers import find_status_columns, read_statuses
from scalelab.laws.read.units import describe_size, loss_of_other_unit, size_columns
from scalelab.laws.read.where import filter_rows
from scalelab.numbers.written import SUFFIXES, ReadAs, find_decimal_mark, is_plain, looks_numeric, parse_number

CHINCHILLA_FIELDS = ("N", "D", "loss")
MISSING = frozenset(
    ["na", "n/a", "none", "null", "-", "--", "?", "#n/a", "#n/d", "<na>", "missing"]
)  # cells without a value
RUN_NAMES = ("name", "runname", "displayname")  # columns whose text names a row for readers
ROW = "(row)"  # key of the place in the file: a name that no expression can contain


class Table(NamedTuple):
    """Rows for `study.fit_study`.

    `n_convention`: where N comes from; `derived`: the rules of derived columns ("" if all were read); `left_out`: how
    many rows `where` left out; `columns`: {field: column} as read; `notes`: lines about what was chosen or read as
    something else.
    """

    rows: list[dict[str, Any]]
    n_convention: str
    derived: str
    left_out: int = 0
    columns: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


def read_table(
    path: str | os.PathLike[str],
    columns: Mapping[str, str] | None = None,
    needed: Sequence[str] = CHINCHILLA_FIELDS,
    where: Iterable[str] = (),
    option: str = "--columns",
    finished: Sequence[str] = (),
    law: Law | None = None,
) -> Table:
    """Read rows with name, val_loss, the `needed` fields of a law, and all of the table's own columns.

    `columns` maps fields (N, D, C, M, U, width, loss, …) to the table's names, which may be converted
    (`columns.split_conversion`); by default a column's name tells (`columns.fitting_columns`). Any two of N, D, C
    suffice: the third follows from C = 6 N D, and M = D / N. `where` holds expressions (`where.filter_rows`) over
    fields and the table's own columns. An empty cell is None: the run is listed as not fitted. BadInput, with the row,
    for a cell that is not a number (`numbers`), and in a finished run for one that is not finite and positive;
    `option` gave the columns. A tracker's words tell which runs finished (`trackers.read_statuses`), and `finished`
    adds to them. `law`: says which fields may be zero or negative.
    """
    path = pathlib.Path(path)
    lines = read_raw_rows(path)
    header = list(dict.fromkeys(key for line in lines for key in line))
    numeric = [name for name in header if looks_numeric(_first_value(lines, name))]
    size = law.size if law else ""
    sized = size_columns(size, columns or {}, header, numeric, path.name, option)
    names = _resolve_columns({**sized, **(columns or {})}, needed, header, numeric, path.name, option, size)
    names |= {field: _with_unit(name, field, lines) for field, name in names.items() if field not in (columns or {})}
    rules = derivation_rules(names, size)
    sizes = [split_conversion(names[field], header)[0] for field in ("N",) if field in names]
    merged = fill_merged(lines, dict.fromkeys([*sizes, *filter(names_run, header)]))
    cells = _NumberCells(names, header, lines, path.name)
    labels = _name_rows(lines, header)
    rows = [_make_row(line, cells, rules, label) for line, label in zip(lines, labels, strict=True)]
    if (column := next(iter(find_status_columns(header)), None)) and "status" not in header:
        for row in rows:
            row["status"] = row.get(column)  # so that --where can name it, whatever its header
    selected = filter_rows(rows, where)
    for row, status in zip(selected, read_statuses(selected, header, path.name, finished), strict=True):
        if status is not None:
            row["status"] = status
        _check_possible(row, names, path.name, law)
    used = [text for field, _, text, _ in rules if field in needed or (field == "C" and {"N", "D"} <= set(needed))]
    convention = f"column {names['N']!r}" if "N" in names else next((t for f, _, t, _ in rules if f == "N"), "not used")
    convention += f" ({size} parameters)" if size and convention != "not used" else ""
    choice = [describe_choice(names, columns or {}, header, path.name)]
    choice += [describe_size(size, names, columns or {}, numeric, path.name)] if "N" in needed else []
    notes = (*filter(None, choice), *cells.notes(), *(_describe_merged(each, path.name) for each in merged))
    left_out = len(rows) - len(selected)
    return Table([_finish_row(row) for row in selected], convention, ", ".join(used), left_out, names, notes)


def _resolve_columns(
    columns: Mapping[str, str],
    needed: Sequence[str],
    header: list[str],
    numeric: list[str],
    table: str,
    option: str,
    size: str,
) -> dict[str, str]:
    """{field: column of this table}; BadInput where a named column is absent, two fit, or too few are known."""
    for field, column in columns.items():
        name, _ = split_conversion(column, header)
        if name not in header:
            hint = nearest_hint(name, map(shorten_text, header))
            if near := nearest_name(name, header):
                texts = (near.join(parts) for parts in (column.rsplit(name, 1), column.split(name, 1)))
                renamed = next((text for text in texts if split_conversion(text, header)[0] == near), near)
                hint += f" paste {option}={write_columns({**columns, field: renamed})}"
            raise BadInput(f"{option}: {table} has no column {name!r}{hint}")

    fitting = {
        field: fitting_columns(field, header, numeric)
        for field in dict.fromkeys((*needed, *"NDCM", *EXPERT_FIELDS))
        if field not in columns
    }

    def default_columns(fields: Iterable[str]) -> dict[str, str]:
        return {field: fitting[field][0] for field in fields if len(fitting.get(field, ())) == 1}

    names = {**columns, **default_columns(needed)}
    if not set(needed) <= set(names):  # then from the others, if they are there
        names |= default_columns("NDCM")
    if {"sparsity", "activation"} & set(needed) - set(names):
        names |= default_columns(EXPERT_FIELDS)
    # The runs' own count of FLOPs, if the table has it: by a usual name only if it is not --columns that chose N and D.
    if {"N", "D"} <= set(needed) and ("C" in header or not {"N", "D"} & set(columns)):
        names |= default_columns("C")
    if missing := [
        field for field in needed if field not in {*names, *(rule[0] for rule in derivation_rules(names, size))}
    ]:
        if two := next((field for field in (*missing, *"NDC") if len(fitting.get(field, ())) > 1), None):
            raise refuse_two(two, fitting[two], table, option)
        guessed = nearest_columns(missing, numeric)
        if missing == ["loss"] and not guessed and (loss := loss_of_other_unit(numeric)):
            guessed = {"loss": loss}
        paste = write_columns({**columns, **guessed}) if guessed else ""
        raise BadInput(describe_missing(missing, needed, header, table, option, paste))
    if two := next((field for field in needed if field not in names and len(fitting.get(field, ())) > 1), None):
        raise refuse_two(two, fitting[two], table, option)
    return names


class _NumberCells:
    """Reads the numbers of a table's fields, and counts cells that are not written as Python writes them."""

    def __init__(self, names: Mapping[str, str], header: Sequence[str], lines: Sequence[Mapping[str, Any]], table: str):
        self.columns = {field: split_conversion(text, header) for field, text in names.items()}
        self.table, self.unusual = table, dict[str, ReadAs]()
        cells = ((field, line.get(name)) for line in lines for field, (name, _) in self.columns.items())
        self.mark = find_decimal_mark((field, cell) for field, cell in cells if isinstance(cell, str))

    def read_line(self, line: Mapping[str, Any], row: str) -> dict[str, float | None]:
        """The numbers of the fields; a column that held text stands under its own name as a number, too."""
        numbers: dict[str, float | None] = {}
        for field, (name, convert) in self.columns.items():
            value = self._number(line.get(name), field, f"{self.table}, {row}, {shorten_text(name)!r}")
            if isinstance(line.get(name), str) and name not in self.columns:
                numbers[name] = value
            numbers[field] = value if value is None or convert is None else _converted(convert, value)
        return numbers

    def notes(self) -> list[str]:
        """One line for each column with unusual cells."""
        return [
            f"{shorten_text(each.text)!r} read as {each.value:.10g} in column "
            f"{shorten_text(self.columns[field][0])!r}: {each.cells} cell{'s' * (each.cells > 1)}"
            for field, each in self.unusual.items()
        ]

    def _number(self, entry: Any, field: str, where: str) -> float | None:
        """The number in a cell; None if empty; BadInput for anything else."""
        if _is_missing(entry):
            return None
        if not isinstance(entry, str):
            return _check_number(entry, where)
        try:
            value = parse_number(entry, field, self.mark)
        except ValueError as error:
            raise BadInput(f"{where}: {shorten_text(entry)!r} {error}") from None
        if not is_plain(entry, value):
            first = self.unusual.get(field, ReadAs(entry.strip(), value, 0))
            self.unusual[field] = first._replace(cells=first.cells + 1)
        return value


def _converted(convert: Callable[[float], float], value: float) -> float:
    """The converted number; nan where it has none, for `_check_possible` to refuse."""
    try:
        return convert(value)
    except (ValueError, OverflowError):
        return math.nan


def _is_missing(entry: Any) -> bool:
    """Whether a cell is empty, or says in words that it is."""
    return entry is None or (isinstance(entry, str) and (not entry.strip() or entry.strip().casefold() in MISSING))


def _describe_merged(filled: tuple[str, int], table: str) -> str:
    column, count = filled
    return f"{table}: {count} empty cells of {shorten_text(column)!r} read as the cell above them, as merged cells are"


def _with_unit(name: str, field: str, lines: Iterable[Mapping[str, Any]]) -> str:
    """The column as --columns writes it, with the factor that its header says, unless its cells say theirs (`12M`)."""
    factor = unit_factor(name, field)
    as_written = factor == 1 or any(str(line.get(name) or "").strip()[-1:].casefold() in SUFFIXES for line in lines)
    return name if as_written else f"{name}*{factor:g}"


def _first_value(lines: Iterable[Mapping[str, Any]], name: str) -> Any:
    return next((line[name] for line in lines if not _is_missing(line.get(name))), "")


def _name_rows(lines: Sequence[Mapping[str, Any]], header: Sequence[str]) -> list[tuple[str, str]]:
    """(a row's name for readers, its place): the run's name, and the place too where several rows have that name."""
    places = [f"row {number}" for number in range(1, len(lines) + 1)]
    if "name" in header:
        return [(str(line.get("name") or place), place) for line, place in zip(lines, places, strict=True)]
    column = next((name for name in header if plain_name(without_prefix(name)) in RUN_NAMES), None)
    texts = [str(line.get(column) or "") if column else "" for line in lines]
    repeats = len(set(texts)) < len(texts)
    return [
        (place if not text else f"{text} ({place})" if repeats else text, place)
        for text, place in zip(texts, places, strict=True)
    ]


def _make_row(
    line: Mapping[str, Any], cells: _NumberCells, rules: Sequence[Rule], label: tuple[str, str]
) -> dict[str, Any]:
    name, place = label
    row = {key: _parse_cell(value) for key, value in line.items()} | cells.read_line(line, place)
    for field, sources, _, rule in rules:
        values = {source: row[source] for source in sources}
        possible = all(v is not None and (v > 0 or each == "shared_experts") for each, v in values.items())
        row[field] = rule(*values.values()) if possible else None
    return row | {"name": name, ROW: place}


def _check_possible(row: Mapping[str, Any], names: Mapping[str, str], table: str, law: Law | None) -> None:
    """BadInput for an impossible number in a run that is done: a mistake in the table, not a poor run."""
    if row.get("status") not in (None, "", "done"):
        return
    for field, column in names.items():
        value = row[field]
        allowed = value is None or (law.allows(field, value) if law else math.isfinite(value) and value > 0)
        allowed |= field == "shared_experts" and value == 0
        if not allowed:
            must = describe_allowed(law, field)
            raise BadInput(f"{table}, {row[ROW]}, {shorten_text(column)!r}: {field} is {value:g}; {must}")


def _finish_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with `val_loss` as in records of runs, without empty or foreign fields that `study` would misread."""
    row = {**row, "val_loss": row["loss"]} if "loss" in row else row
    idle = [key for key in ("status", "role") if not row.get(key)] + [ROW]
    idle += ["C"] if isinstance(row.get("C"), str) else []  # a column named C that the law does not use
    idle += ["N_active"]  # C follows from it; the fitted N is in N
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


def _check_number(entry: Any, where: str) -> float:
    """A cell that is not text as a number; BadInput for anything else."""
    try:
        if isinstance(entry, bool):
            raise TypeError
        return float(entry)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{where}: {shorten_text(entry)!r} is not a number") from None
