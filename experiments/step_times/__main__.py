"""python -m experiments.step_times [--json[=PATH]]

Published times of a training step against what the planner predicts for the same config, mesh and machine, with the habits of
the system that ran it (scalelab/plan/habits.py). The expected efficiency of products was set on the A100 rows of Narayanan and
Korthikanti; all others are held out. Writes experiments/results/step_times.*. Ten seconds.
"""

import datetime
import statistics
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.shared import RESULTS, command_line, keep, markdown
from experiments.step_times.rows import CALIBRATED, HELD_OUT, MISSED
from scalelab.__main__ import guarded
from scalelab.commands.shared import emit
from scalelab.plan.time import step_time
from scalelab.train.changes import versions

COLUMNS = ("run", "devices", "published s", "predicted s", "range s", "off by", "MFU", "rows")


def main(argv: list[str]) -> int:
    """Exit code 0 where every row that isn't known to be missed lies in its range, else 1."""
    return guarded("step_times", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("step_times", __doc__)
    options = parser.parse_args(argv)
    groups = {"calibrated": CALIBRATED, "held out": HELD_OUT, "missed": MISSED}
    rows = [row(name, kind, make()) for kind, group in groups.items() for name, make in group.items()]
    facts = {"command": "python -m experiments.step_times", "date": str(datetime.date.today()), "versions": versions()}
    result = facts | {"rows": rows, "error": {kind: errors(rows, kind) for kind in groups}}
    if options.json != "-":
        show(rows)
    write(result)
    emit(result, options.json)
    return 0 if all(r["in_range"] or r["kind"] == "missed" for r in rows) else 1


def row(name: str, kind: str, measured: Any) -> dict[str, Any]:
    """One published time beside the planner's."""
    found = step_time(measured.static, measured.machine, habits=measured.habits)
    return {
        "name": name, "kind": kind, "chip": measured.machine.chip.name, "devices": measured.static.layout.devices,
        "published_s": measured.seconds, "predicted_s": found.total_s, "low_s": found.low_s, "high_s": found.high_s,
        "error": found.total_s / measured.seconds - 1, "in_range": found.low_s <= measured.seconds <= found.high_s,
        "mfu": found.mfu,
    }  # fmt: skip


def errors(rows: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Of the expected times: median, mean of the absolute, largest."""
    found = [r["error"] for r in rows if r["kind"] == kind]
    sizes = [abs(e) for e in found]
    return {"median": statistics.median(found), "mean_absolute": statistics.mean(sizes), "largest": max(sizes)}


def cells(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table for people."""
    return [
        (
            r["name"], f"{r['devices']:,} {r['chip']}", f"{r['published_s']:.2f}", f"{r['predicted_s']:.2f}",
            f"{r['low_s']:.2f} to {r['high_s']:.2f}", f"{r['error']:+.0%}", f"{r['mfu']:.1%}", r["kind"],
        )
        for r in rows
    ]  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    """The table, to a terminal."""
    table = Table(*COLUMNS)
    for line in cells(rows):
        table.add_row(*line)
    Console(width=150).print(table)


def write(result: dict[str, Any]) -> None:
    """Write results/step_times.json and .md."""
    said = ", ".join(
        f"{kind}: median {e['median']:+.1%}, mean of absolute {e['mean_absolute']:.1%}, largest {e['largest']:.0%}"
        for kind, e in result["error"].items()
    )
    lines = [f"`{result['command']}`, {result['date']}. Expected over published, less one. {said}.", ""]
    keep(RESULTS, "step_times", result, "\n".join([*lines, *markdown(COLUMNS, cells(result["rows"]))]) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
