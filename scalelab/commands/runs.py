"""scalelab runs DIR [DIR…] [--csv[=PATH]] [--parquet=PATH] [--columns=A,B,…]

One table of many runs; --csv and --parquet give every column of every run: config values by their full keys (optim.peak_lr),
and the last value of every metric that the step logs (grad_norm, or one of your own).
Of one that can't be read the row says damaged, and the exit code is 1.

At their last steps, what `scalelab eval` scored stands in columns SET_METRIC; see docs/tasks.md."""

import sys

from scalelab import records
from scalelab.cli.parser import Parser, emit_json, file_path, print_status, print_table
from scalelab.errors import BadInput, nearest_hint
from scalelab.report.tables import csv_text

RUN_COLUMNS = ("name", "status", "N", "D", "C", "train.steps", "optim.peak_lr", "train.seed", "val_loss", "bpb")


def main(argv: list[str]) -> int:
    """Print the runs of the given folders as a table, CSV or JSON."""
    parser = Parser("runs", __doc__)
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="a run, or a folder of runs, also as runs/*/ (a sweep)"
    )
    parser.add_argument("--csv", nargs="?", const="-", metavar="PATH", help="print one tidy table, or write it to PATH")
    parser.add_argument("--parquet", metavar="PATH", help="write the same table to PATH, with types")
    parser.add_argument(
        "--columns",
        metavar="A,B,…",
        help=f"columns to show (default: {','.join(RUN_COLUMNS)}; csv, parquet, json: all)",
    )
    arguments = parser.parse_args(argv)
    rows = [row for folder in arguments.folders for row in records.read_runs(folder)]
    known = list(dict.fromkeys(key for row in rows for key in row))
    columns = arguments.columns.split(",") if arguments.columns else None
    for column in columns or ():
        if column not in known:
            raise BadInput(f"unknown column {column!r}{nearest_hint(column, known)}")
    if arguments.parquet:
        from scalelab.laws.read.readers import write_parquet

        write_parquet(rows, columns or known, file_path("--parquet", arguments.parquet))
    if arguments.csv:
        _write(csv_text(rows, columns or known), arguments.csv)
    elif not arguments.parquet and arguments.json != "-":
        shown = columns or [column for column in RUN_COLUMNS if column in known]
        print_table(shown, [[_cell(row.get(column)) for column in shown] for row in rows])
    emit_json([{key: row.get(key) for key in columns or known} for row in rows], arguments.json)
    damaged = [row for row in rows if row["status"] == records.DAMAGED_STATUS]
    for row in damaged:
        print_status(f"{row['name']} is damaged: {row['damage']}")
    return int(bool(damaged))


def _write(text: str, destination: str) -> None:
    if destination == "-":
        sys.stdout.write(text)
    else:
        file_path("--csv", destination).write_text(text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
