"""The marks of stale results on docs/results.md: (stale) behind the link to each page whose making changed since."""

import pathlib
import re

from scalelab.experiments import fingerprint

ROOT = pathlib.Path(__file__).parents[2]
PAGE = "docs/results.md"
LINK = re.compile(r"(\]\(\.\./((?:checks|experiments)/results/[\w.]+)\))((?: \(stale\))?)")


def mark_stale(page: str) -> str:
    """The page with a mark behind each link to a stale result, and behind no other."""
    return LINK.sub(lambda match: match[1] + (" (stale)" if is_stale(ROOT / match[2]) else ""), page)


def is_stale(path: pathlib.Path) -> bool:
    """Whether the code, golden step or jax that made a result changed since; also where nothing says what made it."""
    made = fingerprint.read_fingerprint(path)
    return not made or bool(fingerprint.stale_reasons(made, ROOT))
