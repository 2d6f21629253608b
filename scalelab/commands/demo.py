"""scalelab demo [--out=DIR]

Fit a scaling law in seconds, without training: fit the small study that comes with the package, predict its larger run
(trained after the others), and score the prediction. Writes the figure (PNG, PDF and the CSV behind it) into DIR.

Exit code: 0 done, 2 bad input.

    scalelab demo --out=runs/demo
"""

import pathlib

from scalelab import api
from scalelab.api.defaults import DEMO_FOLDER
from scalelab.cli.parser import Parser, align_columns, emit_json, folder_path
from scalelab.errors import quote_path


def main(argv: list[str]) -> int:
    """Print the fit, the prediction and its score; write the figure."""
    parser = Parser("demo", __doc__)
    parser.add_argument(
        "--out",
        type=folder_path,
        default=pathlib.Path(DEMO_FOLDER),
        metavar="DIR",
        help=f"default: {DEMO_FOLDER}",
    )
    options = parser.parse_args(argv)
    result = api.demo(options.out)
    if options.json != "-":
        print("\n".join(_lines(result)))
    emit_json(result, options.json)
    return 0


def _lines(result: dict) -> list[str]:
    """Format the law with its intervals, the prediction and its score, the files, and what to do next."""
    fit, held = result["fit"], result["held_out"]
    low, high = held["interval90"]
    values = fit["params"] | fit["exponents"]
    cells = [[name, f"{values[name]:.4g}", *(f"{end:.4g}" for end in fit["intervals"][name])] for name in values]
    command = f"scalelab fit {quote_path(result['table'])} --target-flops=3.2e12 --figures=figures"
    return [
        f"{fit['n_runs']} small transformers on Python source, 1e11 to 8e11 FLOPs each, trained by `make quickstart`;",
        f"fitted: {fit['equation']} (loss in nats per token, N parameters, D tokens)",
        *align_columns([["", "value", "90 % low", "high"], *cells]),
        "",
        f"predicted {held['predicted_loss']:.4f} (90 %: {low:.4f} to {high:.4f}) for a run of {held['C']:.3g} FLOPs, "
        f"which then reached {held['measured_loss']:.4f}: error {held['error']:+.2%}, "
        f"{'inside' if held['inside'] else 'OUTSIDE'}",
        *(f"wrote {path}" for path in result["files"]),
        "",
        "next: your own runs          scalelab fit points.csv --columns='N=params,D=tokens,loss=val_loss'",
        f"      this table in full     {command}",
        "      train, predict, check  make quickstart (in a clone: minutes on two cores)",
    ]
