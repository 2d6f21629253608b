"""What is weak about the runs themselves, before and after a fit. What no law could be fitted to is refused.

A finding is not an error: it says what a reader must bear in mind, and which rows it is about (places in the fitted
table, from 0). Legend: P points.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.law import Law
from scalelab.laws.solve.optimum import FitError, Optimum
from scalelab.laws.solve.problem import Columns, Problem
from scalelab.laws.trust import grids, identifiable
from scalelab.laws.trust.information import residual_noise, sizes_and_tokens

DECADE = 9.9  # a column that spans less leaves an exponent to a short lever
SPARE = 2.0  # rows a parameter, below which hardly any run checks the law
NEAR = 0.01  # rows this close in every column are one configuration
ENOUGH_BUDGETS = 4  # three determine a power law with an offset and leave none to check it
OUTLIER = 5.0  # standard deviations
AHEAD = 100.0  # the target of approach 2's bias where none is named, over the largest budget
WORTH_A_LINE = 0.002  # a bias of D below this is no news


@dataclasses.dataclass(frozen=True)
class Finding:
    """One weakness: its `kind` (a fixed word), what it means in words, and the rows it is about."""

    kind: str
    text: str
    rows: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"kind": self.kind, "text": self.text, "rows": list(self.rows)}


def row_findings(
    law: Law, columns: Columns, target: np.ndarray, flops: ArrayLike | None = None, log: bool = True
) -> list[Finding]:
    """Findings about the rows alone; BadInput (see `identifiable.check_identifiable`) where they can't identify the law.

    `flops` [P]: what each run cost, where it is known to differ from 6 N D.
    """
    identifiable.check_identifiable(law, columns, target, flops=flops, log=log)
    cost = _run_flops(columns, flops)
    found = [*_few_rows(law, target), *_narrow_columns(columns, cost), *_repeated_rows(columns, target)]
    return found + (_grid_findings(columns, target, cost) if law.target == "loss" and cost is not None else [])


def fit_findings(
    posed: Problem, best: Optimum, k: float = FLOPS_PER_PARAM_TOKEN, flops: ArrayLike | None = None,
    target_flops: Sequence[float] = (), held: Mapping[str, float] | None = None,
) -> list[Finding]:  # fmt: skip
    """Findings that need the fitted law: rows far off it, and the bias that approach 2 would have on this grid."""
    return [*_outlier_findings(posed, best), *_approach2_finding(posed, best, k, flops, target_flops, held or {})]


def exclusion_findings(excluded: Iterable[Mapping[str, str]]) -> list[Finding]:
    """What was not fitted, of rows {"name", "reason"}: diverged or unfinished runs above all."""
    said = describe_exclusions(excluded)
    return [Finding("excluded", f"not fitted: {said}")] if said else []


def describe_exclusions(excluded: Iterable[Mapping[str, str]]) -> str:
    """How many of these rows were left out for which reason, in words."""
    counts = Counter(entry["reason"] for entry in excluded)
    return ", ".join(f"{number} {reason}" for reason, number in counts.items())


def _run_flops(columns: Columns, flops: ArrayLike | None) -> np.ndarray | None:
    """FLOPs [P] of each run, None where neither they nor N and D are known."""
    if flops is not None:
        return np.asarray(flops, float)
    N, D = sizes_and_tokens(columns)
    return columns.get("C", FLOPS_PER_PARAM_TOKEN * N * D if len(N) else None)


def _few_rows(law: Law, target: np.ndarray) -> list[Finding]:
    count, params = len(target), len(law.params)
    if count > SPARE * params:
        return []
    spare = "none is left" if count == params else f"only {count - params} are left"
    return [Finding("few rows", f"{count} runs for {params} parameters: {spare} to check the law against")]


def _narrow_columns(columns: Columns, cost: np.ndarray | None) -> list[Finding]:
    """Columns whose lever is short. C too, where the law doesn't name it."""
    spans = {"C": cost, **columns} if cost is not None else dict(columns)
    found = []
    for name in (name for name in ("N", "D", "C", "M", "U", "width", "depth") if name in spans):
        values = identifiable.distinct_values(spans[name])
        factor = values[-1] / values[0]
        if 1 < factor < DECADE:
            ends = f"{values[0]:.3g} to {values[-1]:.3g}"
            found.append(
                Finding(
                    "narrow range", f"{name} spans a factor of {factor:.2g} ({ends}): an exponent wants ten or more"
                )
            )
    return found


def _repeated_rows(columns: Columns, target: np.ndarray) -> list[Finding]:
    """Rows that are copies of each other, and rows of (nearly) one configuration."""
    logs = np.log(np.stack([*columns.values()], axis=1))
    copy = _nearest_distance(np.column_stack([logs, np.log(target)])) < 1e-9
    close = (_nearest_distance(logs) < np.log1p(NEAR)) & ~copy
    found = []
    if copy.any():
        text = f"equal to another row, loss and all: {copy.sum()} rows; each such run counts twice"
        found.append(Finding("duplicates", text, _rows(copy)))
    if close.any():
        text = (
            f"within {NEAR:.0%} of another row in every column: {close.sum()} rows; they tell about noise, hardly more about "
            "the law: resample them together"
        )
        found.append(Finding("near-duplicates", text, _rows(close)))
    return found


def _nearest_distance(points: np.ndarray) -> np.ndarray:
    """Largest difference in any coordinate to the nearest other of points [P, columns]: [P]."""
    return cKDTree(points).query(points, k=2, p=np.inf)[0][:, 1]


def _grid_findings(columns: Columns, target: np.ndarray, cost: np.ndarray) -> list[Finding]:
    """What an IsoFLOP grid shows: budgets, and where their minima lie."""
    N, _ = sizes_and_tokens(columns)
    if not len(N):
        return []
    found = []
    grid = grids.isoflop_budgets(cost, N, target)
    if grid and len(grid) < ENOUGH_BUDGETS:
        found.append(
            Finding("few budgets", f"{len(grid)} budgets determine the law's C and leave none to check it: add one")
        )
    for each in grid:
        where = f"budget {each.C:.3g}: the loss is least at"
        if not each.interior:
            side = "smallest" if each.place < 0.5 else "largest"
            text = f"{where} its {side} size: add {'smaller' if each.place < 0.5 else 'larger'} ones"
            found.append(Finding("edge minimum", text, each.rows))
        elif min(each.place, 1 - each.place) < grids.CENTRAL:
            text = f"{where} {each.place:.0%} of its sizes' range: add sizes on the {_side(each.place)} side"
            found.append(Finding("off-centre", text, each.rows))
        elif each.rise < grids.FLAT:
            text = (
                f"budget {each.C:.3g}: the loss rises by only {each.rise:.2%} towards the {_side(each.place)} end: its best "
                "size is little more than noise; use a wider range"
            )
            found.append(Finding("weak curvature", text, each.rows))
    return found


def _side(place: float) -> str:
    return "small" if place < 0.5 else "large"


def _outlier_findings(posed: Problem, best: Optimum) -> list[Finding]:
    residuals = posed.residuals(best.params)
    size = residual_noise(posed, best)
    far = np.abs(residuals) > OUTLIER * size
    if not far.any():
        return []
    worst = int(np.abs(residuals).argmax())
    limit, most = (f"{x:+.2%}" if posed.objective.log else f"{x:+.3g}" for x in (OUTLIER * size, residuals[worst]))
    text = (
        f"off the law by more than {OUTLIER:g} sd ({limit.lstrip('+')}): {far.sum()} of {len(far)} rows, "
        f"the farthest by {most}: look at these runs"
    )
    return [Finding("outliers", text, _rows(far))]


def _approach2_finding(
    posed: Problem, best: Optimum, k: float, flops: ArrayLike | None, target_flops: Sequence[float],
    held: Mapping[str, float],
) -> list[Finding]:  # fmt: skip
    """The bias of approach 2 on this grid, for laws of N and D that the grid could also be read by approach 2."""
    N, _ = sizes_and_tokens(posed.columns)
    cost = _run_flops(posed.columns, flops)
    if (
        posed.law.target != "loss"
        or cost is None
        or not len(N)
        or not set(posed.law.columns) <= {"N", "D", "C", "M", *held}
    ):
        return []
    grid = grids.isoflop_budgets(cost, N, posed.target)
    at = target_flops[0] if len(target_flops) else AHEAD * cost.max()
    said = []
    for method in ("parabola", "akima"):
        try:
            bias = grids.approach2_bias(posed.law, best.params, grid, N, at, k, method, held) if grid else None
        except FitError:
            continue
        if bias:
            said.append((method, bias))
    if not any(abs(bias.D_error) > WORTH_A_LINE for _, bias in said):
        return []
    words = "; ".join(f"{method}: D {b.D_error:+.1%}, exponent a {b.a:.4f} for {b.a_true:.4f}" for method, b in said)
    text = f"approach 2 on exact losses of this law at this grid's budgets and sizes, at {at:.3g} FLOPs: {words}"
    return [Finding("approach 2 bias", text)]


def _rows(chosen: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen).tolist())
