"""Tools that all checks share: where their results are, their command line, and the facts beside a result."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.cli.parser import Parser
from scalelab.experiments import shared

RESULTS = pathlib.Path(__file__).parent / "results"


def command_line(name: str, doc: str | None, renamed: Mapping[str, str] | None = None) -> Parser:
    """The parser of `python -m checks.NAME`."""
    parser = shared.command_line(name, doc, renamed)
    parser.prog = f"python -m checks.{name}"
    parser.usage = "%(prog)s [options]"  # a long name leaves no room for them in 80 columns
    return parser


def result_header(name: str, argv: Sequence[str]) -> dict[str, Any]:
    """The first entries of a result: command, date and machine."""
    return shared.result_header(name, argv) | {"command": " ".join([f"python -m checks.{name}", *argv])}
