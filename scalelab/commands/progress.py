"""How long work shows itself: a rich bar on a terminal, a plain line now and then elsewhere. Both on standard error."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY_S = 10.0


class Bar:
    """Progress of one run (or of run i of n): step, loss, tokens/s, time left."""

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps, self.facts = title, steps, {}
        self.console = Console(stderr=True)
        self.rich = self.console.is_terminal
        self.spoken = time.monotonic()

    def __enter__(self) -> "Bar":
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
        """Take what the loop reports: step, train_loss, val_loss, tokens_per_s; or a warning."""
        if "warning" in facts:
            print(f"scalelab: {facts['warning']}", file=sys.stderr)
            return
        self.facts |= facts
        text = self._text()
        if self.rich:
            self.bar.update(self.task, completed=self.facts["step"], facts=text)
        elif time.monotonic() - self.spoken > PLAIN_EVERY_S:
            self.spoken = time.monotonic()
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
