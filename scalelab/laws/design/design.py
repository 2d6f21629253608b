"""Weak points of the runs themselves, before and after a fit. Runs to which no law can be fitted are refused.

A finding is not an error: it says what a reader must bear in mind, and which rows it is about (indices in the fitted
table). Legend: P points.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from scalelab.laws.design import grids, outliers, repeats, scatter
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.law import Law
from scalelab.laws.read.finding import Finding
from scalelab.laws.solve.optimum import FitError, Optimum
from scalelab.laws.solve.problem import Columns, Problem
from scalelab.laws.trust import identifiable
from scalelab.laws.trust.dependence import Dependence
from scalelab.laws.trust.information import sizes_and_tokens

DECADE = 9.9  # a column that spans a smaller factor determines an exponent poorly
SPARE = 2.0  # rows per parameter, below which hardly any run checks the law
ENOUGH_BUDGETS = 4  # three determine a power law with an offset and leave none to check it
AHEAD = 100.0  # default target of approach 2's bias, over the largest budget
WORTH_A_LINE = 0.002  # a smaller bias of D is not reported


def row_findings(
    law: Law, columns: Columns, target: np.ndarray, flops: ArrayLike | None = None, log: bool = True
) -> list[Finding]:
    """Findings about the rows alone; BadInput if they can't identify the law (`identifiable.check_identifiable`).

    `flops` [P]: the cost of each run, if known to differ from 6 N D.
    """
    identifiable.check_identifiable(law, columns, target, flops=flops, log=log)
    cost = _run_flops(columns, flops)
    findings = [*_few_rows(law, target), *_narrow_columns(columns, cost), *repeats.repeated_rows(columns, target)]
    return findings + (_grid_findings(columns, target, cost) if law.target == "loss" and cost is not None else [])


def fit_findings(
    posed: Problem,
    best: Optimum,
    k: float = FLOPS_PER_PARAM_TOKEN,
    flops: ArrayLike | None = None,
    target_flops: Sequence[float] = (),
    held: Mapping[str, float] | None = None,
    dependence: Dependence | None = None,
) -> list[Finding]:
    """Findings that need the fitted law: rows far off it, uneven noise, and approach 2's bias on this grid.

    `dependence`: the error that rows of one group share.
    """
    return [
        *_outlier_findings(posed, best, dependence),
        *_approach2_finding(posed, best, k, flops, target_flops, held or {}),
    ]


def exclusion_findings(excluded: Iterable[Mapping[str, str]]) -> list[Finding]:
    """The finding about excluded rows {"name", "reason"}, mostly diverged or unfinished runs; [] without any."""
    summary = describe_exclusions(excluded)
    return [Finding("excluded", f"not fitted: {summary}")] if summary else []


def describe_exclusions(excluded: Iterable[Mapping[str, str]]) -> str:
    """Count excluded rows {"name", "reason"} by reason, as text."""
    counts = Counter(entry["reason"] for entry in excluded)
    return ", ".join(f"{number} {reason}" for reason, number in counts.items())


def _run_flops(columns: Columns, flops: ArrayLike | None) -> np.ndarray | None:
    """FLOPs of each run [P]: `flops` if given, else column C or 6 N D; None without any of these."""
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
    """Columns that span less than a decade (C included, even if the law doesn't use it)."""
    spans = {"C": cost, **columns} if cost is not None else dict(columns)
    findings = []
    for name in (name for name in ("N", "D", "C", "M", "U", "width", "depth") if name in spans):
        values = identifiable.distinct_values(spans[name])
        factor = values[-1] / values[0]
        if 1 < factor < DECADE:
            ends = f"{values[0]:.3g} to {values[-1]:.3g}"
            text = f"{name} spans a factor of {factor:.2g} ({ends}): an exponent wants ten or more"
            findings.append(Finding("narrow range", text))
    return findings


def _grid_findings(columns: Columns, target: np.ndarray, cost: np.ndarray) -> list[Finding]:
    """Findings about an IsoFLOP grid: how many budgets it has, and where their minima lie."""
    N, _ = sizes_and_tokens(columns)
    if not len(N):
        return []
    findings = []
    grid = grids.isoflop_budgets(cost, N, target)
    if grid and len(grid) < ENOUGH_BUDGETS:
        text = f"{len(grid)} budgets determine the law's C and leave none to check it: add one"
        findings.append(Finding("few budgets", text))
    for each, off in zip(grid, grids.surely_off_centre(grid, N, target) if grid else [], strict=True):
        where = f"budget {each.C:.3g}: the loss is least at"
        if not each.interior:
            side = "smallest" if each.place < 0.5 else "largest"
            text = f"{where} its {side} size: add {'smaller' if each.place < 0.5 else 'larger'} ones"
            findings.append(Finding("edge minimum", text, each.rows))
        elif off and min(each.place, 1 - each.place) < grids.CENTRAL:
            text = f"{where} {each.place:.0%} of its sizes' range: add sizes on the {_side(each.place)} side"
            findings.append(Finding("off-centre", text, each.rows))
        elif each.rise < grids.FLAT:
            text = (
                f"budget {each.C:.3g}: the loss rises by only {each.rise:.2%} towards the {_side(each.place)} end: "
                "its best size is little more than noise; use a wider range"
            )
            findings.append(Finding("weak curvature", text, each.rows))
    return findings


def _side(place: float) -> str:
    return "small" if place < 0.5 else "large"


def _outlier_findings(posed: Problem, best: Optimum, dependence: Dependence | None) -> list[Finding]:
    """Rows too far off the law of the others, and noise that changes with the size of the runs."""
    noise = scatter.measure_scatter(posed, best, dependence)
    changes = noise is not None and noise.changes
    far = outliers.find_outliers(posed, best, dependence, noise.at(posed.columns) if noise and changes else None)
    findings = []
    if far.rows:
        most = f"{far.off[0]:+.2%}" if posed.objective.log else f"{far.off[0]:+.3g}"
        text = (
            f"farther off the law of the other rows than chance gives in one table of {1 / outliers.CHANCE:.0f}: "
            f"{len(far.rows)} of {posed.points} rows, the farthest by {most}: look at these runs"
        )
        findings.append(Finding("outliers", text, tuple(sorted(far.rows))))
    if noise and changes:
        text = (
            f"the noise changes with size: {noise.per_decade:.2g} times as large in a run ten times as large (p = "
            f"{noise.p:.2g}), and intervals take one noise for all rows: --weights=scale"
        )
        findings.append(Finding("scatter", text))
    return findings


def _approach2_finding(
    posed: Problem,
    best: Optimum,
    k: float,
    flops: ArrayLike | None,
    target_flops: Sequence[float],
    held: Mapping[str, float],
) -> list[Finding]:
    """The bias of approach 2 on this grid, if the law is one of N and D and the rows form an IsoFLOP grid."""
    N, _ = sizes_and_tokens(posed.columns)
    cost = _run_flops(posed.columns, flops)
    is_of_size_and_tokens = posed.law.target == "loss" and set(posed.law.columns) <= {"N", "D", "C", "M", *held}
    if cost is None or not len(N) or not is_of_size_and_tokens:
        return []
    grid = grids.isoflop_budgets(cost, N, posed.target)
    if not grid:
        return []
    at = target_flops[0] if len(target_flops) else AHEAD * cost.max()
    biases = []
    for method in ("parabola", "akima"):
        with contextlib.suppress(FitError):
            biases.append(grids.approach2_bias(posed.law, best.params, grid, N, at, k, method, held))
    if not any(abs(bias.D_error) > WORTH_A_LINE for bias in biases):
        return []
    errors = "; ".join(f"{b.method}: D {b.D_error:+.1%}, exponent a {b.a:.4f} for {b.a_true:.4f}" for b in biases)
    text = f"approach 2 on exact losses of this law at this grid's budgets and sizes, at {at:.3g} FLOPs: {errors}"
    return [Finding("approach 2 bias", text)]
