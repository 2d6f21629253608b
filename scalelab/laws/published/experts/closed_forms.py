"""Laws of models with experts, checked against each paper's own tables and sentences: no data are needed."""

import pathlib
from collections.abc import Callable

from scalelab.laws.published.experts import abnar, clark, krajewski, ludziejewski, tian
from scalelab.laws.published.verdict import ComparisonRow, PaperReport

SOURCE = "arXiv 2202.01169, 2402.07871, 2501.12370, 2502.05172 and 2507.17702"
FILES = (clark, krajewski, abnar, ludziejewski, tian)


def reproduce(data: pathlib.Path, tell: Callable[[str], None]) -> PaperReport:
    """Recompute what each paper's parameters give beside what it prints."""
    rows: list[ComparisonRow] = []
    for file in FILES:
        tell(f"experts: {file.__name__.rpartition('.')[2]}")
        rows += file.compare_rows()
    return PaperReport("experts", SOURCE, tuple(rows), _findings(rows))


def _findings(rows: list[ComparisonRow]) -> tuple[str, ...]:
    off = [abs(r.ours / r.published - 1) for r in rows if r.name.startswith("Ludziejewski, table 4")]
    errors = [r.name.partition("experts: ")[2] for r in rows if r.verdict == "table_error" and "table 4" in r.name]
    return (
        f"Ludziejewski: table 4 follows from table 3 within {max(off):.2%}, which is more than rounding for "
        f"{len(errors)} of its 24 numbers.",
        "Abnar: with a fixed number of parameters, the best sparsity falls as the budget grows by the paper's own law "
        "and section 3; the summary in section 6 says the opposite.",
        "Tian: the parameters of table 2 give the paper's optimum and forecast only with log2 G and log10 C; the text "
        "calls d positive, the table has it negative, which is what makes leverage grow with compute.",
    )
