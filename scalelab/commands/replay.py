"""scalelab replay RUN@A..B [--what-if="clip=1,2; lr*=.7,1; moments=keep,reset"] [--find-batches] [--plot=PATH]

Train the steps A to B of a run again, from its last checkpoint before A, and --after more: as it was, which must give
the bits that its metrics.jsonl has, and under what-ifs, all in one program. The table names the cheapest that works.
Nothing is written into the run.

A what-if is a product of parts, separated by semicolons; give --what-if again for another product:

    clip=1,2              the norm to which gradients are clipped
    lr*=.7,1              the scheduled learning rate, times this
    skip=120..123         the batches of these steps are never taken; all later ones come earlier
    moments=keep,reset    the optimizer's state, kept or begun anew
    guard=log,sigma       a guard that skips outliers, by this detector
    optim.beta2=.95       any traced number of the config

--find-batches bisects the window: the shortest stretch of batches without which no peak remains.

A what-if works if no outlier lasts and the last losses are back where they were before A. Those that work are compared
by their last losses at equal steps, in nats above the best one; which can't be told apart is said, by the scatter of
losses before A, or with --orders=3 by what other orders of the later batches change (those that work are then trained
on each). Of those that can't be told from the best the cheapest is named, with the `scalelab train --back-to` that does
it, to the bit. Steps are those of metrics.jsonl.
Exit code: 0 the original works or a cure was found, 1 none works, 2 bad input, 75 stopped by a signal.

    scalelab replay runs/mine@400..420 --what-if="clip=.5,1; lr*=.7,1"
"""

import argparse
from typing import Any

from scalelab import api
from scalelab.api.defaults import AFTER
from scalelab.cli.parser import Parser, add_trust_option, emit_json, print_status, print_table, whole_number
from scalelab.cli.terminal import print_report
from scalelab.signals import stop_on_signals


def main(argv: list[str]) -> int:
    """Replay, judge and print; exit codes in the module's docstring."""
    options = _parse(argv)
    with stop_on_signals() as stop:
        result = api.replay(
            options.window,
            options.what_if,
            after=options.after,
            price=options.price,
            find_batches=options.find_batches,
            orders=options.orders,
            progress=print_report,
            stop=stop,
        )
        if stop():
            print_status("stopped: nothing was written")
            return 75
    if options.plot:
        for written in api.draw_replay(result, options.plot):
            print_status(f"wrote {written}")
    if options.json != "-":
        _print(result)
    emit_json({key: value for key, value in result.items() if key != "curves"}, options.json)
    return 0 if result["cure"] else 1


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser("replay", __doc__)
    parser.add_argument("window", metavar="RUN@A..B", help="a run's folder, and the steps at which it went wrong")
    parser.add_argument(
        "--what-if", action="append", default=[], metavar="PARTS", help="what to change; may be repeated"
    )
    parser.add_argument("--find-batches", action="store_true", help="find the batches that bring the spike")
    parser.add_argument("--after", type=whole_number, default=AFTER, metavar="N", help=f"steps after B ({AFTER})")
    parser.add_argument("--orders", type=whole_number, default=1, metavar="N", help="orders of the later batches (1)")
    parser.add_argument("--price", type=float, metavar="X", help="price of a device-hour, in any currency")
    parser.add_argument("--plot", metavar="PATH", help="write the loss curves as a figure (.png, or .pdf with its CSV)")
    add_trust_option(parser)
    return parser.parse_args(argv)


def _print(result: dict[str, Any]) -> None:
    print("\n".join(result["notes"]))
    rows = [[v["name"], "yes" if v["works"] else "no", f"{v['final']:.4f}", _above(v), f"{v['peak']:.4g}",
             *(str(v[key]) for key in ("outliers", "steps", "batches")),
             *([f"{v['cost']:,.2f}"] if v["cost"] is not None else [])]
            for v in result["verdicts"]]  # fmt: skip
    price = ["cost"] if result["verdicts"][0]["cost"] is not None else []
    print_table(
        [
            "what if",
            "works",
            "last losses",
            "above the best",
            "largest",
            "outliers",
            "steps again",
            "batches lost",
            *price,
        ],
        rows,
    )
    print("\n".join(result["answer"]))


def _above(verdict: dict[str, Any]) -> str:
    """Nats above the best of those that work, with the error of a comparison."""
    if verdict["nats"] is None:
        return "-"
    error = "" if not verdict["error"] else f" ± {verdict['error']:.3f}"
    return f"{verdict['nats']:.3f}{error}"
