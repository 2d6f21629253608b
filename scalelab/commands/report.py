"""scalelab report DIR

Write a self-contained page about a run, a sweep or a study, DIR/report.html, and its figures as PDF and CSV in
DIR/figures.

Exit code: 0 done, 1 the study failed its own checks (an optimum at the edge; the page is written), 2 bad input.

    scalelab report runs/quickstart
"""

from scalelab.cli.parser import Parser, emit_json, print_status


def main(argv: list[str]) -> int:
    """Write DIR/report.html and DIR/figures/; print the path and what the page lacks."""
    parser = Parser("report", __doc__)
    parser.add_argument("folder", metavar="DIR", help="the folder of a run, a sweep or a study")
    options = parser.parse_args(argv)
    from scalelab.report.pages import write_report

    report = write_report(options.folder)
    if options.json != "-":
        print(f"{report['path']}  ({report['kind']}; runs: {report['runs']}, figures: {len(report['figures'])})")
        for gap in report["missing"]:
            print(f"  not included: {gap}")
    emit_json(report, options.json)
    for failure in report["failures"]:
        print_status(f"FAILED: {failure}")
    return 1 if report["failures"] else 0
