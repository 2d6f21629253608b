"""Show training on a terminal, and stop it by signals: bars, lines and signals around the work of `api`."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from scalelab.api.door import Shown, Stop, never, silent
from scalelab.cli.parser import print_status
from scalelab.cli.progress import PoolProgress, RunProgress
from scalelab.signals import stop_on_signals

GIB = 2**30


class Terminal:
    """The `Display` of a command. If displays are nested, the outermost takes the signals."""

    def __init__(self, takes_signals: bool = True) -> None:
        self.stops: list[Stop] = [] if takes_signals else [never]

    @contextlib.contextmanager
    def __call__(self, title: str, steps: Mapping[str, int], folder: pathlib.Path | None = None) -> Iterator[Shown]:
        """Take the signals, and show a bar if there are steps."""
        with contextlib.ExitStack() as stack:
            if not self.stops:
                self.stops.append(stack.enter_context(stop_on_signals()))
                stack.callback(self.stops.clear)
            stop = self.stops[0]
            if not steps:
                yield Shown(silent, lambda names: None, stop)
            elif folder is None:
                bar = stack.enter_context(RunProgress(title, next(iter(steps.values()))))
                yield Shown(bar.update, lambda names: None, stop)
            else:
                board = stack.enter_context(PoolProgress(folder, steps))
                yield Shown(board.report, board.update, stop)


def print_report(facts: dict[str, Any]) -> None:
    """Print a report from before the work starts on standard error: a `note`, a `warning`, a step's `memory`."""
    if "note" in facts:
        print_status(facts["note"])
    if "warning" in facts:
        print_status(f"scalelab: {facts['warning']}")
    if "memory" in facts:
        _print_memory(facts["memory"])


def _print_memory(memory: Any) -> None:
    table = Table("a device's memory", "GiB")
    for name, size in memory.components.items():
        table.add_row(name, f"{size / GIB:,.2f}")
    table.add_row("total", f"{memory.total / GIB:,.2f}")
    table.add_row("capacity", f"{memory.capacity / GIB:,.2f}")
    Console(file=sys.stderr).print(table)
    for note in memory.notes:
        print(note, file=sys.stderr)
