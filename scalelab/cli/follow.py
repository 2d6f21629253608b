"""Follow a sweep or a run: redraw it in place on a terminal, or print blocks of lines into a pipe."""

import itertools
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from scalelab.cli.lines import fit_line, format_seconds
from scalelab.sweep.live import GONE_STATUSES, RUNNING_STATUSES, LiveTrial, LiveView
from scalelab.untrusted.text import escape_text

REDRAWN_EVERY_S, PRINTED_EVERY_S = 2.0, 10.0
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
CURVE_COLUMNS, MOST_NAME_COLUMNS = 24, 32
MOST_IN_LOG = 20  # most running trials and lost ones in a printed block
ANY_WIDTH = 10_000


def follow_view(read: Callable[[], LiveView], every_s: float | None = None) -> None:
    """Show the trials that `read` gives until all have ended."""
    console = Console(file=sys.stdout)
    every_s = every_s or (REDRAWN_EVERY_S if console.is_terminal else PRINTED_EVERY_S)
    live = Live(console=console, transient=True, auto_refresh=False)
    view = read()
    if console.is_terminal:
        live.start()
    try:
        while not view.has_ended:
            if console.is_terminal:
                lines = describe_view(view, console.width, console.height - 1, console.options.ascii_only)
                text = escape_text("\n".join(lines), "\n")
                live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)
            else:
                print("\n".join([*describe_view(view), ""]), flush=True)
            time.sleep(every_s)
            view = read()
    finally:
        if console.is_terminal:
            live.stop()
    print("\n".join(describe_view(view)), flush=True)


def describe_view(
    view: LiveView, width: int = ANY_WIDTH, height: int = 2 * MOST_IN_LOG + 4, ascii_only: bool = False
) -> list[str]:
    """Format a view in `height` lines of `width` columns: totals, running trials with their curves, lost trials."""
    running = view.with_status(*RUNNING_STATUSES)
    lost = view.with_status(*GONE_STATUSES)
    room = max(height - 1, 2)
    n_lost = min(len(lost), max(room // 3, room - len(running) - 1))
    n_running = room - n_lost - (len(lost) > n_lost)
    lines = [_headline(view, width)]
    names = min(MOST_NAME_COLUMNS, max((len(trial.row["name"]) for trial in running), default=0))
    lines += _cut([_running_line(trial, names, width, ascii_only) for trial in running], n_running, "running")
    lines += _cut([_lost_line(trial, width) for trial in lost], n_lost + (len(lost) > n_lost), "lost")
    return lines


def _cut(lines: Sequence[str], room: int, what: str) -> list[str]:
    """Cut the lines to the room there is; the last line counts the others."""
    if len(lines) <= room:
        return list(lines)
    shown = max(room - 1, 0)
    return [*lines[:shown], f"  and {len(lines) - shown} more {what}"]


def _headline(view: LiveView, width: int) -> str:
    counts = Counter(trial.row["status"] for trial in view.trials)
    states = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    speed, left = view.tokens_per_s, view.left_s
    parts = [
        (0, f"{view.share:.0%} of all steps"),
        (1, "" if left is None or view.has_ended else f"{format_seconds(left)} left"),
        (2, f"{speed:,.0f} tokens/s" if speed else ""),
    ]
    return fit_line(f"{len(view.trials)} trials: {states}", parts, width)


def _running_line(trial: LiveTrial, name_columns: int, width: int, ascii_only: bool) -> str:
    row, left = trial.row, trial.left_s
    loss, val_loss = row.get("train_loss"), row.get("val_loss")
    parts = [
        (0, f"{row['step']}/{row['steps']}"),
        (1, draw_curve(trial.losses, CURVE_COLUMNS, ascii_only)),
        (1, "compiling" if loss is None else f"loss {loss:.4f}"),
        (2, f"silent for {format_seconds(trial.silent_s)}" if trial.silent_s else ""),
        (3, "" if left is None else f"{format_seconds(left)} left"),
        (4, "" if val_loss is None else f"val {val_loss:.4f}"),
        (5, f"{row['tokens_per_s']:,.0f} tokens/s" if row.get("tokens_per_s") else ""),
    ]
    return fit_line(f"  {_fit_name(row['name'], name_columns)}", parts, width)


def _fit_name(name: str, columns: int) -> str:
    return (name if len(name) <= columns else f"{name[: columns - 1]}…").ljust(columns)


def _lost_line(trial: LiveTrial, width: int) -> str:
    step = f" at step {trial.row['step']}" if trial.row["step"] else ""
    line = f"  {trial.row['name']}  {trial.status_text}{step}" + (f": {trial.why}" if trial.why else "")
    return line if len(line) <= width else line[: width - 1] + "…"


def draw_curve(values: Sequence[float], columns: int, ascii_only: bool = False) -> str:
    """Draw a sparkline of medians of equal parts of the values; × marks parts without a finite value."""
    if not values:
        return ""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    columns = min(columns, len(values))
    ends = [round(i * len(values) / columns) for i in range(columns + 1)]
    parts = [[v for v in values[a:b] if math.isfinite(v)] for a, b in itertools.pairwise(ends)]
    points = [statistics.median(part) if part else None for part in parts]
    finite = [point for point in points if point is not None]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    lost = "x" if ascii_only else "×"
    return "".join(lost if point is None else blocks[round((point - low) * scale)] for point in points)
