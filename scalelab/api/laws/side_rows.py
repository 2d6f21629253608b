"""Read a table of others' runs for `scalelab ablate TABLE`: fields, and the columns by which runs are paired."""

import collections
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.read.blocks import describe_block, find_blocks, follows, plain_value
from scalelab.laws.read.columns import (
    fitting_columns,
    parse_columns,
    plain_name,
    refuse_two,
    unit_factor,
    without_prefix,
)
from scalelab.laws.read.readers import read_raw_rows, shorten_text
from scalelab.laws.read.trackers import read_statuses
from scalelab.laws.use.multiplier.cells import distinct_budgets, nearest_budget
from scalelab.numbers.written import SUFFIXES, find_decimal_mark, looks_numeric, parse_number

LARGEST_VALUE = 1e60  # products of several such numbers, and of their inverses, are still finite floats
FIELDS = ("side", "C", "loss", "seed", "tokens", "tokens_per_s", "N")
NEEDED = ("side", "C", "loss")
NUMBERS = ("C", "loss", "tokens", "tokens_per_s", "N")
COUNTED = {"C": "C", "tokens": "D", "N": "N"}  # fields in which 50M is a number, as numbers/written names them
USUAL = {
    "side": ("variant", "optimizer", "arm", "method", "treatment", "condition", "optim.name", "optimizer name"),
    "seed": ("train.seed", "random_seed", "rng_seed", "replicate", "repeat", "rep"),
    "tokens_per_s": ("tokens_per_sec", "tokens_per_second", "throughput"),
}  # names of columns without case, marks and a tracker's prefix, the likeliest first
BITS = ("bpb", "bitsperbyte", "bpc", "bpt", "bitspertoken", "bits")
LOST = ("", "nan", "inf", "diverged", "none", "-")
LOST_RUNS = ("diverged", "divergent", "nan", "inf", "unstable", "exploded")  # words of a tracker: the loss is lost
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
    names = _choose_columns(lines, header, columns, table, baseline)
    places, lines, left_out = _finished_rows(lines, header, names["loss"], table)
    cells = [(COUNTED.get(f, f), str(line.get(names[f]) or "")) for line in lines for f in NUMBERS if f in names]
    mark = find_decimal_mark((field, cell) for field, cell in cells if cell.strip().lower() not in LOST)
    units = {field: unit_factor(names[field], COUNTED[field]) for field in COUNTED if field in names}
    rows = [_read_row(line, names, mark, units, f"{table}, row {i}") for i, line in zip(places, lines, strict=True)]
    left_out += _derive_flops(rows, names)
    chosen = ", ".join(f"{field}: {name!r}" for field, name in names.items() if field != name and not columns)
    seedless = [] if "seed" in names else ["no column seed: rows of a side at one budget count as seeds, not as pairs"]
    blocks, blocked = _choose_blocks(lines, rows, names, baseline, block, table)
    if blocks:
        seedless = []
    for i, (row, line) in enumerate(zip(rows, lines, strict=True)):
        row |= {"block": describe_block(blocks, [line.get(column) for column in blocks])} if blocks else {}
        row |= {} if "seed" in names else {"seed": f"{row['side']} {i}"}
        row["measured_with"] = {
            name: plain_value(line[name])
            for name in header
            if line.get(name) not in (None, "") and any(word in name.lower() for word in MEASURED_WITH)
        }
    losses = [line.get(names["loss"]) for line in lines]
    blank = sum(loss is None or not str(loss).strip() for loss in losses)
    lost = f"{blank} without a loss count as diverged: where one didn't finish, a column status says so, or take it out"
    notes = [f"columns read as {chosen}"] * bool(chosen) + left_out + [f"rows: {lost}"] * bool(blank)
    return rows, notes + seedless + blocked


def _derive_flops(rows: Sequence[dict[str, Any]], names: Mapping[str, str]) -> list[str]:
    """Fill in C = 6 N D where the table has no C, and say so."""
    if "C" in names:
        return []
    for row in rows:
        if row.get("N") and row.get("tokens"):
            row["C"] = FLOPS_PER_PARAM_TOKEN * row["N"] * row["tokens"]
    return ["C is 6 N tokens, as the table has none"]


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
    flops = [max(0.0, row.get("C") or 0.0) for row in rows]  # others than positive ones are refused by `multiplier`
    budgets = distinct_budgets(
        [C for C, row in zip(flops, rows, strict=True) if row["side"] == baseline and C] or [1.0]
    )
    places = [nearest_budget(C, budgets) if C else None for C in flops]
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
    lines: Sequence[Mapping[str, Any]], header: list[str], named: Mapping[str, str], table: str, baseline: str
) -> dict[str, str]:
    """Choose {field: column}: the named one, else one that a usual name of the field tells, as in `scalelab fit`.

    Sides are also told by the one column that has the baseline's name in it.
    """
    for column in named.values():
        if column not in header:
            raise BadInput(f"--columns: {table} has no column {column!r}{nearest_hint(column, header)}")
    numeric = [
        name for name in header if all(looks_numeric(line.get(name) or "1") or _is_lost(line[name]) for line in lines)
    ]
    names = dict(named)
    for field in (field for field in FIELDS if field not in names):
        near = _near_columns(field, lines, header, numeric, baseline)
        if field in NUMBERS and len(near) > 1 and (field in NEEDED or field == "tokens"):
            raise refuse_two(field, near, table, "--columns")
        if near:
            names[field] = near[0]
    for field in (field for field in NEEDED if field not in names):
        if field == "C" and {"N", "tokens"} <= set(names):
            continue
        third = " (nor N and tokens, which give it)" if field == "C" else ""
        losses = [name for name in numeric if "loss" in name.lower()] if field == "side" else []
        wide = f" (a loss a side, as {' and '.join(losses[:2])}? Write a row for each run)" if len(losses) > 1 else ""
        raise BadInput(
            f"{table} has no column {field!r}{third}{wide}: name it, --columns={field}=…; it has "
            f"{', '.join(map(shorten_text, header))}"
        )
    return names


def _near_columns(
    field: str, lines: Sequence[Mapping[str, Any]], header: list[str], numeric: list[str], baseline: str
) -> list[str]:
    """The columns that may hold a field by their names; the first one alone, of the usual names of sides and seeds."""
    if own := [name for name in header if name.lower() == field.lower()]:
        return own[:1]
    if field in ("side", "seed", "tokens_per_s"):
        plain = {name: plain_name(without_prefix(name)) for name in header}
        near = [name for usual in (field, *USUAL[field]) for name in header if plain[name] == plain_name(usual)]
        holders = [
            name for name in header if field == "side" and any(str(line.get(name)) == baseline for line in lines)
        ]
        return near[:1] or (holders if len(holders) == 1 else [])
    near = fitting_columns(COUNTED.get(field, field), header, numeric)
    if field == "loss" and not near:  # m is a ratio of compute, whatever the unit of the loss
        near = [name for name in numeric if plain_name(without_prefix(name)).removeprefix("val") in BITS]
    return near[:1] if field == "N" else near


def _finished_rows(
    lines: Sequence[Mapping[str, Any]], header: list[str], loss: str, table: str
) -> tuple[list[int], list[Mapping[str, Any]], list[str]]:
    """(places, rows) of finished and of diverged runs, the latter without a loss, and a line on the others.

    By a tracker's words; BadInput for one that is not known.
    """
    advice = "write finished, crashed or diverged there"
    statuses = read_statuses(lines, header, table, advice=advice)
    kept, others = dict[int, Mapping[str, Any]](), collections.Counter[str]()
    for place, (line, status) in enumerate(zip(lines, statuses, strict=True), 1):
        if status and plain_name(status) in LOST_RUNS:
            kept[place] = {**line, loss: "diverged"}
        elif status not in (None, "done"):
            others[status] += 1
        else:
            kept[place] = line
    places, rows = list(kept), list(kept.values())
    if not others:
        return places, rows, []
    what = ", ".join(f"{count} {word}" for word, count in others.items())
    if not kept:
        raise BadInput(f"{table}: no run is finished: {what}")
    note = f"runs that did not finish are left out: {what} (one that diverged says diverged, or has no loss)"
    return places, rows, [note]


def _read_row(
    line: Mapping[str, Any], names: Mapping[str, str], mark: str, units: Mapping[str, float], where: str
) -> dict[str, Any]:
    """The fields of a row; `units`: what the header of a count says, unless the cell says its own (`12M`)."""
    row: dict[str, Any] = {}
    for field, column in names.items():
        cell = line.get(column)
        if field not in NUMBERS:
            row[field] = str(cell).strip()
            continue
        row[field] = _number(cell, field, mark, f"{where}, {shorten_text(column)!r}")
        if row[field] is not None and str(cell).strip()[-1:].casefold() not in SUFFIXES:
            row[field] *= units.get(field, 1.0)
    return {key: value for key, value in row.items() if value is not None}


def _is_lost(cell: Any) -> bool:
    return cell is None or str(cell).strip().lower() in LOST


def _number(cell: Any, field: str, mark: str, where: str) -> float | None:
    """A cell as a number; a lost loss is infinite, another empty cell None. BadInput for anything else."""
    if _is_lost(cell):
        return math.inf if field == "loss" else None
    try:
        value = float(cell) if not isinstance(cell, str) else parse_number(cell, COUNTED.get(field, field), mark)
    except (TypeError, ValueError) as why:
        raise BadInput(f"{where}: {shorten_text(cell)!r} {why}") from None
    if abs(value) > LARGEST_VALUE and field != "loss":  # an infinite loss is a lost run
        raise BadInput(f"{where}: {shorten_text(cell)!r} is above {LARGEST_VALUE:g}: was it damaged?")
    return value
