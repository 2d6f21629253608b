"""scalelab study                  all studies: cost and what was found
scalelab study NAME [options]   run one; `scalelab study NAME --help` lists its options

A study trains or computes many things to answer one question, e.g. `isoflop` (the quickstart) or `mup_transfer`. This
is `python -m scalelab.experiments.NAME`, from any folder; `scalelab isoflop` is `scalelab study isoflop`. Studies of
one phenomenon of training come first, with their CPU seconds and their finding on the machine that their result names.
What verifies scalelab itself is in `checks/` of a checkout (`python -m checks.NAME`).

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
    options = Parser("study", __doc__).parse_args(argv)
    rows = api.studies()
    if options.json != "-":
        print(_listing(rows))
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
