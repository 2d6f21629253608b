"""Check what `scalelab ablate` says of tables with blocks, and what it asks, where the truth is known.

    python -m checks.statistics.blocks [--studies=200] [--only=blocks|floors]

A baseline of 1.69 + 406.4 N^-0.34 + 410.7 D^-0.28 (Hoffmann et al. 2022) at widths about the best of each budget, one
to three runs a width. The change is worth m at each budget; beside that it is worth more at one width than at another
(a normal draw a width, the same at all budgets, or one for each). Printed: the share of 90 % intervals that hold m at a
rung and ten times beyond the largest, of wrong verdicts, and of questions about the tokenizer where there is one. Ten
minutes on one core.
"""

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from checks.shared import command_line
from scalelab.__main__ import guarded
from scalelab.api.laws.sides import other_floor
from scalelab.experiments.shared import markdown_table
from scalelab.laws import multiplier

DRAWS = 500
BEYOND = 10.0
DESIGNS: dict[str, tuple[tuple[float, ...], ...]] = {  # widths at each rung, over the best one's N
    "3 rungs of 5, 3, 2": ((0.25, 0.5, 1, 2, 4), (0.5, 1, 2), (1, 2)),
    "4 rungs of 4": ((0.25, 0.5, 1, 2),) * 4,
    "4 rungs of 2": ((0.5, 1),) * 4,
}
EFFECTS = {"alike at all widths": (0.0, 0.0), "by width": (0.004, 0.0), "by width and rung": (0.0, 0.004)}
NOISE = 0.002
FLOOR_COLUMNS = ("losses", "noise", "asked")
TOKENIZERS = {"same floor, m 0.3": 0.3, "same floor, m 0.9": 0.9, "same floor, m 1.3": 1.3, "same floor, m 4": 4.0}


def surface(N: float, C: float) -> float:
    """The baseline's loss at N parameters and C FLOPs."""
    return float(1.69 + 406.4 * N**-0.34 + 410.7 * (C / 6 / N) ** -0.28)


def best_size(C: float) -> float:
    """The N of the least loss at C FLOPs."""
    return float((0.34 * 406.4 / (0.28 * 410.7)) ** (1 / 0.62) * (C / 6) ** (0.28 / 0.62))


def simulate_study(
    design: Sequence[Sequence[float]],
    m: float,
    effects: tuple[float, float],
    seeds: int,
    rng: np.random.Generator,
    with_size: bool = False,
) -> list[dict[str, Any]]:
    """The rows of one table."""
    rows = []
    every = sorted({width for widths in design for width in widths})
    by_width = {width: effects[0] * rng.standard_normal() for width in every}
    if len(every) < 3:  # these blocks are all that is asked about
        by_width = {width: value - float(np.mean(list(by_width.values()))) for width, value in by_width.items()}
    for i, widths in enumerate(design):
        C = 1e18 * 4.0**i
        gain = math.log(surface(best_size(m * C), m * C) / surface(best_size(C), C))
        for width, seed in itertools.product(widths, range(seeds)):
            if not seed:
                of_rung = effects[1] * rng.standard_normal()
            loss = math.log(surface(width * best_size(C), C))
            for side, shift in (("old", 0.0), ("new", gain + by_width[width] + of_rung)):
                loss_here = math.exp(loss + shift + NOISE * rng.standard_normal())
                row = {"side": side, "C": C, "seed": seed, "block": f"width={width:g}", "loss": loss_here}
                rows.append(row | ({"N": width * best_size(C)} if with_size else {}))
    return rows


def score_cell(
    design: Sequence[Sequence[float]],
    m: float,
    effects: tuple[float, float],
    seeds: int,
    studies: int,
    with_size: bool = False,
) -> list[str]:
    """Shares over the studies of one cell."""
    held: dict[str, list[bool]] = {"rung": [], "beyond": []}
    words, widths = [], []
    for i in range(studies):
        rows = simulate_study(design, m, effects, seeds, np.random.default_rng([i, seeds, len(design)]), with_size)
        largest = 1e18 * 4.0 ** (len(design) - 1)
        for target in (largest, BEYOND * largest):
            result = multiplier(rows, baseline="old", target_flops=target, draws=DRAWS)["new"]
            low, high = result.target["interval90"]
            held["rung" if target == largest else "beyond"].append(low <= m <= high)
            if target == largest:
                words.append(result.verdict.split(":")[0])
                widths.append(high / low)
    right = "adopt" if m > 1 else ""
    wrong = [word for word in words if word in ("adopt", "reject") and word != right]
    shares = [np.mean(held["rung"]), np.mean(held["beyond"]), len(wrong) / studies]
    return [*(f"{share:.3f}" for share in shares), f"{np.median(widths):.3f}"]


def score_floors(studies: int) -> list[list[str]]:
    """How often a table of one tokenizer, and of two, is asked about."""
    out = []
    for name, (m, factor, slope) in {
        **{name: (m, 1.0, 0.0) for name, m in TOKENIZERS.items()},
        "same floor, m 1.4 falling to 1.1": (1.4, 1.0, -0.058),
        "same floor, m 2.5 falling to 1.3": (2.5, 1.0, -0.157),
        "same floor, m 0.4 rising to 0.8": (0.4, 1.0, 0.167),
        "same floor, m 2 rising to 4": (2.0, 1.0, 0.167),
        "another tokenizer, losses x 1.15": (1.0, 1.15, 0.0),
        "another tokenizer, losses x 0.85": (1.0, 0.85, 0.0),
        "another tokenizer, losses x 1.05": (1.0, 1.05, 0.0),
    }.items():
        for noise in (0.001, 0.005):
            asked = []
            for i in range(studies):
                rng = np.random.default_rng(i)
                rows = []
                for j, seed in itertools.product(range(4), range(3)):
                    C = 1e18 * 4.0**j
                    at = m * (C / 1e18) ** slope * C
                    for side, loss in (("old", surface(best_size(C), C)), ("new", factor * surface(best_size(at), at))):
                        loss *= math.exp(noise * rng.standard_normal())
                        rows.append({"side": side, "C": C, "seed": seed, "loss": loss})
                asked.append(bool(other_floor(multiplier(rows, baseline="old", draws=50)["new"], "old")))
            out.append([name, f"{noise:.1%}", f"{np.mean(asked):.3f}"])
    return out


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return guarded("blocks", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.blocks", __doc__)
    parser.add_argument("--only", choices=("blocks", "floors"), help="one of the two tables (default: both)")
    parser.add_argument("--studies", type=int, default=200, metavar="K", help="of each cell (default: 200)")
    options = parser.parse_args(list(argv))
    if options.only == "floors":
        print("\n".join(markdown_table(FLOOR_COLUMNS, score_floors(options.studies))))
        return 0
    rows = []
    for (design, widths), (effect, sizes), m, seeds in itertools.product(
        DESIGNS.items(), EFFECTS.items(), (1.0, 1.15), (1, 3)
    ):
        rows.append([design, effect, f"{m:g}", str(seeds), *score_cell(widths, m, sizes, seeds, options.studies)])
    for m in (1.0, 1.15):
        cell = score_cell(DESIGNS["4 rungs of 4"], m, EFFECTS["by width"], 1, options.studies, with_size=True)
        rows.append(["4 rungs of 4, N known", "by width", f"{m:g}", "1", *cell])
    head = (
        "blocks",
        "the change",
        "m",
        "runs a block",
        "held at a rung",
        "held beyond",
        "wrong verdicts",
        "high / low",
    )
    print("\n".join(markdown_table(head, rows)))
    if options.only is None:
        print("\n".join(markdown_table(FLOOR_COLUMNS, score_floors(options.studies))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
