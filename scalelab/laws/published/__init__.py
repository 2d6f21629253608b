"""Published scaling laws as facts with their sources, and the recipes that compute each number again."""

import importlib
import pathlib
from collections.abc import Callable

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.published.verdict import PaperReport

PAPERS = ("chinchilla", "besiroglu", "porian", "gadre", "muennighoff", "gemstones", "kaplan")


def reproduce_paper(paper: str, data: pathlib.Path, tell: Callable[[str], None] = lambda _: None) -> PaperReport:
    """A paper's numbers computed again from the tables in `data`; `tell` hears of long parts. BadInput if unknown."""
    if paper not in PAPERS:
        raise BadInput(f"paper {paper!r}: unknown{nearest_hint(paper, PAPERS)}")
    return importlib.import_module(f"scalelab.laws.published.{paper}").reproduce(data, tell)
