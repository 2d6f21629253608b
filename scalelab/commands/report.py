"""scalelab report DIR

Write a self-contained page about a run, a sweep or a study, DIR/report.html, and its figures as PDF and CSV in
DIR/figures. The page of a run ends with three texts that its last checkpoint writes.

Exit code: 0 done, 1 the study failed its own checks (an optimum at the edge; the page is written), 2 bad input.

    scalelab report runs/quickstart
"""

import pathlib
from typing import Any

from scalelab.cli.parser import Parser, add_trust_option, emit_json, print_status
from scalelab.errors import BadInput, WorkFailed

SAMPLED = ((0.0, 0), (0.8, 0), (0.8, 1))  # temperature and seed of each text on the page of a run
MOST_SAMPLED_N = 200e6  # parameters beyond which a page does not wait for texts


def main(argv: list[str]) -> int:
    """Write DIR/report.html and DIR/figures/; print the path and what the page lacks."""
    parser = Parser("report", __doc__)
    parser.add_argument("folder", metavar="DIR", help="the folder of a run, a sweep or a study")
    add_trust_option(parser)
    options = parser.parse_args(argv)
    from scalelab.report.pages import write_report

    report = write_report(options.folder, _draw_samples(pathlib.Path(options.folder)))
    if options.json != "-":
        print(f"{report['path']}  ({report['kind']}; runs: {report['runs']}, figures: {len(report['figures'])})")
        for gap in report["missing"]:
            print(f"  not included: {gap}")
    emit_json(report, options.json)
    for failure in report["failures"]:
        print_status(f"FAILED: {failure}")
    return 1 if report["failures"] else 0


def _draw_samples(folder: pathlib.Path) -> list[dict[str, Any]] | str | None:
    """Texts from the last checkpoint of a run (`how`, `text`), or why there are none; None for other folders."""
    from scalelab import records

    if not (folder / "config.json").exists():
        return None
    size = records.read_run(folder)["N"] or 0
    if size > MOST_SAMPLED_N:
        return f"a model of {size:,} parameters takes long to load; `scalelab sample {folder}` draws some."
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
