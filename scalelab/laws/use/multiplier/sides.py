"""Rows of runs as rungs: both sides' losses at each budget, seed by seed or block by block; what one side lacks."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.use.multiplier.blocks import Split, pair_blocks
from scalelab.laws.use.multiplier.cells import (
    NEAR,
    Cell,
    Pair,
    Placed,
    Row,
    distinct_budgets,
    geometric_mean,
    have_same_seeds,
    make_cell,
    place_rows,
)

UNIT_SLACK = 0.05  # a ratio of losses this near to 1 / ln 2 at every rung is one of units
NEEDED = ("side", "C", "loss")
COUNTS = {"tokens": "tokens", "N": "parameters"}  # that a row may have, and what they count
MOST_NAMED = 6  # of the budgets or cells that a note lists


def read_pairs(rows: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, Pair]:
    """{variant: Pair} from rows with `side`, `C` (FLOPs), `loss` (nats/token; inf or nan: diverged) and, where known,
    `seed`, `block` (a label, `dim=512`), `N`, `tokens`, `tokens_per_s`. BadInput for rows that can't be compared.
    """
    _check_rows(rows, baseline)
    sides: dict[str, list[Row]] = {}
    for row in rows:
        sides.setdefault(str(row["side"]), []).append(row)
    budgets = distinct_budgets([float(row["C"]) for row in sides[baseline]])
    first = place_rows(sides[baseline], budgets)
    return {name: _read_pair(name, its, budgets, first, baseline) for name, its in sides.items() if name != baseline}


def _read_pair(name: str, rows: Sequence[Row], budgets: Sequence[float], first: Placed, baseline: str) -> Pair:
    """One variant beside the baseline's rows at their budgets."""
    second = place_rows(rows, budgets, [row for there in first.rungs for row in there])
    if not any(second.rungs):
        raise BadInput(
            f"{name} has a run at {float(second.strays[0]['C']):.4g} FLOPs and {baseline} none near it, nor near any "
            f"other run of {name}; {baseline}'s budgets: {', '.join(f'{budget:.3g}' for budget in budgets)}; train one "
            "of them on both sides"
        )
    splits = [
        [_split(side, budget, there) for budget, there in zip(budgets, placed.rungs, strict=True)]
        for side, placed in ((baseline, first), (name, second))
    ]
    blocked = any(label for rung in splits[0] for label in rung)
    pair = pair_blocks(name, *splits) if blocked else _pair_seeds(name, budgets, *splits)
    if not any(rung.losses or rung.diverged for rung in pair.variant):
        raise BadInput(
            f"{name} and {baseline} share no block at any budget, so nothing is compared alike; --block=none compares "
            "all runs of a budget"
        )
    _refuse_other_unit(name, pair.variant, baseline, pair.baseline)
    lacking = _notes_on_missing(name, budgets, splits, second.strays, baseline)
    return dataclasses.replace(pair, notes=(*lacking, *_notes_on_tokens(pair, baseline), *pair.notes))


def _split(side: str, budget: float, rows: Sequence[Row]) -> Split:
    """The cells of a side at a budget by block; one of the label "" without blocks."""
    blocks: dict[str, list[Row]] = {}
    for row in rows:
        blocks.setdefault(str(row.get("block") or ""), []).append(row)
    return {label: make_cell(side, budget, there, label) for label, there in blocks.items()}


def _pair_seeds(name: str, budgets: Sequence[float], one: Sequence[Split], other: Sequence[Split]) -> Pair:
    """The pair where all runs of a budget are seeds."""
    ones, others = (
        tuple(rung.get("", Cell({}, 0, budget, None, {})) for budget, rung in zip(budgets, rungs, strict=True))
        for rungs in (one, other)
    )
    return Pair(name, ones, others, have_same_seeds(ones, others))


def _notes_on_missing(
    name: str, budgets: Sequence[float], splits: Sequence[Sequence[Split]], strays: Sequence[Row], baseline: str
) -> list[str]:
    """Lines on budgets and blocks that one side lacks: they are left out."""
    notes, (one, other) = [], splits
    if lacking := [f"{budget:.4g}" for budget, there in zip(budgets, other, strict=True) if not there]:
        notes.append(
            f"{name} has no run at {_listed(lacking)} FLOPs: not compared there, though {baseline}'s count for its law"
        )
    if strays:
        places = distinct_budgets([float(row["C"]) for row in strays])
        notes.append(
            f"{baseline} has no run at {_listed([f'{place:.4g}' for place in places])} FLOPs: {len(strays)} runs of "
            f"{name} are left out"
        )
    alone = [
        f"{label} at {budget:.4g} ({lacks})"
        for budget, a, b in zip(budgets, one, other, strict=True)
        if a and b
        for label in dict.fromkeys((*a, *b))
        for lacks in [side for side, cells in ((baseline, a), (name, b)) if label not in cells]
    ]
    if alone:
        notes.append(f"left out, as the side in brackets has no such run: {_listed(alone)}")
    return notes


def _listed(items: Sequence[str]) -> str:
    more = len(items) - MOST_NAMED
    return ", ".join(items[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _notes_on_tokens(pair: Pair, baseline: str) -> list[str]:
    """A line where the sides have other FLOPs a token: at what each multiplier compares them, and which decides."""
    cells = [(pair.baseline[i], pair.variant[i]) for i in pair.compared]
    ratios = [
        math.log(other.flops) - math.log(other.tokens) - math.log(one.flops) + math.log(one.tokens)
        for one, other in cells
        if one.tokens and other.tokens
    ]
    compute = [math.log(other.flops) - math.log(one.flops) for one, other in cells]
    if not ratios:
        if compute and max(map(abs, compute)) > NEAR:
            return [
                f"{pair.name} has other FLOPs than {baseline} at a rung: compared at equal compute by {baseline}'s law"
            ]
        return []
    if max(map(abs, ratios)) <= NEAR:
        return []
    factor = geometric_mean([math.exp(ratio) for ratio in ratios])
    trained = "tokens" if max(map(abs, compute)) > NEAR else "compute"
    return [
        f"{pair.name} has {factor:.3g} times the FLOPs a token of {baseline}, trained at equal {trained}: m in flops "
        f"compares at equal compute and decides, m in tokens at equal tokens; {baseline}'s law takes one to the other"
    ]


def _check_rows(rows: Sequence[Mapping[str, Any]], baseline: str) -> None:
    for i, row in enumerate(rows, 1):
        for key in NEEDED:
            if row.get(key) is None:
                raise BadInput(f"row {i} has no {key}: every run needs {', '.join(NEEDED)} (a diverged one: loss=nan)")
        if not (math.isfinite(float(row["C"])) and float(row["C"]) > 0):
            raise BadInput(f"row {i}: C={row['C']!r} is not a number of FLOPs above zero")
        if not math.isfinite(float(row["loss"])):
            continue
        if float(row["loss"]) <= 0:
            raise BadInput(f"row {i}: loss={row['loss']!r} is not above zero; losses are nats a token")
        for key, what in COUNTS.items():
            if row.get(key) is not None and not (math.isfinite(row[key]) and row[key] > 0):
                raise BadInput(f"row {i}: {key}={row[key]!r} is not a number of {what} above zero")
    names = list(dict.fromkeys(str(row["side"]) for row in rows))
    if baseline not in names:
        raise BadInput(f"no run has side {baseline!r}{nearest_hint(baseline, names)}")
    if len(names) < 2:
        raise BadInput(f"all runs are of side {baseline!r}: a variant is needed beside it")


def _refuse_other_unit(side: str, cells: Sequence[Cell], baseline: str, others: Sequence[Cell]) -> None:
    """BadInput where one side's losses are the other's times 1 / ln 2 at every rung: bits beside nats."""
    ratios = [cell.mean / other.mean for cell, other in zip(cells, others, strict=True) if cell.runs and other.runs]
    for factor, in_bits in ((1 / math.log(2), side), (math.log(2), baseline)):
        if ratios and all(abs(ratio / factor - 1) < UNIT_SLACK for ratio in ratios):
            raise BadInput(
                f"the losses of {side} are {np.mean(ratios):.3g} times those of {baseline} at every rung: those of "
                f"{in_bits} look like bits, the others like nats; multiply bits by ln 2 = 0.6931"
            )
