"""What docs/results.md takes from its results: the date of each row, and (stale) where their making changed since."""

import json
import pathlib
import re
from collections.abc import Iterator

from scalelab.experiments import fingerprint

ROOT = pathlib.Path(__file__).parents[2]
PAGE = "docs/results.md"
LINK = re.compile(r"(\]\(\.\./((?:checks|experiments)/results/[\w.]+)\))((?: \(stale\))?)")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
DATED_BY_HAND = {"gpu.md"}  # measured over days


def mark_stale(page: str) -> str:
    """The page with a mark behind each link to a stale result, and behind no other."""
    return LINK.sub(lambda match: match[1] + (" (stale)" if is_stale(ROOT / match[2]) else ""), page)


def is_stale(path: pathlib.Path) -> bool:
    """Whether the code, golden step or jax that made a result changed since; also where nothing says what made it."""
    return bool(fingerprint.stale_reasons(fingerprint.read_fingerprint(path)))


def wrong_dates(page: str) -> Iterator[tuple[str, str]]:
    """Yield (row, date of its result) of each row of the table whose dates leave out that of its first result."""
    for line in page.splitlines():
        link, cells = LINK.search(line), line.split(" | ")
        if line.startswith("| ") and link and len(cells) == 4 and DATE.search(cells[2]):
            path = ROOT / link[2]
            date = path.name not in DATED_BY_HAND and date_of(path)
            if date and date not in cells[2]:
                yield line, date


def date_of(path: pathlib.Path) -> str | None:
    """The last date that a result states as its own: that of its JSON file, else of the head of its page."""
    file = path.with_suffix(".json")
    content = json.loads(file.read_text()) if file.exists() else None
    text = str(content["date"]) if isinstance(content, dict) and "date" in content else ""
    if not text and path.suffix == ".md":
        text = path.read_text()[:1200]  # the lines that say how it was made
    return max(DATE.findall(text), default=None)


def correct_dates(page: str) -> str:
    """The page with the date of each row's result, where the row has one date only."""
    for line, date in wrong_dates(page):
        question, command, when, answer = line.split(" | ")
        if len(DATE.findall(when)) == 1:
            page = page.replace(line, " | ".join((question, command, DATE.sub(date, when), answer)))
    return page
