"""Rows of runs as rungs: both sides' losses at each budget, seed by seed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, nearest_hint

NEAR = 0.02  # budgets that differ by less are one rung: whole steps round a budget
UNIT_SLACK = 0.05  # a ratio of losses this near to 1 / ln 2 at every rung is one of units
NEEDED = ("side", "C", "loss")


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """The runs of one side at one rung: `losses` by seed (finite ones), how many diverged, FLOPs and tokens of a run.

    `tokens`: None where the table has none; `rates`: tokens/s by seed, empty where it has none.
    """

    losses: dict[str, float]
    diverged: int
    flops: float
    tokens: float | None
    rates: dict[str, float]

    @property
    def mean(self) -> float:
        """The geometric mean of the finished runs' losses; nan if there are none."""
        return math.exp(float(np.mean(np.log(list(self.losses.values()))))) if self.losses else math.nan

    @property
    def rate(self) -> float | None:
        """The geometric mean of tokens/s."""
        return math.exp(float(np.mean(np.log(list(self.rates.values()))))) if self.rates else None

    @property
    def runs(self) -> int:
        """Finished runs."""
        return len(self.losses)


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """Baseline and variant at the rungs that both have, in order of compute: cells [R] of each.

    `paired`: whether both sides have the same seeds at every rung, so that differences are taken seed by seed.
    `blocks`: the block of a run by its seed label, where runs of a rung differ in more than the seed.
    """

    name: str
    baseline: tuple[Cell, ...]
    variant: tuple[Cell, ...]
    paired: bool
    blocks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def flops(self) -> np.ndarray:
        """The baseline's FLOPs at each rung, [R]."""
        return np.array([cell.flops for cell in self.baseline])


def read_pairs(rows: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, Pair]:
    """{variant: Pair} from rows with `side`, `C` (FLOPs), `loss` (nats/token; inf or nan: diverged) and, where known,
    `seed`, `tokens`, `tokens_per_s`. BadInput for rows that can't be compared.
    """
    _check_rows(rows, baseline)
    sides: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        sides.setdefault(str(row["side"]), []).append(row)
    budgets = _rungs([float(row["C"]) for row in sides[baseline]])
    cells = {side: _cells(side, its, budgets, baseline) for side, its in sides.items()}
    for name, its in cells.items():
        _refuse_other_unit(name, its, baseline, cells[baseline])
    return {
        name: Pair(name, cells[baseline], its, _same_seeds(cells[baseline], its))
        for name, its in cells.items()
        if name != baseline
    }


def _check_rows(rows: Sequence[Mapping[str, Any]], baseline: str) -> None:
    for i, row in enumerate(rows, 1):
        for key in NEEDED:
            if row.get(key) is None:
                raise BadInput(f"row {i} has no {key}: every run needs {', '.join(NEEDED)} (a diverged one: loss=nan)")
        if not (math.isfinite(float(row["C"])) and float(row["C"]) > 0):
            raise BadInput(f"row {i}: C={row['C']!r} is not a number of FLOPs above zero")
        if math.isfinite(float(row["loss"])) and float(row["loss"]) <= 0:
            raise BadInput(f"row {i}: loss={row['loss']!r} is not above zero; losses are nats a token")
    names = list(dict.fromkeys(str(row["side"]) for row in rows))
    if baseline not in names:
        raise BadInput(f"no run has side {baseline!r}{nearest_hint(baseline, names)}")
    if len(names) < 2:
        raise BadInput(f"all runs are of side {baseline!r}: a variant is needed beside it")


def _rungs(budgets: Sequence[float]) -> list[float]:
    """The distinct budgets, ascending; near ones are one."""
    out: list[float] = []
    for budget in sorted(budgets):
        if not out or math.log(budget / out[-1]) > NEAR:
            out.append(budget)
    return out


def _cells(side: str, rows: Sequence[Mapping[str, Any]], budgets: Sequence[float], baseline: str) -> tuple[Cell, ...]:
    """The cells of a side at the baseline's budgets. BadInput for a budget that only one of the sides has."""
    places: list[list[Mapping[str, Any]]] = [[] for _ in budgets]
    for row in rows:
        gaps = [abs(math.log(float(row["C"]) / budget)) for budget in budgets]
        nearest = int(np.argmin(gaps))
        if gaps[nearest] > 2 * NEAR:
            raise BadInput(
                f"{side} has a run at {float(row['C']):.4g} FLOPs and {baseline} none near it; its rungs: "
                f"{', '.join(f'{budget:.3g}' for budget in budgets)}; train that rung, or leave the run out"
            )
        places[nearest].append(row)
    for budget, there in zip(budgets, places, strict=True):
        if not there:
            raise BadInput(
                f"{side} has no run at {budget:.4g} FLOPs, where {baseline} has: train that rung, or leave it out"
            )
    return tuple(_cell(side, budget, there) for budget, there in zip(budgets, places, strict=True))


def _refuse_other_unit(side: str, cells: Sequence[Cell], baseline: str, others: Sequence[Cell]) -> None:
    """BadInput where one side's losses are the other's times 1 / ln 2 at every rung: bits beside nats."""
    ratios = [cell.mean / other.mean for cell, other in zip(cells, others, strict=True) if cell.runs and other.runs]
    for factor, in_bits in ((1 / math.log(2), side), (math.log(2), baseline)):
        if ratios and all(abs(ratio / factor - 1) < UNIT_SLACK for ratio in ratios):
            raise BadInput(
                f"the losses of {side} are {np.mean(ratios):.3g} times those of {baseline} at every rung: those of "
                f"{in_bits} look like bits, the others like nats; multiply bits by ln 2 = 0.6931"
            )


def _cell(side: str, budget: float, rows: Sequence[Mapping[str, Any]]) -> Cell:
    labels = [str(row.get("seed", i)) for i, row in enumerate(rows)]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise BadInput(
            f"{side} has two runs of seed {twice} at {budget:.4g} FLOPs: duplicate rows, or seeds mislabelled"
        )
    losses = {label: float(row["loss"]) for label, row in zip(labels, rows, strict=True)}
    ended = {label: loss for label, loss in losses.items() if math.isfinite(loss)}
    rates = {label: row.get("tokens_per_s") for label, row in zip(labels, rows, strict=True)}
    known = {} if None in rates.values() else {label: float(rate) for label, rate in rates.items() if rate}
    return Cell(ended, len(losses) - len(ended), _mean(rows, "C") or budget, _mean(rows, "tokens"), known)


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The geometric mean of a column; None if a row lacks it."""
    values = [row.get(key) for row in rows]
    return None if None in values else math.exp(float(np.mean(np.log(np.array(values, float)))))


def _same_seeds(one: Sequence[Cell], other: Sequence[Cell]) -> bool:
    """Whether two sides have the same seeds at every rung, more than one of them somewhere."""
    equal = all(a.losses.keys() == b.losses.keys() for a, b in zip(one, other, strict=True))
    return equal and max(cell.runs for cell in one) > 1
