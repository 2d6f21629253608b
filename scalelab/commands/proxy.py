"""scalelab proxy --config=F --flops=C --workdir=D [--out=FILE] [--seeds=3] [--lrs=A,B,…] [--config.group.key=value …]

Find a large recipe's learning rate on a small twin. The twin has the recipe's choices, its d_head, its tokens per
parameter and its shares of warm-up and decay; its width is the largest whose sweep (learning rates x seeds, one packed
program) costs at most C FLOPs. Under completep the twin's depth shrinks with its width, under mup it keeps the depth.
Under standard learning rates don't carry over, so such a recipe becomes a completep one with the twin as its base. The
best learning rate is the vertex of a parabola through the lowest validation losses over log2 LR, with a 90 % interval
over seeds (one seed has none).

Writes D/twin.py and FILE (default D/target.py): config files that import F and set only what differs, ready for
`scalelab train --config=FILE`. Running the command again resumes the sweep.

Exit code: 0 done, 1 no learning rate inside the grid is best, or a trial failed, 2 bad input, 75 stopped after saving.

    scalelab proxy --config=llama3_8b --flops=1e14 --workdir=runs/proxy
"""

from typing import Any

from scalelab import api
from scalelab.cli.parser import Parser, config_path, count_above_zero, emit_json, folder_path, print_status
from scalelab.cli.terminal import Terminal, print_report
from scalelab.config import split_overrides
from scalelab.errors import BadInput


def main(argv: list[str]) -> int:
    """Plan the twin, sweep it, write the target; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("proxy", __doc__)
    parser.add_argument("--config", required=True, type=config_path, metavar="FILE", help="the recipe, a config file")
    cost = "FLOPs that the whole sweep may cost"
    parser.add_argument("--flops", required=True, type=count_above_zero, metavar="C", help=cost)
    parser.add_argument("--workdir", required=True, type=folder_path, metavar="DIR", help="the sweep's folder")
    parser.add_argument("--out", metavar="FILE", help="the recipe with its learning rate (default: DIR/target.py)")
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="initialisations per learning rate (default: 3)"
    )
    parser.add_argument(
        "--lrs", metavar="A,B,…", help="learning rates of the twin (default: 1/8 to 8 x the recipe's, by octaves)"
    )
    options = parser.parse_args(rest)
    if options.seeds < 1:
        raise BadInput(f"--seeds={options.seeds} must be above zero; nearest: 1")
    found = api.proxy(
        options.config,
        options.flops,
        options.workdir,
        overrides,
        out=options.out,
        seeds=options.seeds,
        lrs=_lrs(options.lrs),
        progress=print_report,
        display=Terminal(),
    )
    if found is None:
        return 75
    facts = dict(found.facts)
    best = facts.pop("twin_peak_lr")
    if not found.is_interior:
        print_status(f"the best learning rate of the twin, {best:.4g}, is the first or last one tried: shift --lrs")
    else:
        print_status(f"peak_lr {facts['peak_lr']:.4g}, {_interval_text(facts)}; written: {facts['out']}")
    emit_json(facts, options.json)
    return 0 if found.is_interior else 1


def _interval_text(result: dict[str, Any]) -> str:
    if result["peak_lr_interval90"] is None:
        return f"{result['no_interval']}: no interval"
    low, high = result["peak_lr_interval90"]
    return f"90 % in {low:.4g} to {high:.4g}"


def _lrs(text: str | None) -> list[float]:
    if not text:
        return []
    try:
        values = sorted({float(part) for part in text.split(",")})
    except ValueError:
        values = []
    if len(values) < 3 or not values[0] > 0:
        raise BadInput(f"--lrs={text}: three learning rates or more, each above zero, e.g. --lrs=1e-3,2e-3,4e-3")
    return values
