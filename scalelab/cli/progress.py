"""Progress of long work, on standard error: a rich bar on a terminal, a plain line every 10 s elsewhere."""

import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from scalelab.sweep.status import read_trial_row

PLAIN_EVERY_S = 10.0


class RunProgress:
    """Progress of one run (or of run i of n): step, loss, tokens/s, time left."""

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps = title, steps
        self.facts: dict[str, Any] = {}
        self.console = Console(stderr=True)
        self.rich = self.console.is_terminal
        self.last_print = time.monotonic()

    def __enter__(self) -> "RunProgress":
        if self.rich:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
            )
            self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self.task = self.bar.add_task(self.title, total=self.steps, facts="compiling")
            self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.rich:
            self.bar.stop()

    def update(self, facts: dict[str, Any]) -> None:
        """Show one report of the loop: step, train_loss, val_loss, tokens_per_s; or a `warning`; or a `note`."""
        if "note" in facts:
            print(facts["note"], file=sys.stderr)
            return
        if "warning" in facts:
            print(f"scalelab: {facts['warning']}", file=sys.stderr)
            return
        self.facts |= facts
        text = self._text()
        if self.rich:
            self.bar.update(self.task, completed=self.facts["step"], facts=text)
        elif time.monotonic() - self.last_print > PLAIN_EVERY_S:
            self.last_print = time.monotonic()
            print(f"{self.title}: step {self.facts['step']}/{self.steps}  {text}", file=sys.stderr, flush=True)

    def _text(self) -> str:
        parts = []
        if "train_loss" in self.facts:
            parts.append(f"loss {self.facts['train_loss']:.3f}")
        if self.facts.get("val_loss") is not None:
            parts.append(f"val {self.facts['val_loss']:.3f}")
        if "tokens_per_s" in self.facts:
            parts.append(f"{self.facts['tokens_per_s']:,.0f} tokens/s")
        return "  ".join(parts)


class PoolProgress:
    """Progress of many runs in a pool: how many are done, and the step, loss and tokens/s of those that run."""

    def __init__(self, folder: pathlib.Path, steps: Mapping[str, int]) -> None:
        self.folder, self.steps = folder, steps
        self.console = Console(stderr=True)
        self.started = self.last_print = time.monotonic()
        self.at_start: float | None = None
        self.live = Live(console=self.console, transient=True, auto_refresh=False)

    def __enter__(self) -> "PoolProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def update(self, running: Sequence[str]) -> None:
        """Show the trials named in `running`, read from their files; at most once a second."""
        every = 1.0 if self.console.is_terminal else PLAIN_EVERY_S
        if time.monotonic() - self.last_print < every:
            return
        self.last_print = time.monotonic()
        rows = [read_trial_row(self.folder / "runs" / name, self.steps[name]) for name in self.steps]
        text = "\n".join([self._headline(rows), *[_line(row) for row in rows if row["name"] in running]])
        if self.console.is_terminal:
            self.live.update(Text(text), refresh=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _headline(self, rows: Sequence[dict[str, Any]]) -> str:
        ended = sum(row["status"] in ("done", "diverged", "failed") for row in rows)
        share = sum(min(row["step"], row["steps"]) for row in rows) / sum(row["steps"] for row in rows)
        if self.at_start is None:
            self.at_start = share  # a resumed sweep did this much before
        elapsed = time.monotonic() - self.started
        gained = share - self.at_start
        left = f", about {elapsed * (1 - share) / gained:.0f} s left" if gained > 0.01 else ""
        return f"{ended} of {len(rows)} runs ended, {share:.0%} of all steps{left}"


def _line(row: Mapping[str, Any]) -> str:
    loss = f"  loss {row['train_loss']:.3f}  {row['tokens_per_s']:,.0f} tokens/s" if "train_loss" in row else ""
    return f"  {row['name']}: step {row['step']}/{row['steps']}{loss}"


class WorkProgress:
    """Progress of several named pieces of work in sequence: one bar each on a terminal, nothing elsewhere."""

    def __enter__(self) -> "WorkProgress":
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        console = Console(stderr=True)
        self.bar = Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
        self.tasks: dict[str, Any] = {}
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.bar.disable:  # rich ends a disabled bar with an empty line
            self.bar.stop()

    def update(self, name: str, done: int, of: int) -> None:
        """Show that `done` of `of` pieces of the work `name` are done."""
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=of)
        self.bar.update(self.tasks[name], completed=done)
