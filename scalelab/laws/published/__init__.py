"""Published scaling laws as facts with their sources, and the recipes that recompute each number.

Read in this order: `verdict` (rows and verdicts), `tables` (the papers' tables), `download`, then one file per paper,
those of models with experts in `experts`.
"""

import importlib
import pathlib
from collections.abc import Callable

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.published.verdict import PaperReport

PAPERS = (
    "chinchilla",
    "besiroglu",
    "porian",
    "gadre",
    "muennighoff",
    "gemstones",
    "kaplan",
    "marin",
    "experts",
    "step_law",
)
FILES = {"experts": "experts.closed_forms", "step_law": "experts.step_law"}  # those not named as their paper


def reproduce_paper(paper: str, data: pathlib.Path, tell: Callable[[str], None] = lambda _: None) -> PaperReport:
    """Recompute a paper's numbers from the tables in `data`; `tell` gets progress. BadInput for an unknown paper."""
    if paper not in PAPERS:
        raise BadInput(f"paper {paper!r}: unknown{nearest_hint(paper, PAPERS)}")
    return importlib.import_module(f"scalelab.laws.published.{FILES.get(paper, paper)}").reproduce(data, tell)
