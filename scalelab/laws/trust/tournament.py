"""All laws on one table, ranked by how well each predicts the largest runs from the others, interval and all."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.law import objective as objective_lib
from scalelab.laws.law.law import Law
from scalelab.laws.law.names import LAWS, load_law
from scalelab.laws.law.objective import Objective
from scalelab.laws.read.points import is_numeric, law_columns
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.trust.holdout import SCORE_RESAMPLES, Holdout, hold_out


@dataclasses.dataclass(frozen=True, eq=False)
class TournamentEntry:
    """One law's result, or `why` it has none."""

    law: Law
    result: Holdout | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; a law without a result has no numbers."""
        result = self.result.to_json() if self.result else {"mape": None, "in_sample_mape": None}
        law = {"law": self.law.name, "equation": self.law.equation, "n_params": len(self.law.params)}
        return law | {"why": self.why} | result


def run_tournament(
    table: Mapping[str, ArrayLike],
    laws: Sequence[str | Law] | None = None,
    count: int = 1,
    objective: str = "huber_log",
    delta: float | None = None,
    labels: np.ndarray | None = None,
    resamples: int = SCORE_RESAMPLES,
    level: float = 0.9,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[TournamentEntry, ...]:
    """Hold out the `count` largest rows (by C, else N D) and let each law predict them: entries, the best first.

    The best has the least interval score (`Holdout.interval_score`), without resamples the least error. Options as of
    `hold_out`.
    `laws`: by default all of `names.LAWS` whose columns and target the table has. Every law is scored on the same rows.
    A law that can't be fitted comes last with its reason. BadInput if the table has the columns of no law.
    """
    chosen = objective_lib.load_objective(objective, delta)
    known = {name for name, values in table.items() if is_numeric(values)}
    known |= {"C", "M"} if {"N", "D"} <= known else set()
    named = [load_law(law) if isinstance(law, str) else law for law in laws or LAWS.values()]
    able = [law for law in named if laws or {*law.columns, law.target} <= known]
    if not able:
        raise BadInput(
            f"the table has {', '.join(sorted(known)) or 'no numbers'}: no law of the table has its columns there"
        )
    scale = row_scales(table)
    options = {"labels": labels, "resamples": resamples, "level": level}
    entries = []
    for done, law in enumerate(able, 1):
        entries.append(_enter_law(table, law, chosen, count, scale, options))
        if progress:
            progress("laws of the tournament", done, len(able))
    return tuple(sorted(entries, key=_rank))


def _rank(entry: TournamentEntry) -> float:
    if not entry.result:
        return float("inf")
    score = entry.result.interval_score
    return entry.result.mape if score is None else score


def row_scales(table: Mapping[str, ArrayLike]) -> np.ndarray | None:
    """A measure of each row's size [P]: C, else N D; None without both (then each law orders by its own columns)."""
    names = [name for name in ("C", "N", "D") if name in table and is_numeric(table[name])]
    numbers = {name: np.asarray(table[name], float) for name in names}
    if "C" in numbers:
        return numbers["C"]
    return numbers["N"] * numbers["D"] if {"N", "D"} <= set(numbers) else None


def _enter_law(
    table: Mapping[str, ArrayLike],
    law: Law,
    chosen: Objective,
    count: int,
    scale: np.ndarray | None,
    options: Mapping[str, Any],
) -> TournamentEntry:
    try:
        columns, target = law_columns(table, law)
        return TournamentEntry(law, hold_out(law, columns, target, chosen, count, scale, **options))
    except (BadInput, FitError) as why:
        return TournamentEntry(law, None, str(why))
