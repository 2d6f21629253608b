"""scalelab noise RUN [--step=K] [--batches=N]

Measure the gradient noise scale of a run at its saved steps, on its own data: the batch at which noise and gradient of
a step are equally large (McCandlish et al. 2018). Much smaller batches waste steps, much larger ones waste tokens: to a
given loss a batch B takes 1 + B_noise/B times the fewest steps, and 1 + B/B_noise times the fewest tokens. This holds
at the best learning rate of each batch, as far as the loss is a quadratic; expect it within a small factor.

Estimated from gradients of single sequences in the batches that follow the step: tr Sigma and |G|^2 without bias, their
ratio taken last, with a 95 % interval by jackknife and Fieller. Without an upper end the gradient is not told apart
from zero: ask for more --batches. Under adam and adamw also B_adam, with gradients divided by the fourth root of Adam's
second moment (the coordinates in which Adam without momentum is gradient descent), without embedding and head, where
rare tokens would outweigh all. Nothing in the run is changed.

Exit code: 0 measured, 2 bad input (no checkpoint, no data, a model that has diverged).

    scalelab noise runs/mine --batches=32
"""

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scalelab import api
from scalelab.api.defaults import NOISE_BATCHES
from scalelab.cli.parser import Parser, add_trust_option, emit_json, print_status, print_table
from scalelab.cli.progress import WorkProgress

if TYPE_CHECKING:
    from scalelab.diagnose.noise.estimate import NoiseScale
    from scalelab.diagnose.noise.measure import StepNoise


def main(argv: list[str]) -> int:
    """Measure and print; exit codes in the module's docstring."""
    parser = Parser("noise", __doc__)
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("--step", type=int, metavar="K", help="a saved step (default: all that are saved)")
    batches = f"batches of the run that each step is measured on (default: {NOISE_BATCHES})"
    parser.add_argument("--batches", type=_count, default=NOISE_BATCHES, metavar="N", help=batches)
    add_trust_option(parser)
    options = parser.parse_args(argv)

    with WorkProgress() as progress:
        rows = api.noise(options.run, options.step, options.batches, progress=progress.update, note=print_status)
    if options.json != "-":
        print_table(*_table(rows))
        print("\n".join(_lines(rows[-1])))
    emit_json({"run": options.run, "steps": [_as_json(row) for row in rows]}, options.json)
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of batches, at least 1")
    return int(text)


def _table(rows: "Sequence[StepNoise]") -> tuple[list[str], list[list[str]]]:
    columns = ["step", "loss", "B_simple in tokens", "95 % interval", "in sequences", "batch", "batch / B_simple"]
    if has_adam := any(row.adam for row in rows):
        columns += ["B_adam in tokens", "95 % interval"]
    cells = []
    for row in rows:
        tokens, simple = row.sequence_tokens, row.simple
        line = [str(row.step), f"{row.loss:.4f}", f"{simple.scale * tokens:,.0f}", _interval(simple, tokens),
                f"{simple.scale:,.1f}", f"{row.batch * tokens:,.0f}", f"{row.batch / simple.scale:.3g}"]  # fmt: skip
        if has_adam:
            line += [f"{row.adam.scale * tokens:,.0f}", _interval(row.adam, tokens)] if row.adam else ["", ""]
        cells.append(line)
    return columns, cells


def _interval(noise: "NoiseScale", tokens: float) -> str:
    if math.isinf(noise.high):
        return f"above {noise.low * tokens:,.0f}"
    return f"{noise.low * tokens:,.0f} to {noise.high * tokens:,.0f}"


def _lines(row: "StepNoise") -> list[str]:
    """Describe what the last row implies for the run's batch, and the data it was computed from."""
    from scalelab.diagnose.noise.estimate import step_factor, token_factor

    simple, per = row.simple, row.sequence_tokens
    lines = [
        f"step {row.step}, {row.n} sequences of {per:,.4g} predicted tokens: |G|^2 = {simple.signal:.4g} +- "
        f"{simple.signal_error:.2g}, tr Sigma = {simple.trace:.4g} +- {simple.trace_error:.2g} of a sequence "
        f"({simple.trace * per:.4g} +- {simple.trace_error * per:.2g} of a token)"
    ]
    if math.isfinite(simple.scale):
        lines.append(
            f"at this scale a batch of {row.batch * per:,.0f} tokens takes {step_factor(row.batch, simple.scale):.3g} "
            f"times the fewest steps and {token_factor(row.batch, simple.scale):.3g} times the fewest tokens"
        )
    return lines


def _as_json(row: "StepNoise") -> dict[str, Any]:
    """Convert a step's numbers to JSON, with the scales also in tokens."""
    named = {"simple": row.simple, "adam": row.adam}
    return row._asdict() | {
        name: each
        and each._asdict()
        | {f"{end}_tokens": getattr(each, end) * row.sequence_tokens for end in ("scale", "low", "high")}
        for name, each in named.items()
    }
