"""Show progress of long work on standard error: a live line on a terminal, a plain line every 10 s elsewhere."""

import math
import pathlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from scalelab.cli.lines import Pace, draw_bar, fit_line
from scalelab.record import records
from scalelab.sweep.status import ENDED_STATUSES, read_manifest, read_trial_row

PLAIN_EVERY_S = 10.0
ANY_WIDTH = 10_000  # of a line in a log
STEP, LOSS, LEFT, VAL, ELAPSED, RATE = range(6)  # ranks of parts: a narrow terminal drops the last first


class RunProgress:
    """Progress of one run or one pack: step, loss, tokens/s, elapsed time, time left. Its last line stays."""

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps = title, steps
        self.facts: dict[str, Any] = {}
        self.console = Console(file=sys.stderr)
        self.pace = Pace()
        self.last_print, self.printed = self.pace.started, ""
        self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> "RunProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:
            self.live.stop()
        if "step" in self.facts and self.printed != self._step():
            self._print(self.console.width if self.console.is_terminal else ANY_WIDTH)

    def update(self, facts: dict[str, Any]) -> None:
        """Show a report of the loop: step, train_loss, val_loss, tokens_per_s, trials, lost; a `warning`; a `note`."""
        if "note" in facts:
            print(facts["note"], file=sys.stderr)
            return
        if "warning" in facts:
            print(f"scalelab: {facts['warning']}", file=sys.stderr)
            return
        self.facts |= facts
        self.pace.begin(self._share())
        if not self.console.is_terminal and self.pace.now() - self.last_print > PLAIN_EVERY_S:
            self._print(ANY_WIDTH)

    def _print(self, width: int) -> None:
        self.last_print, self.printed = self.pace.now(), self._step()
        print(self._line(width), file=sys.stderr, flush=True)

    def _render(self) -> Text:
        width = self.console.width
        return draw_bar(self._line(width), self._share(), width, self.console.options.ascii_only)

    def _share(self) -> float:
        return self.facts.get("step", 0) / self.steps if self.steps else 1.0

    def _step(self) -> str:
        return f"step {self.facts.get('step', 0)}/{self.steps}"

    def _line(self, width: int) -> str:
        if "step" not in self.facts:
            return fit_line(self.title, [(STEP, self._step()), (LOSS, "compiling"), *_times(self.pace, 0.0)], width)
        parts = [(STEP, self._step()), *_loss_parts(self.facts), *_times(self.pace, self._share())]
        return fit_line(self.title, parts, width)


def _times(pace: Pace, share: float) -> list[tuple[int, str]]:
    return list(zip((ELAPSED, LEFT), pace.describe(share), strict=False))


def _loss_parts(facts: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Format losses and speed; a pack shows the median of its trials and their number."""
    trials, parts = facts.get("trials"), []
    if facts.get("train_loss") is not None:
        parts.append((LOSS, f"{_median_of(trials)}loss {facts['train_loss']:.3f}{_lost_text(facts)}"))
    if facts.get("val_loss") is not None:
        parts.append((VAL, f"{_median_of(trials)}val {facts['val_loss']:.3f}"))
    if "tokens_per_s" in facts:
        parts.append((RATE, f"{facts['tokens_per_s']:,.0f} tokens/s{' in all' if trials else ''}"))
    return parts


def _median_of(trials: int | None) -> str:
    return "median " if trials else ""


def _lost_text(facts: Mapping[str, Any]) -> str:
    if not facts.get("trials"):
        return ""
    lost = facts.get("lost", 0)
    return f" of {facts['trials']}" + (f", {lost} lost" if lost else "")


class PoolProgress:
    """Progress of many runs in a pool: how many have ended, and the step, loss and tokens/s of those that run."""

    def __init__(self, folder: pathlib.Path, steps: Mapping[str, int]) -> None:
        self.folder, self.steps = folder, steps
        self.console = Console(file=sys.stderr)
        self.pace, self.begun = Pace(), time.time()
        self.last_print = self.pace.started
        self.packs: list[list[str]] = []
        self.lowest: dict[str, int] = {}  # least step seen of each trial, from which a resumed one goes on
        self.announced: set[str] = set()
        self.running: Sequence[str] = ()
        self.live = Live(console=self.console, transient=True, auto_refresh=False)

    def __enter__(self) -> "PoolProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:
            self.live.stop()
        if self.running:
            print("\n".join(self._lines()), file=sys.stderr, flush=True)

    def update(self, running: Sequence[str]) -> None:
        """Show the trials named in `running`, read from their files; at most once a second."""
        self.running = running
        every = 1.0 if self.console.is_terminal else PLAIN_EVERY_S
        if self.pace.now() - self.last_print < every:
            return
        self.last_print = self.pace.now()
        for pack in self._read_packs():
            self._announce_resume([name for name in pack if name in running])
        text = "\n".join(self._lines())
        if self.console.is_terminal:
            self.live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def report(self, facts: dict[str, Any]) -> None:
        """Show a `warning` of the sweep itself, or one that workers left in their logbooks."""
        if "warning" in facts:
            print(f"scalelab: {facts['warning']}", file=sys.stderr)

    def _announce_resume(self, names: Sequence[str]) -> None:
        """Print once the step from which a pack resumes, as soon as its first trial's logbook has it."""
        if not names or names[0] in self.announced:
            return
        events = [
            event
            for event in records.read_events(self.folder / "runs" / names[0])
            if event["time"] >= self.begun and event["kind"] in ("start", "resume")
        ]
        self.announced |= {names[0]} if events else set()
        for event in events:
            if event["kind"] == "resume":
                print(f"{_pack_name(names)}: resumed at step {event['step']}", file=sys.stderr, flush=True)

    def _lines(self) -> list[str]:
        """Format the headline, and one line for each pack that trains."""
        rows = {name: read_trial_row(self.folder / "runs" / name, steps) for name, steps in self.steps.items()}
        for name, row in rows.items():
            self.lowest[name] = min(self.lowest.get(name, row["step"]), row["step"])
        live = [[rows[name] for name in pack if name in self.running] for pack in self._read_packs()]
        live = [pack for pack in live if pack]
        width = self.console.width if self.console.is_terminal else ANY_WIDTH
        return [self._headline(list(rows.values()), live, width), *(_pack_line(pack, width) for pack in live)]

    def _read_packs(self) -> list[list[str]]:
        """Read from the sweep's manifest which trials train together."""
        if not self.packs and (self.folder / "sweep.json").exists():
            self.packs = list(read_manifest(self.folder).get("packs", {}).values())
        return self.packs or [[name] for name in self.steps]

    def _headline(self, rows: Sequence[dict[str, Any]], live: Sequence[Sequence[dict[str, Any]]], width: int) -> str:
        ended = sum(row["status"] in (*ENDED_STATUSES, "failed") for row in rows)
        share = sum(min(row["step"], row["steps"]) for row in rows) / sum(row["steps"] for row in rows)
        if live and all(any(row["step"] > self.lowest[row["name"]] for row in pack) for pack in live):
            self.pace.begin(share)  # the pace is measured once every worker has stepped
        times = _times(self.pace, share)
        return fit_line(f"{ended} of {len(rows)} runs ended", [(STEP, f"{share:.0%} of all steps"), *times], width)


def _pack_name(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _pack_line(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """Format the line of a pack; for several trials the median loss and the first one's name."""
    first = rows[0]
    finite = [row["train_loss"] for row in rows if math.isfinite(row.get("train_loss", math.nan))]
    facts: dict[str, Any] = {"trials": len(rows), "lost": len(rows) - len(finite)} if len(rows) > 1 else {}
    if "train_loss" in first:
        facts |= {"train_loss": statistics.median(finite or [math.nan]), "tokens_per_s": first["tokens_per_s"]}
    step = f"step {min(row['step'] for row in rows)}/{first['steps']}"
    return fit_line(
        f"  {_pack_name([row['name'] for row in rows])}",
        [(STEP, step), *(_loss_parts(facts) or [(LOSS, "compiling")])],
        width,
    )


class WorkProgress:
    """Progress of several named pieces of work in sequence: a line each on a terminal, one every 10 s elsewhere."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr)
        self.work: dict[str, tuple[int, int, Pace]] = {}
        self.last_print = time.monotonic()
        self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> "WorkProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def update(self, name: str, done: int, of: int) -> None:
        """Show that `done` of `of` pieces of the work `name` are done."""
        pace = self.work[name][2] if name in self.work else Pace()
        pace.begin(done / of)
        self.work[name] = done, of, pace
        if not self.console.is_terminal and pace.now() - self.last_print > PLAIN_EVERY_S:
            self.last_print = pace.now()
            print(self._line(name, ANY_WIDTH), file=sys.stderr, flush=True)

    def _line(self, name: str, width: int) -> str:
        done, of, pace = self.work[name]
        return fit_line(name, [(STEP, f"{done}/{of}"), *_times(pace, done / of)], width)

    def _render(self) -> Text:
        width = self.console.width
        lines = [draw_bar(self._line(name, width), done / of, width) for name, (done, of, _) in self.work.items()]
        return Text("\n").join(lines)
