"""scalelab coordcheck --config=F [--widths=64,128,…] [--depths=2,4,…] [--check] [--plot=FILE] [--config.KEY=VALUE …]

Coordinate check: train a few steps at several widths (or depths) and show which activations grow with the size. d_head
is fixed while n_heads grows, and d_ff stays the same multiple of d_model; everything else is the config's, optimizer
included, at its peak learning rate from the first step on. For every activation: its RMS after the last step, the RMS
of its change since initialisation, and the log-log slopes of both over sizes, ± standard error over seeds. A slope
above 0.25 is "growing".

Under mup nothing grows with width; under completep nothing grows with width or depth. Under standard activations grow,
so the learning rate of one size does not suit another. Activations: the residual stream after the embedding and after
the last block (`stream`), each block's attention logits (RMS, and the largest magnitude as `max`), attention and MLP,
the final norm, the logits.

Exit code: 0 done (without --check: whatever the verdict), 1 a step was not finite or --check found growth, 2 bad input.

    scalelab coordcheck --config=tiny --widths=32,64 --plot=check.png
"""

import argparse
import pathlib
from typing import Any

from scalelab import api
from scalelab.cli.parser import Parser, align_columns, config_path, emit_json, print_status
from scalelab.cli.terminal import Terminal, print_report
from scalelab.config import split_overrides
from scalelab.errors import BadInput


def main(argv: list[str]) -> int:
    """Run the check, print a table for each axis, draw it; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("coordcheck", __doc__)
    parser.add_argument(
        "--config", required=True, type=config_path, metavar="FILE", help="a config file, e.g. configs/tiny.py"
    )
    parser.add_argument(
        "--widths", type=_whole, metavar="D,D,…", help="values of d_model (default: 64 to 1024, doubling)"
    )
    parser.add_argument("--depths", type=_whole, metavar="L,L,…", help="values of n_layers, at the config's own width")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="optimizer steps (default: 4)")
    parser.add_argument(
        "--seeds", type=int, default=2, metavar="N", help="initialisations to average over (default: 2)"
    )
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="sequences a step (default: 4)")
    parser.add_argument("--plot", metavar="FILE", help="draw the RMS over sizes, as .png or .pdf")
    parser.add_argument("--check", action="store_true", help="exit 1 if anything is growing, for scripts")
    options = parser.parse_args(rest)
    for name in ("steps", "seeds", "batch"):
        if getattr(options, name) < 1:
            raise BadInput(f"--{name}={getattr(options, name)} must be at least 1")
    if options.plot and pathlib.Path(options.plot).suffix not in (".png", ".pdf"):
        raise BadInput(f"--plot={options.plot} must end in .png or .pdf")
    result = api.coordcheck(
        options.config,
        overrides,
        widths=options.widths or (),
        depths=options.depths or (),
        steps=options.steps,
        seeds=options.seeds,
        batch=options.batch,
        progress=print_report,
        display=Terminal(takes_signals=False),
    )
    if options.json != "-":
        _print(result)
    if options.plot:
        print_status(f"drawn: {', '.join(api.draw_coordcheck(result, options.plot))}")
    emit_json(result, options.json)
    return int(options.check and any(check["verdict"] == "growing" for check in result["checks"]))


def _whole(text: str) -> list[int]:
    parts = text.split(",")
    values = sorted({int(part) for part in parts if part.strip().isdecimal()})
    if len(values) < max(2, len(parts)) or values[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not two whole sizes or more, e.g. 64,128,256")
    return values


def _print(result: dict[str, Any]) -> None:
    for check in result["checks"]:
        head = ["RMS after the last step", *map(str, check["sizes"]), "slope", "slope of the change", "verdict"]
        rows = [
            [
                row["activation"],
                *[f"{value:.3g}" for value in row["rms"][-1]],
                f"{row['slope']:+.2f}",
                f"{row['change_slope']:+.2f}"
                + (f" ± {error:.2f}" if (error := row["change_slope_error"]) is not None else ""),
                row["verdict"],
            ]
            for row in check["rows"]
        ]
        print("\n".join(align_columns([head, *rows])))
        optimizer = f"{result['optimizer']} at {result['peak_lr']:g}"
        print(f"{result['name']}, {optimizer}, over {check['axis']}: {check['verdict']}\n")
