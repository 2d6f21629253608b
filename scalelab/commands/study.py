"""scalelab study                  all studies: cost and what was found
scalelab study NAME [options]   run one; `scalelab study NAME --help` lists its options
scalelab study --stale          results that are older than a change of their code, and what they cost to run again

A study trains or computes many things to answer one question, e.g. `isoflop` (the quickstart) or `mup_transfer`. This
is `python -m scalelab.experiments.NAME`, from any folder; `scalelab isoflop` is `scalelab study isoflop`. Studies of
one phenomenon of training come first, with their CPU seconds and their finding on the machine that their result names.
What verifies scalelab itself is in `checks/` of a checkout (`python -m checks.NAME`).

A result is stale if the code of its own study changed since, or, where it trained, the golden step or jax's minor
version. Comments, layout, moves, and functions named `draw`, `page` or *_figure don't count. Code of the library that
it calls is named beside.

Exit code: that of the study; 2 bad input.

    scalelab study isoflop --quick --workdir=runs/quickstart
"""

import os
import sys
import textwrap
from typing import Any

from scalelab import api
from scalelab.cli.parser import Parser, align_columns, emit_json


def main(argv: list[str]) -> int:
    """List the studies, or become one; exit codes in the module's docstring."""
    if argv and not argv[0].startswith("-"):
        return run_study(argv[0], argv[1:])
    parser = Parser("study", __doc__)
    parser.add_argument("--stale", action="store_true", help="list results that a change of code left behind")
    options = parser.parse_args(argv)
    rows = api.studies(stale=options.stale)
    if options.json != "-":
        print(_list_stale(rows) if options.stale else _listing(rows))
    emit_json(rows, options.json)
    return 0


def run_study(name: str, argv: list[str]) -> int:
    """Replace this process by the study, so that signals and exit codes are its own. BadInput for an unknown name."""
    command = api.study_command(name, argv)
    sys.stdout.flush()
    os.execv(command[0], command)


def _listing(rows: list[dict[str, Any]]) -> str:
    """Format each study of a phenomenon in a few lines, then the others in one line."""
    lines = ["phenomena of training:", ""]
    for row in rows:
        if row["finding"]:
            lines.append(f"{row['name']}  ({row['cpu_s']:.0f} CPU s)")
            lines += textwrap.wrap(row["finding"], 96, initial_indent="    ", subsequent_indent="    ")
    others = [(row["name"], row["summary"]) for row in rows if not row["finding"]]
    return "\n".join([*lines, "", "other studies:", "", *align_columns(others)])


def _list_stale(rows: list[dict[str, Any]]) -> str:
    """Format each stale result in three lines, then their number and what is known of their cost."""
    lines = []
    for row in rows:
        cost = f"{row['cpu_s']:.0f} CPU s" if row["cpu_s"] else "its seconds were not recorded"
        commit, date = row["commit"] or "an unknown commit", row["date"] or "undated"
        lines.append(f"{row['name']}  (made by {commit}, {date}; {cost})")
        also = ["the library that it calls"] if row["library"] else []
        text = "changed since: " + "; ".join([*row["reasons"], *also])
        lines += textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")
        lines.append(f"    {row['command'] or 'the command is not known'}")
    known = [row["cpu_s"] for row in rows if row["cpu_s"]]
    total = f"{sum(known):,.0f} CPU s for the {len(known)} whose seconds are known" if known else "no seconds known"
    return "\n".join([*lines, "", f"{len(rows)} stale; to run again: {total}"])
