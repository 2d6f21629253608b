"""scalelab report DIR [DIR …] [--output=PAGE.html]
scalelab report DIR --style=paper [--width=3.25in] [--only=FIGURE]

Write a self-contained page about a run, a sweep or a study, DIR/report.html, and its figures as PDF and CSV in
DIR/figures. The page of a run ends with three texts that its last checkpoint writes. Of several folders of runs, one
page puts them side by side: PAGE.html (default: sweeps.html), with its figures beside it. With --output nothing is
written into DIR, which may be read-only.

With --style=paper there is no page: the figures, or the one named by --only, are written into DIR/paper at the width
of a paper's column, in 8 pt and without a title.

Exit code: 0 done, 1 the study failed its own checks (an optimum at the edge; the page is written), 2 bad input.

    scalelab report runs/quickstart
"""

import argparse
import errno
import pathlib
from typing import Any

from scalelab.cli.parser import Parser, add_trust_option, emit_json, print_status
from scalelab.errors import BadInput, WorkFailed, quote_path
from scalelab.untrusted.paths import refuse_link

SAMPLED = ((0.0, 0), (0.8, 0), (0.8, 1))  # temperature and seed of each text on the page of a run
COLUMN_IN = 3.25  # inches: one of two columns on paper
MOST_SAMPLED_N = 200e6  # parameters beyond which a page does not wait for texts


def main(argv: list[str]) -> int:
    """Write DIR/report.html and DIR/figures/; print the path and what the page lacks."""
    parser = Parser("report", __doc__, stored={"folders": {}})
    parser.add_argument("folders", nargs="+", metavar="DIR", help="the folder of a run, a sweep or a study")
    parser.add_argument("--output", metavar="PAGE", help="the page, where it is not to be in DIR")
    parser.add_argument("--style", choices=("page", "paper"), default="page", help="paper: figures only, for a column")
    parser.add_argument("--width", type=_inches, metavar="X", help="width on paper, as 3.25in or 8cm (default: 3.25in)")
    parser.add_argument("--only", metavar="FIGURE", help="on paper: this figure alone, by the name of its file")
    add_trust_option(parser)
    options = parser.parse_args(argv)
    _refuse_idle(options)
    report = _write(options)
    if options.json != "-":
        print(f"{report['path']}  ({report['kind']}; runs: {report['runs']}, figures: {len(report['figures'])})")
        for gap in report["missing"]:
            print(f"  not included: {gap}")
    emit_json(report, options.json)
    for failure in report["failures"]:
        print_status(f"FAILED: {failure}")
    return 1 if report["failures"] else 0


def _refuse_idle(options: Any) -> None:
    """BadInput for an option that would do nothing."""
    if options.style != "paper" and (options.width or options.only):
        raise BadInput("--width and --only are of figures for a paper: add --style=paper")
    if options.style == "paper" and len(options.folders) > 1:
        raise BadInput("--style=paper draws the figures of one folder")
    if options.style == "paper" and options.output:
        raise BadInput("--output is a page; --style=paper writes figures only, into DIR/paper")


def _write(options: Any) -> dict[str, Any]:
    from scalelab.report.pages import write_report
    from scalelab.report.parts import PaperStyle
    from scalelab.report.several import write_sweeps

    if len(options.folders) > 1:
        return write_sweeps(pathlib.Path(options.output or "sweeps.html"), options.folders)
    (folder,) = map(pathlib.Path, options.folders)
    if (folder / "config.json").exists() and not options.output:  # a run, whose page is written into it
        refuse_link(folder, "--output=PAGE.html writes the page elsewhere")
    if options.style == "paper":
        return write_report(folder, paper=PaperStyle(options.width or COLUMN_IN, options.only))
    output = pathlib.Path(options.output) if options.output else None
    try:
        return write_report(folder, _draw_samples(folder), output=output)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and not output:
            raise BadInput(f"{error.filename}: {error.strerror}; --output=PAGE.html writes it elsewhere") from None
        raise


def _inches(text: str) -> float:
    """A width as 3.25in, 8cm or 82mm, in inches."""
    units = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4}
    number, unit = text[:-2], text[-2:]
    try:
        width = float(number) * units[unit]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a width such as 3.25in, 8cm or 82mm") from None
    if not 1 <= width <= 20:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1in and 20in")
    return width


def _draw_samples(folder: pathlib.Path) -> list[dict[str, Any]] | str | None:
    """Texts from the last checkpoint of a run (`how`, `text`), or why there are none; None for other folders."""
    from scalelab import records

    if not (folder / "config.json").exists():
        return None
    size = records.read_run(folder)["N"] or 0
    if size > MOST_SAMPLED_N:
        return f"a model of {size:,} parameters takes long to load; `scalelab sample {quote_path(folder)}` draws some."
    from scalelab.evaluate import sample, subject
    from scalelab.train.step.program import cache_compilations

    cache_compilations()
    try:
        model = subject.load_evaluated_model(str(folder))
        tokenizer = subject.load_model_tokenizer(model)
        n_tokens = sample.default_tokens(model, tokenizer, "")
        samples = []
        for temperature, seed in SAMPLED:
            options = sample.SamplingOptions(temperature, seed=seed)
            (drawn,) = sample.draw_samples(model, tokenizer, "", n_tokens, 1, options)
            how = f"temperature {temperature:g}, seed {seed}" if temperature else "the likeliest token each time"
            samples.append({"how": how, "text": sample.decode_sample(tokenizer, drawn)})
    except (BadInput, WorkFailed) as error:
        return str(error)
    return samples
