"""Tools that all checks share: where their results are, their command line, and the facts beside a result."""

import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scalelab.cli.parser import Parser
from scalelab.errors import BadInput
from scalelab.experiments import shared

RESULTS = pathlib.Path(__file__).parent / "results"


def command_line(name: str, doc: str | None, renamed: Mapping[str, str] | None = None) -> Parser:
    """The parser of `python -m checks.NAME`."""
    parser = shared.command_line(name, doc, renamed)
    parser.prog = f"python -m checks.{name}"
    parser.usage = "%(prog)s [options]"  # a long name leaves no room for them in 80 columns
    return parser


def result_header(name: str, argv: Sequence[str]) -> dict[str, Any]:
    """The first entries of a result: command, date, machine, and the fingerprint of what makes it."""
    return shared.result_header(name, argv, "checks")


def add_rows_options(parser: Parser, known: Iterable[str]) -> None:
    """Let a check measure some of its rows: --rows, --quick."""
    parser.add_argument("--rows", default="; ".join(known), metavar="A; B", help=f"rows: {'; '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="the first row alone")


def measure_rows(
    options: Any, known: Iterable[str], measure: Callable[[str], dict[str, Any]], describe: Callable[[Any], str]
) -> list[dict[str, Any]]:
    """Measure the rows that were asked for, and say each; one that is refused is left out, with its reason."""
    names, rows = [name.strip() for name in options.rows.split(";")][: 1 if options.quick else None], []
    for name in names:
        if name not in known:
            raise BadInput(f"--rows={name}: no such row; the rows are {'; '.join(known)}")
        try:
            rows.append(measure(name))
        except BadInput as reason:
            print(f"left out: {name}: {reason}", file=sys.stderr)
            continue
        print(f"{name}: {describe(rows[-1])}", file=sys.stderr, flush=True)
    return rows
