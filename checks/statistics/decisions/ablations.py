"""Universes of ablation studies: tables for `scalelab ablate TABLE`, and the multipliers that made them.

A universe is an entry of `open/ablations.json` (or of the sealed half). The baseline's loss at C FLOPs is E + (sum of
a (C/unit)^-alpha)^gamma, times exp(bend); a variant of multiplier m has the baseline's loss at m C, times exp(its own
bend). Where a bend makes m another one, `true_multiplier` inverts the baseline's curve.
"""

import csv
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import brentq

Universe = Mapping[str, Any]
BASELINE = "base"
SHAPES = {  # of a bend, by the position from the first rung (0) to the last (1), and beyond
    "hump": lambda u: math.sin(math.pi * u),
    "wave": lambda u: math.sin(2 * math.pi * u),
    "knee": lambda u: 2 * max(0.0, u - 0.5),
}


def rung_flops(universe: Universe) -> list[float]:
    """Budgets of the ladder."""
    first, factor, count = universe["ladder"]
    return [float(f"{first * factor**i:.4g}") for i in range(count)]


def baseline_loss(universe: Universe, flops: float) -> float:
    """The baseline's loss at so many FLOPs, without noise."""
    law = universe["law"]
    reducible = sum(a * (flops / law["unit"]) ** -alpha for a, alpha in law["terms"])
    return float((law["E"] + reducible ** law.get("gamma", 1.0)) * math.exp(_bend(universe, BASELINE, flops)))


def variant_loss(universe: Universe, variant: Universe, flops: float) -> float:
    """A variant's loss, without noise."""
    reached = baseline_loss(universe, flops * _planned_multiplier(universe, variant, flops))
    return (reached + variant.get("other_floor", 0.0)) * math.exp(_bend(universe, variant["name"], flops))


def true_multiplier(universe: Universe, variant: Universe, flops: float) -> float:
    """The m with which the baseline at m C has the variant's loss at C."""
    loss = variant_loss(universe, variant, flops)
    gap = lambda log_m: baseline_loss(universe, flops * math.exp(log_m)) - loss  # noqa: E731 - a root is sought of it
    return math.exp(brentq(gap, -3.0, 3.0, xtol=1e-12))


def _planned_multiplier(universe: Universe, variant: Universe, flops: float) -> float:
    """The m of a variant before bends: constant, a line in logs, or values by rung with straight lines between."""
    rungs = np.log(rung_flops(universe))
    if "by_rung" in variant:
        values = np.log(variant["by_rung"])
        if math.log(flops) > rungs[-1]:  # beyond the ladder the last line goes on
            slope = (values[-1] - values[-2]) / (rungs[-1] - rungs[-2])
            return math.exp(values[-1] + slope * (math.log(flops) - rungs[-1]))
        return math.exp(float(np.interp(math.log(flops), rungs, values)))
    return float(variant["m"] * math.exp(variant.get("slope", 0.0) * (math.log(flops) - rungs[0])))


def _bend(universe: Universe, side: str, flops: float) -> float:
    bend = universe.get("bends", {}).get(side)
    if not bend:
        return 0.0
    rungs = rung_flops(universe)
    position = math.log(flops / rungs[0]) / math.log(rungs[-1] / rungs[0])
    return float(bend["size"] * SHAPES[bend["shape"]](position))


def simulate_rows(universe: Universe, half: int, study: int) -> list[dict[str, Any]]:
    """The rows of one study; `half` and `study` are its seeds."""
    random = np.random.default_rng([half, universe["number"], study])
    flops, seeds = rung_flops(universe), universe["seeds"]
    noise = np.broadcast_to(universe["noise"], len(flops))
    sides = [{"name": BASELINE}, *universe["variants"]]
    luck = universe.get("seed_effect", 0.0) * random.standard_normal((len(sides), seeds))
    rows = []
    for i, C in enumerate(flops):
        shared = random.standard_normal(seeds)
        for j, side in enumerate(sides):
            own, correlation = random.standard_normal(seeds), universe.get("correlation", 0.0)
            errors = noise[i] * (correlation**0.5 * shared + (1 - correlation) ** 0.5 * own) + luck[j]
            repeats = random.standard_normal((seeds, universe.get("repeats", 1))) * universe.get("repeat_noise", 0.0)
            if [side["name"], i] in universe.get("missing", []):
                continue
            loss = variant_loss(universe, side, C) if j else baseline_loss(universe, C)
            rows += [
                {"side": side["name"], "C": C} | own_columns | {"loss": value}
                for own_columns, value in _spread(universe, side["name"], i, loss * np.exp(errors[:, None] + repeats))
            ]
    return rows


def _spread(universe: Universe, side: str, rung: int, losses: np.ndarray) -> list[tuple[dict[str, Any], float]]:
    """(seed or block column, loss) of the runs of one side and rung; a block's value has a loss of its own."""
    block = universe.get("block")
    cells = []
    for k, repeated in enumerate(losses):
        own, factor = {"seed": k}, 1.0
        if block:
            value = block["values"][k]
            own = {block["column"]: value}
            factor = 1 + block["curvature"] * math.log(value / block["best"]) ** 2
            if [side, rung, k] in block.get("missing", []):
                continue
        cells += [(own, float(loss * factor)) for loss in repeated]
    return cells


def write_table(rows: list[dict[str, Any]], path: pathlib.Path) -> pathlib.Path:
    """Write rows as CSV, losses to five digits after the point."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"C": f"{row['C']:.4g}", "loss": f"{row['loss']:.5f}"} for row in rows)
    return path


def judged_rung(universe: Universe, variant: Universe) -> float:
    """The largest budget that both sides have: where the verdict is given."""
    missing = universe.get("missing", [])
    return max(
        C
        for i, C in enumerate(rung_flops(universe))
        if [BASELINE, i] not in missing and [variant["name"], i] not in missing
    )


def allowed_verdicts(m: float, worth: float = 1.02) -> tuple[str, ...]:
    """First words of the verdicts that a true m allows: an effect of less than `worth` is not one that matters."""
    if 1 / worth <= m <= worth:
        return ("no difference", "undecided")
    return ("adopt" if m > 1 else "reject", "undecided")
