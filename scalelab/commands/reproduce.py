"""`scalelab reproduce PAPER --data=DIR`: compute published scaling laws again: ours, published, interval, verdict.

Three need no data. `scalelab reproduce textbook`: sentences and numbers that teaching texts repeat, computed by this
project: stated, ours, verdict; what no code can judge is listed without one. `scalelab reproduce closed_forms`: ZeRO's
table, utilisation and training FLOPs of papers, Megatron-LM's scaling, the Scaling Book's examples.
`scalelab reproduce experts`: laws of models with experts of five papers, by each paper's own tables.

PAPER is chinchilla, besiroglu, porian, gadre, muennighoff, gemstones, kaplan, marin, experts, step_law (on models with
experts), or all (of these). DIR holds the authors' run tables: `scalelab reproduce --download=DIR` fetches those that
can be downloaded as they are and names the source of the others.

Verdicts: match, within_interval (the published one; of a forecast, ours), lower_objective (the same optimum, reached
more exactly), published_not_global (a lower optimum lies elsewhere), table_error (printed numbers that contradict each
other), mismatch. Verdicts of textbook and step_law: match, within_interval (ours), wrong (the statement is false).

Exit codes: 0 no mismatch, 1 a mismatch or a table that could not be fetched, 2 bad input.

    scalelab reproduce besiroglu --data=tables
"""

import pathlib
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scalelab import api
from scalelab.cli.parser import Parser, emit_json
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.published import PAPERS

if TYPE_CHECKING:
    from scalelab.laws.published.verdict import ComparisonRow, PaperReport

PRINT_EVERY_S = 2.0
NAME_WIDTH = 84


def main(argv: list[str]) -> int:
    """Print the table (or its JSON); exit code 1 if a number that should agree does not."""
    options = _parser().parse_args(argv)
    if options.download is not None:
        return _download(pathlib.Path(options.download or options.data or "published-tables"))
    started, reports = time.monotonic(), []
    if options.paper is None:
        raise BadInput(f"no paper{nearest_hint('', [*PAPERS, 'all', 'textbook', 'closed_forms'])}")
    for report in api.reproduce(options.paper, options.data, progress=_progress_printer()):
        reports.append(report)
        if options.json != "-":
            print("\n".join(_lines(report)), flush=True)
    rows = [
        {"paper": report.paper} | row.to_json() | ({"stated": row.published} if report.stated else {})
        for report in reports
        for row in report.rows
    ]
    if options.json != "-" and len(reports) > 1:
        print(f"\nall: {_counts(row for report in reports for row in report.rows)}")
    emit_json(_json(reports, rows, time.monotonic() - started), options.json)
    return int(any(row["verdict"] == "mismatch" for row in rows))


def _parser() -> Parser:
    parser = Parser("reproduce", __doc__)
    parser.add_argument(
        "paper", metavar="PAPER", nargs="?", help="whose numbers; `all` for every paper; `textbook`; `closed_forms`"
    )
    parser.add_argument("--data", metavar="DIR", help="the folder of run tables")
    parser.add_argument(
        "--download",
        nargs="?",
        const="",
        metavar="DIR",
        help="fetch tables into DIR (default: the folder of --data) and stop",
    )
    return parser


def _progress_printer() -> Any:
    """Make a function that prints progress on standard error, at most one line every PRINT_EVERY_S."""
    last_print = 0.0

    def print_progress(text: str) -> None:
        nonlocal last_print
        if time.monotonic() - last_print > PRINT_EVERY_S:
            last_print = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return print_progress


def _json(reports: "Iterable[PaperReport]", rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    reports = list(reports)
    findings = [{"paper": report.paper, "text": text} for report in reports for text in report.findings]
    sources = {report.paper: report.source for report in reports}
    return {"rows": rows, "findings": findings, "sources": sources, "seconds": round(seconds, 1)}


def _counts(rows: "Iterable[ComparisonRow]") -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.verdict] = counts.get(row.verdict, 0) + 1
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.items())


def _lines(report: "PaperReport") -> list[str]:
    """Format the table of one paper, its recipes as numbered notes, and the findings."""
    recipes = list(dict.fromkeys(row.recipe for row in report.rows))
    width = min(NAME_WIDTH, max(len(row.name) for row in report.rows))
    theirs, interval_of = ("stated", "interval of ours") if report.stated else ("published", "published interval")
    head = f"{'':<{width}}  {'ours':>14} {theirs:>14}  {interval_of:<19} verdict, recipe"
    lines, said = ["", f"{report.paper} ({report.source})", head], ""
    for row in report.rows:
        if row.sentence and row.place + row.sentence != said:
            said = row.place + row.sentence
            lines += ["", f'{row.place}: "{row.sentence}"']
        interval = "{:.4g} to {:.4g}".format(*row.interval) if row.interval else ""
        note = f"{row.verdict} [{recipes.index(row.recipe) + 1}]"
        lines.append(f"{row.name:<{width}}  {row.ours:>14.9g} {row.published:>14.9g}  {interval:<19} {note}")
    lines += [f"[{number}] {recipe}" for number, recipe in enumerate(recipes, 1)]
    lines += [f"FOUND: {text}" for text in report.findings]
    return [*lines, f"{report.paper}: {_counts(report.rows)}"]


def _download(folder: pathlib.Path) -> int:
    """Fetch all tables that can be downloaded; 1 if any table is still missing."""
    missing = 0
    for _, text, is_here in api.download_tables(folder, progress=_progress_printer()):
        missing += not is_here
        print(text if is_here else f"scalelab: {text}", file=None if is_here else sys.stderr)
    return int(missing > 0)
