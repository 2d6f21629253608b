"""scalelab report DIR [DIR …] [--output=PAGE.html]
scalelab report DIR --style=paper [--width=3.25in] [--only=FIGURE]

Write a self-contained page about a run, a sweep or a study, DIR/report.html, and its figures as PDF and CSV in
DIR/figures. The page of a run ends with three texts that its last checkpoint writes. Of several folders of runs, one
page puts them side by side: PAGE.html (default: sweeps.html), with its figures beside it. With --output nothing is
written into DIR, which may be read-only. Of runs that another program trained (docs/foreign.md) the page is
NAME-report.html in the present folder.

With --style=paper there is no page: the figures, or the one named by --only, are written into DIR/paper at the width
of a paper's column, in 8 pt and without a title.

Exit code: 0 done, 1 the study failed its own checks (an optimum at the edge; the page is written), 2 bad input.

    scalelab report runs/quickstart
"""

import argparse
import pathlib

from scalelab import api
from scalelab.cli.foreign import add_sources
from scalelab.cli.parser import Parser, add_trust_option, emit_json, print_status
from scalelab.errors import BadInput


def main(argv: list[str]) -> int:
    """Write DIR/report.html and DIR/figures/; print the path and what the page lacks."""
    parser = Parser("report", __doc__, stored={"folders": {}})
    parser.add_argument("folders", nargs="+", metavar="DIR", help="the folder of a run, a sweep or a study")
    parser.add_argument("--output", metavar="PAGE", help="the page, where it is not to be in DIR")
    parser.add_argument("--style", choices=("page", "paper"), default="page", help="paper: figures only, for a column")
    parser.add_argument("--width", type=_inches, metavar="X", help="width on paper, as 3.25in or 8cm (default: 3.25in)")
    parser.add_argument("--only", metavar="FIGURE", help="on paper: this figure alone, by the name of its file")
    add_trust_option(parser)
    add_sources(parser, ("folders",))
    options = parser.parse_args(argv)
    if options.foreign and options.style == "paper":
        raise BadInput("--style=paper writes into DIR: make run folders first, with `scalelab import run`")
    if options.foreign and options.output is None and len(options.folders) == 1:
        options.output = f"{pathlib.Path(options.folders[0]).name}-report.html"  # nothing is written into a source
    report = api.report(
        options.folders, output=options.output, style=options.style, width=options.width, only=options.only
    )
    if options.json != "-":
        print(f"{report['path']}  ({report['kind']}; runs: {report['runs']}, figures: {len(report['figures'])})")
        for gap in report["missing"]:
            print(f"  not included: {gap}")
    emit_json(report, options.json)
    for failure in report["failures"]:
        print_status(f"FAILED: {failure}")
    return 1 if report["failures"] else 0


def _inches(text: str) -> float:
    """Parse a width such as 3.25in, 8cm or 82mm; returns inches."""
    units = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4}
    number, unit = text[:-2], text[-2:]
    try:
        width = float(number) * units[unit]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a width such as 3.25in, 8cm or 82mm") from None
    if not 1 <= width <= 20:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1in and 20in")
    return width
