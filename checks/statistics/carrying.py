"""Check how `scalelab ablate` carries tuned learning rates to its rungs, on bowls whose best is known.

    python -m checks.statistics.carrying [--workdir=runs/carrying] [--quick] [--json[=PATH]]

200 studies of each bowl and noise: two sides, four rungs over 8 times the compute, trials as `ablate` takes them at all
rungs but the largest. The best learning rate lies up to two octaves off the config's own, moves with compute (sd of the
exponent 0.25) and scatters by a tenth of an octave. Scored: what the carried values cost; how often a study whose
values all cost less than 1 % is told that its own trials speak against one of them; how often values that were moved
are named. Writes `checks/results/carrying.json` and `.md`; --quick: 20 studies, into the workdir. Three minutes on one
core.

    python -m checks.statistics.carrying --quick
"""

import dataclasses
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path
from scalelab.experiments.shared import markdown_table, publish_result
from scalelab.laws.use.settings.best import fit_best_settings
from scalelab.sweep.ablate import carry, tuning

STUDIES, QUICK_STUDIES = 200, 20
NOISES = (0.002, 0.006, 0.01, 0.015, 0.02)  # of a loss, relative
KEY, KEYS = "lr", ("optim.peak_lr",)
FLOPS = (1e10, 2e10, 4e10, 8e10)
DIVERGES = 3.0  # octaves above the best
SMALL, LARGE = carry.MOST_LOST, 0.03
MOVED = (1.5, -2.0)  # octaves
Bowl = Callable[[float], float]  # what log loss rises by, so many octaves off the best
PARABOLA: Bowl = lambda d: 0.01 * d * d  # noqa: E731
STEEP: Bowl = lambda d: 0.01 * d * d - 0.004 * min(d, 0.0) ** 3  # noqa: E731
CLIFF: Bowl = lambda d: 0.005 * d * d + 0.08 * max(d - 0.5, 0.0)  # noqa: E731
BOWLS: dict[str, tuple[Bowl, Bowl]] = {  # of the baseline and of the variant
    "parabolas": (PARABOLA, PARABOLA),
    "steep below": (STEEP, STEEP),
    "a cliff above": (CLIFF, CLIFF),
    "a narrow and a wide one": (lambda d: 0.03 * d * d, lambda d: 0.006 * d * d),
}


def draw_best(rng: np.random.Generator) -> dict[tuple[str, float], float]:
    """The best learning rate of each (side, budget), in octaves above the config's own."""
    middle, exponent = rng.uniform(-2, 2), rng.normal(0, 0.25)
    return {
        (side, flops): middle + shift + exponent * math.log2(flops / FLOPS[0]) + rng.normal(0, 0.1)
        for side, shift in zip("AB", rng.normal(0, 0.7, 2), strict=True)
        for flops in FLOPS
    }


def run_trials(
    best: Mapping[tuple[str, float], float], bowls: Mapping[str, Bowl], noise: float, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """The rows of all tuning trials: a grid, then widened alike, as `ablate` does."""
    losses: dict[tuning.Cell, tuning.Losses] = {(side, flops): {} for flops in FLOPS[:-1] for side in "AB"}
    wanted = {cell: tuning.first_points(KEYS) for cell in losses}
    for _ in range(1 + tuning.MOST_WIDENINGS):
        for (side, flops), points in wanted.items():
            for point in points:
                off = math.log2(point[0]) - best[side, flops]
                loss = 3 * math.exp(bowls[side](off) + noise * rng.standard_normal())
                losses[side, flops][point] = math.inf if off > DIVERGES else loss
        wanted = {cell: [point] for cell, point in tuning.widen_alike(KEYS, losses).items()}
    return [
        {"side": side, "C": flops, "loss": loss, KEY: point[0]}
        for (side, flops), tried in losses.items()
        for point, loss in tried.items()
    ]


def fit_alone(rows: Sequence[Mapping[str, Any]], side: str) -> Any:
    """A side's optima from its own trials alone, without rungs that hardly bend: the rule until 2026-11-26."""
    ended = [row for row in rows if row["side"] == side and math.isfinite(row["loss"])]
    best = fit_best_settings({key: [row[key] for row in ended] for key in (KEY, "C", "loss")}, [KEY], ["C"])
    used = tuple(group for group in best.groups if group.optimum.status == "used")
    return dataclasses.replace(best, groups=used or best.groups)


def score_study(bowls: Mapping[str, Bowl], noise: float, rng: np.random.Generator) -> dict[str, Any]:
    """Costs [side, rung] of the carried values and of those by the former rule, and what the trials speak against."""
    best = draw_best(rng)
    rows = run_trials(best, bowls, noise, rng)
    fits = carry.fit_sides(rows, [KEY])
    scores: dict[str, Any] = {"cost": [], "before": [], "named": [], "moved": {moved: ([], []) for moved in MOVED}}
    for side in "AB":
        lines = {
            name: carry.carry_line(best_of, 0, KEY)[0]
            for name, best_of in {"cost": fits[side], "before": fit_alone(rows, side)}.items()
        }

        def cost(flops: float, value: float, side: str = side) -> float:
            return bowls[side](math.log2(value) - best[side, flops])

        for name, line in lines.items():
            scores[name].append([cost(flops, line(flops)[0]) for flops in FLOPS])
        own = [row for row in rows if row["side"] == side]
        sd = fits[side].noise.sd
        scores["named"] += carry.spoken_against(side, KEY, own, sd, lines["cost"])
        for moved, (named, costs) in scores["moved"].items():
            line = lambda flops, factor=2.0**moved, at=lines["cost"]: (at(flops)[0] * factor, 0.0, 0.0)  # noqa: E731
            named += carry.spoken_against(side, KEY, own, sd, line)
            costs += [cost(flops, line(flops)[0]) for flops in FLOPS[:-1]]
    return scores


def score_cell(bowls: Sequence[Bowl], noise: float, studies: int) -> dict[str, Any]:
    """The scores of so many studies of a pair of bowls at a noise."""
    pair = dict(zip("AB", bowls, strict=True))
    scores = [score_study(pair, noise, np.random.default_rng([i, round(1e4 * noise)])) for i in range(studies)]
    costs, before = (np.array([each[name] for each in scores]) for name in ("cost", "before"))
    sound = [each for each, cost in zip(scores, costs, strict=True) if cost[..., :-1].max() < SMALL]
    missed = [each["moved"][moved][0] for each in scores for moved in MOVED if max(each["moved"][moved][1]) > LARGE]
    return {
        "cost": float(costs[..., :-1].mean()), "cost_before": float(before[..., :-1].mean()),
        "largest": float(costs[..., -1].mean()), "largest_before": float(before[..., -1].mean()),
        "above": float((costs[..., :-1] > SMALL).mean()), "above_before": float((before[..., :-1] > SMALL).mean()),
        "sound": len(sound), "accused": sum(bool(each["named"]) for each in sound),
        "missed": len(missed), "found": sum(bool(each) for each in missed),
    }  # fmt: skip


def make_page(result: Mapping[str, Any]) -> str:
    """The page of the result."""
    table = [
        [
            cell["bowl"],
            f"{cell['noise']:.1%}",
            f"{cell['cost_before']:.2%}, {cell['cost']:.2%}",
            f"{cell['above_before']:.1%}, {cell['above']:.1%}",
            f"{cell['largest_before']:.2%}, {cell['largest']:.2%}",
            f"{cell['accused']} of {cell['sound']}",
            f"{cell['found']} of {cell['missed']}",
        ]
        for cell in result["cells"]
    ]
    accused, sound, found, missed = (
        sum(c[k] for c in result["cells"]) for k in ("accused", "sound", "found", "missed")
    )
    head = ("bowl", "noise", "mean cost", "rungs above 1 %", "largest rung", "accused", "found")
    return "\n".join(
        [
            "# Tuned values carried to the rungs, where the best is known",
            "",
            f"`{result['command']}`, {result['date']}, {result['machine']}",
            "",
            f"{result['studies']} studies a row. Costs are shares of the loss, by the former rule (each side alone, "
            "rungs that hardly bend left out) and by today's. *Accused*: studies in which a value that costs less than "
            "1 % at every tuned rung is said to be spoken against by its own trials. *Found*: the same of values that "
            f"were moved by {MOVED[0]:g} or {MOVED[1]:g} octaves and cost more than {LARGE:.0%} at some rung.",
            "",
            *markdown_table(head, table),
            "",
            f"In all, {accused} of {sound} sound studies were accused, and {found} of {missed} found.",
            "",
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return guarded("carrying", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.carrying", __doc__)
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/carrying"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="20 studies of each")
    options = parser.parse_args(list(argv))
    studies = QUICK_STUDIES if options.quick else STUDIES
    cells = [
        {"bowl": name, "noise": noise} | score_cell(bowls, noise, studies)
        for name, bowls in BOWLS.items()
        for noise in NOISES
    ]
    result = result_header("statistics.carrying", argv) | {"studies": studies, "cells": cells}
    place = options.workdir if options.quick else RESULTS
    return publish_result(place, "carrying", result, make_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
