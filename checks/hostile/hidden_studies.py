"""Kinds of ablation studies whose true multiplier is known, written without the rules of `scalelab ablate` being read.

A baseline's loss at C FLOPs is E + A C^-alpha, a variant's is the baseline's at m C. A place on the ladder is u: 0 at
its first rung, 1 at its last one, in log C.
"""

import csv
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

SEED, BEYOND = 20261128, 4.0  # of all studies; times the last budget, where a verdict is asked for as well
Effect = Callable[[float], float]  # log m at u
Rows = list[dict[str, Any]]
HEADERS = (  # of side, C, seed, loss; and the unit of C
    ("side", "C", "seed", "loss", 1.0),
    ("optimizer", "flops", "seed", "val_loss", 1.0),
    ("params.optimizer", "Compute (EFLOPs)", "params.seed", "metrics.val_loss", 1e18),
)


class Kind(NamedTuple):
    """One kind of study.

    `effect(rng)`: log m as a function of u. `noise`: scatter of a run's loss, as
    a share of it, at the first and the last rung; `jump`: factor on it at the last rung alone. `change(rows, rng)`:
    edits the rows.
    """

    effect: Callable[[np.random.Generator], Effect]
    noise: tuple[float, float] = (0.002, 0.002)
    jump: float = 1.0
    variants: int = 1
    heavy: bool = False
    widths: bool = False
    change: Callable[[Rows, np.random.Generator], Rows] = lambda rows, rng: rows


def _either(least: float, most: float, null: float = 0.0) -> Callable[[np.random.Generator], Effect]:
    """A constant effect of either sign; nothing in a share `null` of the studies."""

    def draw(rng: np.random.Generator) -> Effect:
        size = rng.uniform(least, most) * rng.choice([-1.0, 1.0]) * float(rng.random() >= null)
        return lambda u: float(size)

    return draw


def _fading(rng: np.random.Generator) -> Effect:
    size, speed = rng.uniform(0.2, 0.5), rng.uniform(3.0, 5.0)
    return lambda u: float(size * math.exp(-speed * u))


def _crossing(rng: np.random.Generator) -> Effect:
    size, at = rng.uniform(0.15, 0.4) * rng.choice([-1.0, 1.0]), rng.uniform(0.45, 0.85)
    return lambda u: float(size * (1 - u / at))


def _missing(rows: Rows, rng: np.random.Generator) -> Rows:
    """The variant lacks a rung before the last; one run in eight of the lower rungs is lost."""
    rungs = sorted({row["C"] for row in rows})
    gone = rng.choice(rungs[:-1])
    return [
        row
        for row in rows
        if not (row["side"] != "base" and row["C"] == gone) and (row["C"] == rungs[-1] or rng.random() > 0.125)
    ]


def _unequal(rows: Rows, rng: np.random.Generator) -> Rows:
    """Of five seeds each side keeps two to five at each rung."""
    kept = {(row["side"], row["C"]): 0 for row in rows}
    kept = {cell: int(rng.integers(2, 6)) for cell in kept}
    return [row for row in rows if row["seed"] < kept[row["side"], row["C"]]]


def _outlier(rows: Rows, rng: np.random.Generator) -> Rows:
    """One run, at any rung and side, went wrong without diverging: its loss is 2 to 5 % higher."""
    chosen = int(rng.integers(len(rows)))
    return [row | {"loss": row["loss"] * rng.uniform(1.02, 1.05)} if i == chosen else row for i, row in enumerate(rows)]


_NOTHING, _MIXED = _either(0.0, 0.0), _either(0.05, 0.25, null=0.5)
KINDS = {
    "constant effect": Kind(_either(0.06, 0.4)),
    "effect that fades": Kind(_fading, noise=(0.0012, 0.0012)),
    "effect that crosses over": Kind(_crossing, noise=(0.0012, 0.0012)),
    "null": Kind(_NOTHING),
    "six null variants": Kind(_NOTHING, variants=6),
    "effect below --worth": Kind(_either(0.003, 0.016), noise=(0.0006, 0.0006)),
    "noise grows tenfold": Kind(_MIXED, noise=(0.0007, 0.007)),
    "noise falls tenfold": Kind(_MIXED, noise=(0.007, 0.0007)),
    "noise jumps at the last rung": Kind(_MIXED, noise=(0.001, 0.001), jump=6.0),
    "heavy tails (t, 3)": Kind(_MIXED, heavy=True),
    "blocks by width": Kind(_MIXED, noise=(0.0015, 0.0015), widths=True),
    "missing cells": Kind(_MIXED, change=_missing),
    "unequal seeds": Kind(_MIXED, change=_unequal),
    "an outlying run": Kind(_MIXED, noise=(0.0015, 0.0015), change=_outlier),
}


class Study(NamedTuple):
    """Rows of a study, and the true m at the last rung and beyond by variant."""

    rows: Rows
    last: float
    truths: dict[str, tuple[float, float]]


def draw_study(name: str, number: int, seed: int = SEED) -> Study:
    """One study of a kind: its law, ladder and effect are drawn anew."""
    kind, rng = KINDS[name], np.random.default_rng([seed, list(KINDS).index(name), number])
    E, A, alpha = rng.uniform(1.4, 2.0), rng.uniform(0.8, 1.8), rng.uniform(0.1, 0.2)
    count, factor, first = int(rng.integers(4, 6)), rng.uniform(3.0, 5.0), 10 ** rng.uniform(17, 19)
    ladder, runs = [float(f"{first * factor**i:.4g}") for i in range(count)], 5 if kind.change is _unequal else 3
    effects = {f"variant_{i}" if kind.variants > 1 else "new": kind.effect(rng) for i in range(kind.variants)}
    widths, rows = [256, 384, 512, 768], []
    for i, C in enumerate(ladder):
        u = i / (count - 1)
        sd = kind.noise[0] * (kind.noise[1] / kind.noise[0]) ** u * (kind.jump if i == count - 1 else 1.0)
        best = 384 * 1.15**i
        for side in ("base", *effects):
            m = math.exp(effects[side](u)) if side in effects else 1.0
            loss = E + A * (m * C / 1e18) ** -alpha
            for k in range(len(widths) if kind.widths else runs):
                error = sd * (rng.standard_t(3) / math.sqrt(3) if kind.heavy else rng.standard_normal())
                own = {"width": widths[k]} if kind.widths else {"seed": k}
                bend = 1 + 0.02 * math.log(widths[k] / best) ** 2 if kind.widths else 1.0
                rows.append({"side": side, "C": C} | own | {"loss": loss * bend * math.exp(error)})
    far = 1 + math.log(BEYOND) / math.log(ladder[-1] / ladder[0])
    truths = {side: (math.exp(effect(1.0)), math.exp(effect(far))) for side, effect in effects.items()}
    return Study(kind.change(rows, rng), ladder[-1], truths)


def write_table(rows: Sequence[dict[str, Any]], path: pathlib.Path, number: int) -> pathlib.Path:
    """Write the rows in one of three spellings, in the order of their sides' names, losses to four digits."""
    side, flops, seed, loss, unit = HEADERS[number % len(HEADERS)]
    names = {"side": side, "C": flops, "seed": seed, "loss": loss, "width": "d_model"}
    values = [row | {"C": f"{row['C'] / unit:.4g}", "loss": f"{row['loss']:.4f}"} for row in rows]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([names[key] for key in values[0]])
        writer.writerows(row.values() for row in sorted(values, key=lambda row: row["side"]))
    return path
