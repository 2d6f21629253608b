"""Format a line of progress to a terminal's width, with elapsed time and the estimated time left."""

import time
from collections.abc import Callable, Sequence

from rich.text import Text

from scalelab.untrusted.text import escape_text

LEAST_BAR, MOST_BAR = 10, 40  # columns
SHORT_TITLE, SHORTEST_TITLE = 8, 6


class Pace:
    """Elapsed time, and time left by the pace since `begin`; before `begin` the pace is unknown."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now, self.started = now, now()
        self.first: tuple[float, float] | None = None

    def begin(self, share: float) -> None:
        """Start measuring the pace, with `share` of the work already done; later calls do nothing."""
        self.first = self.first or (self.now(), share)

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self.now() - self.started

    def left_s(self, share: float) -> float | None:
        """Seconds left when `share` of the work is done; None while the pace is unknown."""
        if self.first is None or share <= self.first[1]:
            return None
        at, before = self.first
        return (self.now() - at) * max(1 - share, 0) / (share - before)

    def describe(self, share: float) -> list[str]:
        """Format elapsed time, and time left if it is known: `["1:20", "0:40 left"]`."""
        left = self.left_s(share)
        return [format_seconds(self.elapsed_s()), *([] if left is None else [f"{format_seconds(left)} left"])]


def format_seconds(seconds: float) -> str:
    """Format seconds as `m:ss`, `h:mm:ss` or `d d hh:mm:ss`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02d}:{minute:02d}:{second:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def fit_line(title: str, parts: Sequence[tuple[int, str]], width: int) -> str:
    """Fit `title` and the texts of `parts` (rank, text) into `width` columns without cutting a number.

    Parts of the highest rank go first, those of rank 0 never; the title is cut before parts of rank 1 and 2 go.
    """
    title, shown = escape_text(title), [part for part in parts if part[1]]
    for title_width, least_rank in ((len(title), 3), (min(len(title), SHORT_TITLE), 1)):
        while title_width + _length(shown) > width and any(rank >= least_rank for rank, _ in shown):
            shown.remove(max(shown, key=lambda part: part[0]))
    room = max(width - _length(shown), SHORTEST_TITLE)
    title = title if len(title) <= room else title[: room - 1] + "…"
    return "  ".join([title, *(text for _, text in shown)])


def _length(parts: Sequence[tuple[int, str]]) -> int:
    return sum(2 + len(text) for _, text in parts)


def draw_bar(line: str, share: float, width: int, ascii_only: bool = False) -> Text:
    """Put a bar of `share` before the line if LEAST_BAR columns are left."""
    room = min(width - len(line) - 1, MOST_BAR)
    if room < LEAST_BAR:
        return Text(line, no_wrap=True, overflow="crop")
    done, (full, rest) = round(room * min(share, 1.0)), "#." if ascii_only else "━─"
    return Text.assemble((full * done, "green"), (rest * (room - done), "dim"), " ", line, no_wrap=True)
