"""The runs of one side at one budget (a cell), both sides' cells at all budgets (a pair), and rows put at budgets."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput

NEAR = 0.02  # budgets that differ by less are one rung: whole steps round a budget
Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """The runs of one side at one rung: `losses` by seed (finite ones), how many diverged, FLOPs and tokens of a run.

    `tokens`: None where the table has none; `rates`: tokens/s by seed, empty where it has none; `params`: N of a run,
    where known. Where the sides are paired by block, `losses` are by block and seed, moved to one level, and
    `level_runs` runs stand behind that.
    """

    losses: dict[str, float]
    diverged: int
    flops: float
    tokens: float | None
    rates: dict[str, float]
    level_runs: int | None = None
    params: float | None = None

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
        """Finished runs, or blocks that are compared."""
        return len(self.losses)

    @property
    def law_runs(self) -> int:
        """Runs behind the loss that the baseline's law goes through."""
        return self.runs if self.level_runs is None else self.level_runs


@dataclasses.dataclass(frozen=True, eq=False)
class Surface:
    """The baseline's cells for a law in N and D, each [K]: parameters, tokens, mean losses, runs; C = `factor` N D."""

    params: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray
    runs: np.ndarray
    factor: float


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """Baseline and variant at the baseline's rungs, in order of compute: cells [R] of each.

    Where a side has no run to compare, its cell is empty (no losses, none diverged). `paired`: whether both sides have
    the same seeds at every rung, so that differences are taken seed by seed. `blocks`: the block of a run by its label,
    where runs of a rung differ in more than the seed and are paired by that (blocks.py); their losses are at the level
    of the baseline's best block. `sampled`: whether differences between blocks are a part of the error. `surface`: the
    baseline's runs for a law in N and D; `law_only`: its cells at rungs that are not compared, for its law. `notes`:
    what was left out, and how runs are paired.
    """

    name: str
    baseline: tuple[Cell, ...]
    variant: tuple[Cell, ...]
    paired: bool
    blocks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sampled: bool = False
    surface: Surface | None = None
    law_only: tuple[Cell, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> np.ndarray:
        """The baseline's FLOPs at each rung, [R]."""
        return np.array([cell.flops for cell in self.baseline])

    def only(self, rungs: Sequence[int]) -> "Pair":
        """The pair at these rungs; the baseline's other finished cells remain for its law."""
        ones, others = (tuple(side[i] for i in rungs) for side in (self.baseline, self.variant))
        rest = tuple(cell for i, cell in enumerate(self.baseline) if i not in rungs and cell.losses)
        return dataclasses.replace(self, baseline=ones, variant=others, law_only=(*self.law_only, *rest))

    @property
    def compared(self) -> list[int]:
        """The rungs at which both sides have finished runs."""
        return [i for i, (b, v) in enumerate(zip(self.baseline, self.variant, strict=True)) if b.losses and v.losses]


class Placed(NamedTuple):
    """A side's rows at each of the baseline's budgets, and those that are near none."""

    rungs: list[list[Row]]
    strays: list[Row]


def distinct_budgets(budgets: Sequence[float]) -> list[float]:
    """The distinct budgets, ascending; near ones are one."""
    out: list[float] = []
    for budget in sorted(budgets):
        if not out or math.log(budget) - math.log(out[-1]) > NEAR:  # a ratio of damaged counts may overflow
            out.append(budget)
    return out


def nearest_budget(flops: float, budgets: Sequence[float]) -> int | None:
    """The place of the budget that these FLOPs are near; None if there is none."""
    gaps = np.abs(math.log(flops) - np.log(budgets))
    nearest = int(np.argmin(gaps))
    return nearest if gaps[nearest] <= 2 * NEAR else None


def place_rows(rows: Sequence[Row], budgets: Sequence[float], others: Sequence[Row] = ()) -> Placed:
    """Put rows at the baseline's budgets: by their FLOPs, else by their tokens.

    At the tokens of a baseline's run (`others`; in the same block) a variant may have other FLOPs.
    """
    placed = Placed([[] for _ in budgets], [])
    for row in rows:
        i = nearest_budget(float(row["C"]), budgets)
        if i is None and row.get("tokens"):
            i = _same_tokens(row, budgets, others)
        (placed.strays if i is None else placed.rungs[i]).append(row)
    return placed


def _same_tokens(row: Row, budgets: Sequence[float], others: Sequence[Row]) -> int | None:
    """The budget of the baseline's run with this row's tokens and block."""
    near = [
        other
        for other in others
        if other.get("tokens")
        and other.get("block") == row.get("block")
        and abs(math.log(other["tokens"]) - math.log(row["tokens"])) <= NEAR
    ]
    return nearest_budget(float(near[0]["C"]), budgets) if near else None


def make_cell(side: str, budget: float, rows: Sequence[Row], block: str = "") -> Cell:
    """The cell of a side's rows at a budget. BadInput if two are of one seed."""
    labels = [str(row.get("seed", i)) for i, row in enumerate(rows)]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        where = f"{budget:.4g} FLOPs" + (f" and {block}" if block else "")
        raise BadInput(
            f"{side} has two runs of seed {twice} at {where}: duplicate rows, seeds mislabelled, or another column "
            "that sets them apart (--block=COLUMN)"
        )
    losses = {label: float(row["loss"]) for label, row in zip(labels, rows, strict=True)}
    ended = {label: loss for label, loss in losses.items() if math.isfinite(loss)}
    rates = {label: row.get("tokens_per_s") for label, row in zip(labels, rows, strict=True)}
    known = {} if None in rates.values() else {label: float(rate) for label, rate in rates.items() if rate}
    counted = [row for row in rows if math.isfinite(float(row["loss"]))] or rows  # one that diverged may say 0 tokens
    flops, tokens, params = (geometric_mean([row.get(key) or None for row in counted]) for key in ("C", "tokens", "N"))
    return Cell(ended, len(losses) - len(ended), flops or budget, tokens, known, params=params)


def geometric_mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean; None if there are no values, or one is not known."""
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    return math.exp(float(np.mean(np.log(np.array(numbers, float)))))


def have_same_seeds(one: Sequence[Cell], other: Sequence[Cell]) -> bool:
    """Whether two sides have the same seeds at every rung that both have, more than one of them somewhere."""
    both = [(a, b) for a, b in zip(one, other, strict=True) if a.losses and b.losses]
    equal = all(a.losses.keys() == b.losses.keys() for a, b in both)
    return equal and max((a.runs for a, _ in both), default=0) > 1
