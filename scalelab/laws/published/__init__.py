"""Published scaling laws as facts with their sources, and the recipes that recompute each number.

Read in this order: `verdict` (rows and verdicts), `tables` (the papers' tables), `download`, then one file per paper.
"""

import importlib
import pathlib
from collections.abc import Callable

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.published.verdict import PaperReport

PAPERS = ("chinchilla", "besiroglu", "porian", "gadre", "muennighoff", "gemstones", "kaplan", "marin")


def reproduce_paper(paper: str, data: pathlib.Path, tell: Callable[[str], None] = lambda _: None) -> PaperReport:
    """Recompute a paper's numbers from the tables in `data`; `tell` gets progress. BadInput for an unknown paper."""
    if paper not in PAPERS:
        raise BadInput(f"paper {paper!r}: unknown{nearest_hint(paper, PAPERS)}")
    return importlib.import_module(f"scalelab.laws.published.{paper}").reproduce(data, tell)
