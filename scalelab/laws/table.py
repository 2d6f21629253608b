"""Read a CSV or JSON-lines table of runs that were trained elsewhere into the rows that `study.fit_study` takes."""

import csv
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from scalelab.errors import BadInput, nearest
from scalelab.laws.forms import FLOPS_PER_PARAM_TOKEN

FIELDS = ("N", "D", "C", "loss")
DERIVED = {"N": "N = C / 6D", "D": "D = C / 6N", "C": "C = 6ND"}
OWN_NAMES = {"loss": "val_loss"}  # a table written by `scalelab runs --csv` has the loss under this name


class Table(NamedTuple):
    """Rows for `study.fit_study`, what N is in them, and what was derived rather than read ("" where nothing was)."""

    rows: list[dict[str, Any]]
    n_convention: str
    derived: str


def parse_columns(text: str) -> dict[str, str]:
    """`N=params,loss=val` -> {"N": "params", "loss": "val"}: which column of the table holds which field."""
    columns = {}
    for part in text.split(",") if text else []:
        field, equals, column = part.partition("=")
        if not equals or not column or field not in FIELDS:
            hint = nearest(field, FIELDS) or f"; fields: {', '.join(FIELDS)}"
            raise BadInput(f"--columns: {part!r} is not FIELD=COLUMN{hint}")
        columns[field] = column
    return columns


def read_table(path: str | os.PathLike[str], columns: Mapping[str, str] | None = None) -> Table:
    """Rows with name, N, D, C, val_loss (and status, role where the table has them) from a .csv or .jsonl file.

    `columns` maps N, D, C, loss to the table's own names, by default N, D, C and loss or val_loss. Any two of N, D, C
    suffice: the third follows from C = 6 N D. An empty entry is None (the run is not fitted, and said so); any other
    that is not a number is BadInput with its row.
    """
    path = pathlib.Path(path)
    lines = _lines(path)
    if not lines:
        raise BadInput(f"{path} holds no rows")
    names = _resolve(columns or {}, list(dict.fromkeys(key for line in lines for key in line)), path)
    rows = [_row(line, names, f"{path.name}, row {number}") for number, line in enumerate(lines, 1)]
    derived = next((text for field, text in DERIVED.items() if field not in names), "")
    return Table(rows, f"column {names['N']!r}" if "N" in names else DERIVED["N"], derived)


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
    if path.suffix not in (".csv", ".jsonl"):
        raise BadInput(f"{str(path)!r}: a table is a .csv or a .jsonl file; anything else must be a folder of runs")
    with path.open(newline="") as file:
        if path.suffix == ".csv":
            return list(csv.DictReader(file))
        rows = []
        for number, text in enumerate(file, 1):
            try:
                rows.append(json.loads(text)) if text.strip() else None
            except json.JSONDecodeError as error:
                raise BadInput(f"{path}, line {number} is not JSON: {error.msg}") from None
    return rows


def _resolve(columns: Mapping[str, str], header: list[str], path: pathlib.Path) -> dict[str, str]:
    """Field -> column of this table; BadInput where a named column is absent or too few are known."""
    names = dict(columns)
    for column in columns.values():
        if column not in header:
            raise BadInput(f"--columns: {path.name} has no column {column!r}{nearest(column, header)}")
    for field in FIELDS:
        for candidate in (field, OWN_NAMES.get(field)):
            if field not in names and candidate in header:
                names[field] = candidate
    if "loss" not in names or sum(field in names for field in "NDC") < 2:
        raise BadInput(
            f"{path.name} has columns {', '.join(map(str, header))}: say which hold the loss and two of N, D, C, "
            "as in --columns=N=params,D=tokens,loss=val_loss"
        )
    return names


def _row(line: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    value = {field: _number(line.get(column), f"{where}, {column!r}") for field, column in names.items()}
    row = {"name": str(line.get("name") or where.rpartition(", ")[2]), "val_loss": value["loss"]}
    N, D, C = (value.get(field) for field in "NDC")
    k = FLOPS_PER_PARAM_TOKEN
    row["N"] = N if "N" in names else _ratio(C, D, k)
    row["D"] = D if "D" in names else _ratio(C, N, k)
    row["C"] = C if "C" in names else (None if N is None or D is None else k * N * D)
    return row | {key: line[key] for key in ("status", "role") if line.get(key)}


def _ratio(C: float | None, other: float | None, k: float) -> float | None:
    return C / (k * other) if C and other else None


def _number(entry: Any, where: str) -> float | None:
    """The number in a cell; None where it is empty."""
    if entry is None or entry == "":
        return None
    try:
        return float(entry)
    except (TypeError, ValueError):
        raise BadInput(f"{where}: {entry!r} is not a number") from None
