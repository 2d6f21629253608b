"""Read a table of others' runs for `scalelab ablate TABLE`: fields, and the columns by which runs are paired."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.read.blocks import describe_block, find_blocks, follows, plain_value
from scalelab.laws.read.columns import fitting_columns, parse_columns
from scalelab.laws.read.readers import read_raw_rows, shorten_text
from scalelab.laws.use.multiplier.cells import distinct_budgets, nearest_budget
from scalelab.numbers.written import find_decimal_mark, looks_numeric, parse_number

LARGEST_VALUE = 1e60  # products of several such numbers, and of their inverses, are still finite floats
FIELDS = ("side", "C", "loss", "seed", "tokens", "tokens_per_s", "N")
NEEDED = ("side", "C", "loss")
NUMBERS = ("C", "loss", "tokens", "tokens_per_s", "N")
COUNTED = {"C": "C", "tokens": "D", "N": "N"}  # fields in which 50M is a number, as numbers/written names them
LOST = ("", "nan", "inf", "diverged", "none", "-")
NO_BLOCK = "none"
TUNED = ("lr", "batch", "batch_tokens")
MEASURED_WITH = ("tokenizer", "vocab")  # in the name of a column: losses of other values of it do not compare


def read_sides(
    path: pathlib.Path, columns: str | None, baseline: str, block: str | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Read (rows with the fields of `multiplier`, lines on what was chosen). BadInput for a damaged table."""
    return make_sides(read_raw_rows(path), path.name, parse_columns(columns, FIELDS), baseline, block)


def make_sides(
    lines: Sequence[Mapping[str, Any]], table: str, columns: Mapping[str, str], baseline: str, block: str | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Make (rows with the fields of `multiplier`, lines on what was chosen) of a table's lines. BadInput as above."""
    header = list(dict.fromkeys(key for line in lines for key in line))
    names = _choose_columns(lines, header, columns, table)
    cells = [(COUNTED.get(f, f), str(line.get(names[f]) or "")) for line in lines for f in NUMBERS if f in names]
    mark = find_decimal_mark((field, cell) for field, cell in cells if cell.strip().lower() not in LOST)
    rows = [_read_row(line, names, mark, f"{table}, row {i}") for i, line in enumerate(lines, 1)]
    chosen = ", ".join(f"{field}: {name!r}" for field, name in names.items() if field != name and not columns)
    seedless = [] if "seed" in names else ["no column seed: rows of a side at one budget count as seeds, not as pairs"]
    blocks, blocked = _choose_blocks(lines, rows, names, baseline, block, table)
    if blocks:
        seedless = []
    for i, (row, line) in enumerate(zip(rows, lines, strict=True)):
        row |= {"block": describe_block(blocks, [line.get(column) for column in blocks])} if blocks else {}
        row |= {} if "seed" in names else {"seed": f"{row['side']} {i}"}
        row["measured_with"] = {name: plain_value(line[name]) for name in header if line.get(name) not in (None, "")
                                and any(word in name.lower() for word in MEASURED_WITH)}  # fmt: skip
    return rows, [f"columns read as {chosen}"] * bool(chosen) + seedless + blocked


def _choose_blocks(
    lines: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    baseline: str,
    named: str | None,
    table: str,
) -> tuple[list[str], list[str]]:
    """(the columns by which runs of a budget are paired, a line on them): the named ones, else those that are found."""
    header = list(dict.fromkeys(key for line in lines for key in line))
    if named == NO_BLOCK and NO_BLOCK not in header:
        return [], []
    if named:
        columns = [column.strip() for column in named.split(",")]
        for column in columns:
            _check_block(column, lines, header, names, table)
        return columns, [f"runs of a budget are paired by {', '.join(columns)}, as --block says"]
    budgets = distinct_budgets([row["C"] for row in rows if row["side"] == baseline and row.get("C")] or [1.0])
    places = [nearest_budget(row["C"], budgets) if row.get("C") else None for row in rows]
    texts = _shared_columns(lines, rows, header, names)
    columns = find_blocks([row["side"] for row in rows], places, texts, baseline)
    notes = _warn_of_tuned(lines, rows, places, columns, header)
    if not columns:
        return [], notes
    vary = f"{' and '.join(columns)} {'varies' if len(columns) == 1 else 'vary'} within a budget on both sides"
    found = f"{vary}: runs are paired by it; --block=COLUMN names another, --block=none counts them as seeds"
    return columns, [found, *notes]


def _shared_columns(
    lines: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], header: list[str], names: Mapping[str, str]
) -> dict[str, list[str]]:
    """{column: its values} of those that may tell blocks apart: full ones that say more than the seed does.

    N and tokens come last: where a width varies too, it is the width that names a block.
    """
    used = {names[field] for field in ("side", "C", "loss", "seed", "tokens_per_s") if field in names}
    counts = [names[field] for field in ("N", "tokens") if field in names]
    order = [*(name for name in header if name not in counts), *counts]
    seeds = [str(row.get("seed")) for row in rows]
    repeated = len(set(seeds)) <= len(seeds) / 2  # else each run has its own, of which everything follows
    texts = {column: [plain_value(line.get(column, "")) for line in lines] for column in order if column not in used}
    return {
        column: values
        for column, values in texts.items()
        if "" not in values and not (repeated and follows(seeds, values))
    }


def _warn_of_tuned(
    lines: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    places: Sequence[int | None],
    blocks: Sequence[str],
    header: list[str],
) -> list[str]:
    """A line for a learning rate or batch that varies among the runs of a side, a budget and a block."""
    notes = []
    for column in (name for field in TUNED for name in fitting_columns(field, header, header) if name not in blocks):
        cells: dict[tuple[Any, ...], set[str]] = {}
        for line, row, place in zip(lines, rows, places, strict=True):
            cell = (row["side"], place, *(line.get(block) for block in blocks))
            cells.setdefault(cell, set()).add(plain_value(line.get(column, "")))
        if any(len(values) > 1 for values in cells.values()):
            notes.append(
                f"{column} varies among runs that count as seeds: where it was tuned, keep each side's best run only"
            )
    return notes


def _check_block(
    column: str, lines: Sequence[Mapping[str, Any]], header: list[str], names: Mapping[str, str], table: str
) -> None:
    """BadInput for a column that can't tell blocks apart."""
    if column not in header:
        raise BadInput(f"--block: {table} has no column {column!r}{nearest_hint(column, header)}")
    for field in ("side", "loss", "seed"):
        if names.get(field) == column:
            raise BadInput(
                f"--block={column}: that column holds {field}; name one that both sides share, such as a width"
            )
    for i, line in enumerate(lines, 1):
        if line.get(column) in (None, ""):
            raise BadInput(
                f"{table}, row {i}: {shorten_text(column)!r} is empty, and --block={column} pairs runs by it"
            )


def _choose_columns(
    lines: Sequence[Mapping[str, Any]], header: list[str], named: Mapping[str, str], table: str
) -> dict[str, str]:
    """Choose {field: column}: the named one, else a column of the field's own name, else one of the usual names."""
    for column in named.values():
        if column not in header:
            raise BadInput(f"--columns: {table} has no column {column!r}{nearest_hint(column, header)}")
    usual = {"side": ("variant", "optimizer", "arm"), "C": ("flops", "compute"), "loss": ("val_loss", "final_loss"),
             "seed": ("train.seed", "random_seed", "rng_seed", "replicate", "repeat", "rep")}  # fmt: skip
    numeric = [name for name in header if all(looks_numeric(line.get(name) or "1") for line in lines)]
    names = dict(named)
    for field in FIELDS:
        if field not in names:
            near = (
                fitting_columns("N", header, numeric)
                if field == "N"
                else [column for column in header if column.lower() in (field.lower(), *usual.get(field, ()))]
            )
            if near:
                names[field] = near[0]
            elif field in NEEDED:
                raise BadInput(
                    f"{table} has no column {field!r}: name it, --columns={field}=…; it has {', '.join(header)}"
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
