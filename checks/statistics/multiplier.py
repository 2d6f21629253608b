"""Check the multiplier's intervals and verdicts on simulated ablations in which the truth is known.

    python -m checks.statistics.multiplier [--studies=200] [--workdir=runs/multiplier] [--quick] [--json[=PATH]]

N studies of each cell: a universe (what m is at each scale), a ladder (rungs, seeds) and a correlation of pairs. The
baseline is 1.2 + 1.4 (C / 1e11)^-0.15, the ladder spans 40 times the compute, a run's loss scatters by 0.5 % over
seeds, and the target is the largest rung or ten times beyond it. Writes `checks/results/multiplier.json` and `.md`;
--quick runs 40 studies of each and writes into the workdir instead. Ten minutes of 200 on one core. Run it again to
resume: each cell is stored when it ends.

    python -m checks.statistics.multiplier --quick
"""

import itertools
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path, print_status
from scalelab.experiments.shared import markdown_table, publish_result
from scalelab.laws import multiplier
from scalelab.laws.use.multiplier.design import smallest_effect
from scalelab.record import records

STUDIES, QUICK_STUDIES, DRAWS = 200, 40, 500
LAW = {"E": 1.2, "A": 1.4, "alpha": 0.15, "unit": 1e11}
SPAN, NOISE, BEYOND = 40.0, 0.005, 10.0
LADDERS = ((3, 2), (3, 3), (3, 5), (4, 3), (5, 3), (5, 5))  # rungs, seeds
CORRELATIONS = (0.0, 0.5)
EFFECTS = (0.01, 0.02, 0.05, 0.10, 0.20)
LogM = Callable[[float], float]
UNIVERSES: dict[str, LogM] = {  # log m as a function of log(C / 1e11)
    "no difference": lambda x: 0.0,
    "constant, 1.1": lambda x: math.log(1.1),
    "falling to 1, 1 + 0.4 x^-0.25": lambda x: math.log1p(0.4 * math.exp(-0.25 * x)),
    "crossing 1, 1.15 x^-0.1": lambda x: math.log(1.15) - 0.1 * x,
}
MEASURES = ("each rung", "trend", "at the largest rung", "ten times beyond")


def loss_at(flops: float) -> float:
    """The baseline's loss."""
    return LAW["E"] + LAW["A"] * (flops / LAW["unit"]) ** -LAW["alpha"]


def simulate_study(
    log_m: LogM, rungs: int, seeds: int, correlation: float, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """The rows of one ablation."""
    rows = []
    for flops in LAW["unit"] * np.geomspace(1, SPAN, rungs):
        reached = loss_at(float(flops)), loss_at(float(flops) * math.exp(log_m(math.log(flops / LAW["unit"]))))
        for seed in range(seeds):
            shared, *own = rng.standard_normal(3)
            for side, loss, z in zip(("baseline", "variant"), reached, own, strict=True):
                error = NOISE * (correlation**0.5 * shared + (1 - correlation) ** 0.5 * z)
                rows.append({"side": side, "C": float(flops), "seed": seed, "loss": loss * math.exp(error)})
    return rows


def simulate_cell(log_m: LogM, rungs: int, seeds: int, correlation: float, studies: int) -> dict[str, Any]:
    """Shares of intervals that hold the truth and of verdicts, over the studies of one cell."""
    held: dict[str, list[bool]] = {name: [] for name in MEASURES}
    verdicts = []
    largest = LAW["unit"] * SPAN
    slope = (log_m(math.log(SPAN)) - log_m(0.0)) / math.log(SPAN)
    for i in range(studies):
        rng = np.random.default_rng([i, rungs, seeds])
        rows = simulate_study(log_m, rungs, seeds, correlation, rng)
        for name, target in (("at the largest rung", largest), ("ten times beyond", largest * BEYOND)):
            result = multiplier(rows, baseline="baseline", target_flops=target, draws=DRAWS)["variant"]
            truth = math.exp(log_m(math.log(target / LAW["unit"])))
            held[name].append(_holds(result.target["interval90"], truth))
            if target == largest:
                verdicts.append(result.verdict.split()[0].rstrip(":"))
                held["trend"].append(_holds(result.trend["interval90"], slope))
                for rung in result.rungs:
                    true = math.exp(log_m(math.log(rung.C / LAW["unit"])))
                    held["each rung"].append(_holds(rung.interval90["flops"], true))
    shares = {name: float(np.mean(values)) for name, values in held.items()}
    return shares | {word: verdicts.count(word) / studies for word in ("adopt", "reject", "undecided")}


def _holds(interval: Sequence[float] | None, truth: float) -> bool:
    return interval is not None and interval[0] <= truth <= interval[1]


def list_cells() -> dict[str, dict[str, Any]]:
    """{name: what `simulate_cell` needs} of all cells: universes, then effects of growing size for the power."""
    cells = {}
    for (name, log_m), (rungs, seeds), rho in itertools.product(UNIVERSES.items(), LADDERS, CORRELATIONS):
        grid = {"rungs": rungs, "seeds": seeds, "correlation": rho}
        cells[f"{name}; {rungs} x {seeds}, {rho:g}"] = {"universe": name, "log_m": log_m} | grid
    for effect, (rungs, seeds) in itertools.product(EFFECTS, LADDERS):
        grid = {"rungs": rungs, "seeds": seeds, "correlation": 0.5}
        log_m = lambda x, effect=effect: math.log1p(effect)  # noqa: E731 - one for each effect
        cells[f"power {effect:.0%}; {rungs} x {seeds}"] = {"universe": f"+{effect:.0%}", "log_m": log_m} | grid
    return cells


def run_cells(folder: pathlib.Path, studies: int) -> dict[str, dict[str, Any]]:
    """{cell: what it is, and its shares}; a cell that is stored is not simulated again."""
    folder.mkdir(parents=True, exist_ok=True)
    path, cells = folder / f"cells-{studies}.json", list_cells()
    done = records.read_json(path) if path.exists() else {}
    for i, (name, cell) in enumerate(cells.items(), 1):
        if name not in done:
            grid = {key: cell[key] for key in ("rungs", "seeds", "correlation")}
            done[name] = {"universe": cell["universe"]} | grid | simulate_cell(cell["log_m"], **grid, studies=studies)
            records.write_json(path, done)
            print_status(f"{i} of {len(cells)} cells: {name}: {describe_cell(done[name])}")
    return {name: done[name] for name in cells}


def describe_cell(cell: Mapping[str, Any]) -> str:
    """A cell's shares in a few words."""
    return ", ".join(f"{name} {cell[name]:.1%}" for name in (*MEASURES, "adopt", "reject"))


def make_page(result: Mapping[str, Any]) -> str:
    """The page of the result."""
    cells = result["cells"].values()
    columns = ("universe", "rungs x seeds", "correlation", *MEASURES, "adopt", "reject")
    table = [
        [c["universe"], f"{c['rungs']} x {c['seeds']}", f"{c['correlation']:g}"]
        + [f"{c[name]:.1%}" for name in (*MEASURES, "adopt", "reject")]
        for c in cells
        if not c["universe"].startswith("+")
    ]
    ladders = [f"{rungs} x {seeds}" for rungs, seeds in LADDERS]
    power = [
        [effect, *(f"{c['adopt']:.1%}" for c in cells if c["universe"] == effect)]
        for effect in dict.fromkeys(c["universe"] for c in cells if c["universe"].startswith("+"))
    ]
    planned = ["planned for 80 %", *(_planned(rungs, seeds) for rungs, seeds in LADDERS)]
    setting = (
        f"{result['studies']} studies of each row: a baseline of 1.2 + 1.4 (C / 1e11)^-0.15, a ladder over {SPAN:g} "
        f"times the compute, {NOISE:.1%} of scatter over seeds, pairs whose losses correlate as said."
    )
    lines = [
        "# Intervals and verdicts of the multiplier, in simulated ablations",
        "",
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        f"{setting} The share of 90 % intervals that hold the truth, and of verdicts at the largest rung. A share of "
        f"{result['studies']} is known to {100 * (0.25 / result['studies']) ** 0.5:.0f} points.",
        "",
        *markdown_table(columns, table),
        "",
        "Without a difference, adopt and reject are wrong verdicts: at most 5 % of each are due. At the largest rung "
        "its own interval decides; ten times beyond, a curve that may bend, whose intervals are wide for that.",
        "",
        "## Power: share of `adopt`, by what the change is worth (correlation 0.5)",
        "",
        *markdown_table(("m - 1", *ladders), [*power, planned]),
        "",
        "One seed gives no interval and no verdict but undecided. `planned`: the effect that `scalelab ablate --plan` "
        "names for this ladder today; the shares are of the date above.",
        "",
    ]
    return "\n".join(lines)


def _planned(rungs: int, seeds: int) -> str:
    flops = (LAW["unit"] * np.geomspace(1, SPAN, rungs)).tolist()
    least = smallest_effect(flops, seeds, NOISE, 0.5, LAW, flops[-1])
    return "-" if least is None else f"{least - 1:+.1%}"


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return guarded("multiplier", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.multiplier", __doc__)
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/multiplier"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="40 studies of each cell, nothing committed")
    parser.add_argument("--studies", type=int, default=STUDIES, metavar="N", help=f"of each cell (default {STUDIES})")
    options = parser.parse_args(list(argv))
    studies = QUICK_STUDIES if options.quick else options.studies
    cells = run_cells(options.workdir, studies)
    result = result_header("statistics.multiplier", argv) | {"studies": studies, "cells": cells}
    place = options.workdir if options.quick else RESULTS
    return publish_result(place, "multiplier", result, make_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
