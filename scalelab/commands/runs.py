"""scalelab runs DIR [DIR…] [--by=KEY,KEY] [--csv[=PATH]] [--parquet=PATH] [--show[=A,B,…]]

Print one table of many runs. --csv and --parquet give every column of every run: config values by their full keys
(optim.peak_lr), and the last value of every metric that the step logs (grad_norm, or one of your own). A run that can't
be read has the status damaged; one that says it is running while its process is gone is dead since that time
(dead_since in --json). Scores of `scalelab eval` at a run's last step are columns SET_METRIC; see
docs/tasks.md. A DIR may be in an object store: s3://bucket/path, gs://bucket/path.

--by=optim.peak_lr prints one line per value instead: runs that differ in train.seed only are replications, so it shows
their mean loss with its standard error, the gap to the best with what it proves, and where the learning rate is best.

Exit code: 0 done, 1 a run is damaged, 2 bad input.

    scalelab runs runs/lr_seeds --by=optim.peak_lr
"""

import sys
from collections.abc import Sequence
from typing import Any

from scalelab import api
from scalelab.cli.foreign import add_sources
from scalelab.cli.parser import Parser, emit_json, file_path, print_status, print_table
from scalelab.errors import BadInput, nearest_hint
from scalelab.index import alive
from scalelab.index.table import all_columns
from scalelab.laws.read.readers import write_parquet
from scalelab.record import records
from scalelab.record.listing import has_inactive
from scalelab.report.tables import csv_text

NAMES = "?"  # --show alone
GUARD_COLUMNS = ("spike_score", "rewinds")  # columns that are shown if any run has a value
RUN_COLUMNS = ("name", "status", "N", "N_active", "D", "C", "train.steps", "optim.peak_lr", "train.seed", "val_loss",
    "bpb")  # fmt: skip


def main(argv: list[str]) -> int:
    """Print the runs of the given folders as a table, CSV or JSON; exit codes in the module's docstring."""
    parser = Parser("runs", __doc__, stored={"folders": {}})
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="the folder of a run, or of runs, also as runs/*/ (a sweep)"
    )
    parser.add_argument("--csv", nargs="?", const="-", metavar="PATH", help="print one tidy table, or write it to PATH")
    parser.add_argument("--parquet", metavar="PATH", help="write the same table to PATH, with types")
    parser.add_argument(
        "--show",
        nargs="?",
        const=NAMES,
        metavar="A,B,…",
        help=f"columns to show (default: {','.join(RUN_COLUMNS)}; csv, parquet, json: all); without a value: "
        "print the names of all columns",
    )
    parser.add_argument(
        "--by", metavar="KEY,KEY", help="one line per setting of these config keys: mean loss over seeds, and the best"
    )
    add_sources(parser, ("folders",))
    options = parser.parse_args(argv)
    if options.by is not None:
        return _print_by(options)
    rows = api.runs(options.folders)
    known = all_columns(rows)
    if options.show == NAMES:
        return _print_names(rows, known, options.json)
    columns = options.show.split(",") if options.show else None
    for column in columns or ():
        if column not in known:
            raise BadInput(f"unknown column {column!r}{nearest_hint(column, known)}")
    if options.parquet:
        _write_parquet(rows, columns or known, options.parquet)
    if options.csv:
        _write(csv_text(rows, columns or known), options.csv)
    elif not options.parquet and options.json != "-":
        marks = [column for column in GUARD_COLUMNS if any(row.get(column) for row in rows)]
        usual = RUN_COLUMNS if has_inactive(rows) else tuple(name for name in RUN_COLUMNS if name != "N_active")
        shown = columns or [column for column in (*usual, *marks) if column in known]
        texts = [row | {"status": alive.status_text(row)} | _bpb_text(row) for row in rows]
        print_table(shown, [[_cell(row.get(column)) for column in shown] for row in texts])
    if options.json:
        keys = columns or [*known, *({alive.DEAD_KEY} - {*known})]
        emit_json([{key: row.get(key) for key in keys} for row in rows], options.json)
    damaged = [row for row in rows if row["status"] == records.DAMAGED_STATUS]
    for row in damaged:
        print_status(f"{row['name']} is damaged: {row['damage']}")
    return int(bool(damaged))


def _print_names(rows: Sequence[dict[str, Any]], known: Sequence[str], destination: str | None) -> int:
    """Print the name of every column with its first value."""
    examples = {name: next((row[name] for row in rows if row.get(name) is not None), None) for name in known}
    if destination != "-":
        print_table(("column", "e.g."), [[name, _cell(value)] for name, value in examples.items()])
    emit_json({"columns": list(known)}, destination)
    return 0


def _print_by(options: Any) -> int:
    """Print or write one row per setting; exit codes in the module's docstring."""
    from scalelab.cli.answers import print_answer
    from scalelab.sweep.answer import wording

    if options.show:
        raise BadInput("--by has its own columns: leave --show out, or --by")
    keys = list(dict.fromkeys(filter(None, options.by.split(","))))
    if not keys:
        raise BadInput("--by names no key, e.g. --by=optim.peak_lr")
    answer = api.answer(options.folders, keys)
    table = wording.answer_records(answer)
    columns = list(dict.fromkeys(key for row in table for key in row))
    if options.parquet:
        _write_parquet(table, columns, options.parquet)
    if options.csv:
        _write(csv_text(table, columns), options.csv)
    elif not options.parquet and options.json != "-":
        print_answer(answer)
    emit_json(wording.answer_json(answer), options.json)
    return int(answer.damaged > 0)


def _write_parquet(rows: Sequence[dict[str, Any]], columns: Sequence[str], destination: str) -> None:
    write_parquet(rows, columns, file_path("--parquet", destination))


def _write(text: str, destination: str) -> None:
    if destination == "-":
        sys.stdout.write(text)
    else:
        file_path("--csv", destination).write_text(text)


def _bpb_text(row: dict[str, Any]) -> dict[str, str]:
    """Bits per byte as a lower bound, where the tokenizer lost text."""
    is_bound = row.get("bpb_bound") == "lower" and row.get("bpb") is not None
    return {"bpb": f">= {_cell(row['bpb'])}"} if is_bound else {}


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
