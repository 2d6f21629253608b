"""Fuzz `scalelab fit FILE` and `scalelab ablate FILE`: damaged tables get an answer or one line.

    python -m checks.hostile.tables [--tables=200] [--seed=0] [--keep=DIR] [--json[=PATH]]

Each table is a good one (runs of Chinchilla's law, or two sides of an ablation) to which one to four things happen that
happen to tables: cells lost, words for numbers, other marks, units, columns twice or swapped, rows cut, bytes broken.
Exit code 1 if any ends otherwise than with 0, or with 2 and one line. A few minutes on one core.

    python -m checks.hostile.tables --tables=20
"""

import contextlib
import csv
import io
import math
import pathlib
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from checks.shared import command_line, result_header
from scalelab.__main__ import guarded
from scalelab.__main__ import main as run_command
from scalelab.cli.parser import emit_json, folder_path

Cells = list[list[str]]
WORDS = (
    "", " ", "nan", "NaN", "inf", "-inf", "-", "none", "None", "NULL", "#REF!", "#DIV/0!", "diverged", "1e999", "-3.2",
    "0", "1e-320", "1,234", "1.234,5", "12M", "5 %", "3.1 nats", "True", "[1, 2]", '{"a": 1}', "\ud83d", "é" * 300, 
    "9" * 400, "0x10", "1_000", "٣٫١", "=A1+B2", "2024-05-01",
)  # fmt: skip
NAMES = (
    "",
    "loss",
    "N",
    "C",
    "val_loss",
    "State",
    "seed",
    "Name",
    "Loss (nats)",
    "Tokens (B)",
    "step",
    "D/N",
    "x" * 300,
    "🙂",
)
ENDS = ("fit", "ablate")


def good_table(kind: str, random: np.random.Generator) -> Cells:
    """A table that the command answers."""
    rows: list[tuple[Any, ...]] = []
    if kind == "fit":
        header = ["N", "D", "loss"]
        for N in (2e7, 6e7, 2e8, 6e8)[: random.integers(1, 5)]:
            for ratio in (5, 20, 60, 150)[: random.integers(1, 5)]:
                loss = 1.69 + 406.4 * N**-0.34 + 410.7 * (N * ratio) ** -0.28
                rows.append((N, N * ratio, loss * math.exp(0.003 * random.standard_normal())))
    else:
        header = ["side", "C", "seed", "loss"]
        for C in (1e18, 4e18, 2e19, 6e19)[: random.integers(1, 5)]:
            for seed in range(random.integers(1, 4)):
                for side in ("base", "new", "other")[: random.integers(1, 4)]:
                    loss = 1.66 + 1.2 * (C / 6.3e18) ** -0.132
                    rows.append((side, C, seed, loss * math.exp(0.002 * random.standard_normal())))
    return [header, *([cell if isinstance(cell, str) else f"{cell:.6g}" for cell in row] for row in rows)]


def _any_cell(cells: Cells, random: np.random.Generator) -> tuple[int, int]:
    row = int(random.integers(1, len(cells))) if len(cells) > 1 else 0
    return row, int(random.integers(max(1, len(cells[row])))) if cells[row] else 0


def _word(cells: Cells, random: np.random.Generator) -> None:
    row, column = _any_cell(cells, random)
    if cells[row]:
        cells[row][column] = str(random.choice(WORDS))


def _word_everywhere(cells: Cells, random: np.random.Generator) -> None:
    column, word = random.integers(len(cells[0])), str(random.choice(WORDS))
    for row in cells[1:]:
        if column < len(row):
            row[column] = word


def _rename(cells: Cells, random: np.random.Generator) -> None:
    cells[0][random.integers(len(cells[0]))] = str(random.choice(NAMES))


def _new_column(cells: Cells, random: np.random.Generator) -> None:
    words = random.choice(WORDS, 3)
    for i, row in enumerate(cells):
        row.append(str(random.choice(NAMES)) if i == 0 else str(random.choice(words)))


def _copy_column(cells: Cells, random: np.random.Generator) -> None:
    column = random.integers(len(cells[0]))
    for row in cells:
        row.append(row[column] if column < len(row) else "")


def _cut_row(cells: Cells, random: np.random.Generator) -> None:
    row, column = _any_cell(cells, random)
    del cells[row][column:]


def _copy_rows(cells: Cells, random: np.random.Generator) -> None:
    cells += [list(cells[_any_cell(cells, random)[0]]) for _ in range(random.integers(1, 5))]


def _scale_column(cells: Cells, random: np.random.Generator) -> None:
    column, factor = random.integers(len(cells[0])), float(random.choice([-1, 0, 1e-9, 1e9, 1e300, 1e-300]))
    for row in cells[1:]:
        with contextlib.suppress(ValueError, IndexError):
            row[column] = f"{float(row[column]) * factor:g}"


def _equal_column(cells: Cells, random: np.random.Generator) -> None:
    column = random.integers(len(cells[0]))
    for row in cells[1:]:
        if column < len(row):
            row[column] = cells[1][min(column, len(cells[1]) - 1)] if cells[1] else ""


def _few_rows(cells: Cells, random: np.random.Generator) -> None:
    del cells[int(random.integers(1, 4)) :]


DAMAGES: tuple[Callable[[Cells, np.random.Generator], None], ...] = (
    _word, _word, _word_everywhere, _rename, _new_column, _copy_column, _cut_row, _copy_rows, _scale_column,
    _equal_column, _few_rows,
)  # fmt: skip


def write_damaged(kind: str, random: np.random.Generator, path: pathlib.Path) -> None:
    """Write a table of this kind to which one to four damages happened, at times in another encoding or cut short."""
    cells = good_table(kind, random)
    for damage in random.choice(len(DAMAGES), random.integers(1, 5)):
        if cells and cells[0]:
            DAMAGES[damage](cells, random)
    mark = str(random.choice([",", ",", ",", ";", "\t", "|"]))
    text = io.StringIO()
    csv.writer(text, delimiter=mark, lineterminator="\n").writerows(cells)
    encoding = str(random.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"]))
    content = text.getvalue().encode(encoding, "surrogatepass")
    if random.random() < 0.1:
        content = content[: int(random.integers(1, len(content) + 1))]
    path.write_bytes(content)


def judge_run(arguments: Sequence[str]) -> str:
    """What is wrong with how a command ended: "" if it ended with 0, or with 2 and one line."""
    out, error = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        try:
            code = run_command(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as mistake:
            frame = traceback.extract_tb(mistake.__traceback__)[-1]
            return f"{type(mistake).__name__}: {mistake} at {pathlib.Path(frame.filename).name}:{frame.lineno}"
    lines = error.getvalue().strip().splitlines()
    if said:
        return f"a warning of Python: {said[0].message} at {pathlib.Path(said[0].filename).name}:{said[0].lineno}"
    if code not in (0, 2):
        return f"exit code {code}: {lines[-1:]}"
    return f"{len(lines)} lines of refusal" if code == 2 and len(lines) != 1 else ""


def fuzz_tables(count: int, seed: int, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Run both commands on `count` damaged tables; the faults, each with its table, which stays in the folder."""
    faults = []
    for i in range(count):
        kind = ENDS[i % len(ENDS)]
        path = folder / f"{kind}_{seed}_{i}.csv"
        write_damaged(kind, np.random.default_rng([seed, i]), path)
        options = ["--bootstrap=0"] if kind == "fit" else ["--baseline=base"]
        if fault := judge_run([kind, str(path), *options]):
            faults.append({"table": path.name, "command": kind, "fault": fault})
            print(f"{path.name}: {fault}", file=sys.stderr, flush=True)
        else:
            path.unlink()
    return faults


def main(argv: Sequence[str]) -> int:
    """Run it; exit code 0, 1 if a table shows a fault, or 2 for bad input."""
    return guarded("tables", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("hostile.tables", __doc__)
    parser.add_argument("--tables", type=int, default=200, help="damaged tables, half of them for each command")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other tables")
    parser.add_argument("--keep", type=folder_path, metavar="DIR", help="keep the tables that show a fault")
    options = parser.parse_args(list(argv))
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        faults = fuzz_tables(options.tables, options.seed, folder)
    result = result_header("hostile.tables", argv) | {"tables": options.tables, "faults": faults}
    if options.json != "-":
        print(f"{len(faults)} of {options.tables} damaged tables end otherwise than with an answer or one line")
    emit_json(result, options.json)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
