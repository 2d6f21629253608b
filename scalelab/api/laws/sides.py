"""Judge a table of others' runs, one row a run with its side, as `scalelab ablate TABLE` does."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from scalelab.api.arguments import POSITIVE, Facts, Path, check_arguments, optional
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws import multiplier
from scalelab.laws.read.columns import parse_columns
from scalelab.laws.read.readers import read_raw_rows, shorten_text
from scalelab.laws.use.multiplier.design import next_pair
from scalelab.laws.use.multiplier.result import WORTH
from scalelab.numbers.written import find_decimal_mark, parse_number

LARGEST_VALUE = 1e60  # products of several such numbers, and of their inverses, are still finite floats
FIELDS = ("side", "C", "loss", "seed", "tokens", "tokens_per_s")
NEEDED = ("side", "C", "loss")
NUMBERS = ("C", "loss", "tokens", "tokens_per_s")
COUNTED = {"C": "C", "tokens": "D"}  # fields in which 50M is a number, as numbers/written names them
LOST = ("", "nan", "inf", "diverged", "none", "-")


class JudgedTable(NamedTuple):
    """The verdicts on a table's variants, as the command's --json prints them, and notes on the reading."""

    variants: list[Facts]
    notes: list[str]


@check_arguments(target_flops=optional(POSITIVE), worth=POSITIVE)
def judge_table(
    table: Path,
    baseline: str,
    *,
    target_flops: float | None = None,
    fix: Mapping[str, float] | None = None,
    worth: float = WORTH,
    next: bool = False,
    columns: Mapping[str, str] | None = None,
) -> JudgedTable:
    """Judge by a table of others' runs whether a change holds at scale (`scalelab ablate TABLE`).

    `fix`: values of E or alpha that are not fitted; `worth`: the smallest multiplier that matters; `next`: also which
    further runs would settle it; `columns`: which hold side, C, loss, seed, tokens, tokens_per_s.
    BadInput for a table that can't be judged.
    """
    if not pathlib.Path(table).is_file():
        raise BadInput(f"{table} does not exist" if not pathlib.Path(table).exists() else f"{table} is not a file")
    named = ",".join(f"{field}={column}" for field, column in (columns or {}).items())
    rows, notes = read_sides(pathlib.Path(table), named or None)
    results = multiplier(rows, baseline=baseline, target_flops=target_flops, fix=dict(fix or {}), worth=worth)
    content: list[Facts] = [{"variant": name} | result.to_json() for name, result in results.items()]
    for each, result in zip(content if next else (), results.values() if next else (), strict=True):
        each["next"] = next_pair(result)
    return JudgedTable(content, notes)


def read_sides(path: pathlib.Path, columns: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Read (rows with the fields of `multiplier`, lines on what was chosen). BadInput for a damaged table."""
    lines = read_raw_rows(path)
    header = list(dict.fromkeys(key for line in lines for key in line))
    names = _choose_columns(header, parse_columns(columns, FIELDS), path)
    cells = [(COUNTED.get(f, f), str(line.get(names[f]) or "")) for line in lines for f in NUMBERS if f in names]
    mark = find_decimal_mark((field, cell) for field, cell in cells if cell.strip().lower() not in LOST)
    rows = [_read_row(line, names, mark, f"{path.name}, row {i}") for i, line in enumerate(lines, 1)]
    chosen = ", ".join(f"{field}: {name!r}" for field, name in names.items() if field != name and not columns)
    seedless = [] if "seed" in names else ["no column seed: rows of a side at one budget count as seeds, not as pairs"]
    if "seed" not in names:
        rows = [row | {"seed": f"{row['side']} {i}"} for i, row in enumerate(rows)]
    return rows, [f"columns read as {chosen}"] * bool(chosen) + seedless


def _choose_columns(header: list[str], named: Mapping[str, str], path: pathlib.Path) -> dict[str, str]:
    """Choose {field: column}: the named one, else a column of the field's own name, else one of the usual names."""
    for column in named.values():
        if column not in header:
            raise BadInput(f"--columns: {path.name} has no column {column!r}{nearest_hint(column, header)}")
    usual = {"side": ("variant", "optimizer", "arm"), "C": ("flops", "compute"), "loss": ("val_loss", "final_loss")}
    names = dict(named)
    for field in FIELDS:
        if field not in names:
            near = [column for column in header if column.lower() in (field.lower(), *usual.get(field, ()))]
            if near:
                names[field] = near[0]
            elif field in NEEDED:
                raise BadInput(
                    f"{path.name} has no column {field!r}: name it, --columns={field}=…; it has {', '.join(header)}"
                )
    return names


def _read_row(line: Mapping[str, Any], names: Mapping[str, str], mark: str, where: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field, column in names.items():
        cell = line.get(column)
        row[field] = (
            _number(cell, field, mark, f"{where}, {shorten_text(column)!r}") if field in NUMBERS else str(cell).strip()
        )
    return {key: value for key, value in row.items() if value is not None}


def _number(cell: Any, field: str, mark: str, where: str) -> float | None:
    """A cell as a number; a lost loss is infinite, another empty cell None. BadInput for anything else."""
    if cell is None or str(cell).strip().lower() in LOST:
        return math.inf if field == "loss" else None
    try:
        value = float(cell) if not isinstance(cell, str) else parse_number(cell, COUNTED.get(field, field), mark)
    except (TypeError, ValueError) as why:
        raise BadInput(f"{where}: {shorten_text(cell)!r} {why}") from None
    if abs(value) > LARGEST_VALUE and field != "loss":  # an infinite loss is a lost run
        raise BadInput(f"{where}: {shorten_text(cell)!r} is above {LARGEST_VALUE:g}: was it damaged?")
    return value
