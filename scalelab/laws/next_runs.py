"""Which runs to do next: those of the user's grid that narrow one interval most for their FLOPs.

Judged by linearised information (`trust/information.py`). Legend: G candidates, K parameters.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.read.points import law_columns
from scalelab.laws.solve.optimum import FitError, Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import information
from scalelab.laws.use import decision

AHEAD = 10.0  # a proposal's default target budget, over the largest fitted run's
BETTER = 1e-9  # an exchange must narrow the target by more than this share


@dataclasses.dataclass(frozen=True)
class ProposedRun:
    """One run of a plan: its `row` among the candidates, its columns, its cost, and the target's sd after it."""

    row: int
    columns: dict[str, float]
    flops: float
    sd_after: float


@dataclasses.dataclass(frozen=True)
class NextRuns:
    """The runs to do next, the greatest gain per FLOP first.

    `sd_before` and `sd_after` are linearised standard deviations of `target`: a parameter (the log of a scale), "N"
    (log of the best size at `at_flops`) or "loss" (log of the best loss there).
    """

    target: str
    at_flops: float | None
    sd_before: float
    runs: tuple[ProposedRun, ...]

    @property
    def sd_after(self) -> float:
        """The target's standard deviation when all runs are done."""
        return self.runs[-1].sd_after if self.runs else self.sd_before

    @property
    def flops(self) -> float:
        """The cost of all runs."""
        return sum(run.flops for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `narrower` is the share by which the interval shrinks."""
        narrower = 1.0 - self.sd_after / self.sd_before
        return dataclasses.asdict(self) | {"sd_after": self.sd_after, "flops": self.flops, "narrower": narrower}


def propose_runs(
    fitted: Fitted,
    candidates: Mapping[str, ArrayLike],
    k: int,
    budget_flops: float,
    target: str = "N",
    at_flops: float | None = None,
    held: Mapping[str, float] | None = None,
) -> NextRuns:
    """Propose at most `k` candidate runs, for at most `budget_flops`, that narrow the target's interval most.

    `candidates` are columns [G] of the user's grid: N and D (and the law's other columns), and C if it isn't `fitted.k`
    N D. `target`: a parameter's name, or "N" or "loss": the best size or loss at `at_flops` (default: the fit's first
    target budget, else ten times the largest run's), where `held` fixes the law's other columns. Two greedy orders are
    tried, by gain per FLOP and by gain alone, each improved by exchanges; the narrower result counts. BadInput if
    nothing is affordable or a name is unknown, FitError if the law has no best size at that budget.
    """
    if k < 1:
        raise BadInput(f"k = {k}: propose at least 1 run")
    posed, best = fitted.problem, fitted.best
    columns, flops = _read_candidates(fitted, candidates)
    if not flops.min() <= budget_flops:
        raise BadInput(
            f"{budget_flops:.3g} FLOPs pay for none of {len(flops)} candidates: the cheapest costs {flops.min():.3g}"
        )
    at = None if target in posed.law.params else float(at_flops or _default_budget(fitted))
    gradient = target_gradient(posed, best, fitted.k, target, at, held or {})
    before, each = information.information_matrix(posed, best), information.law_sensitivity(posed, best, columns)
    plans = [choose_runs(before, each, flops, gradient, k, budget_flops, by_flop) for by_flop in (True, False)]
    rows = min(plans, key=lambda chosen: spread_after(before, each[chosen], gradient))
    return NextRuns(
        target=target,
        at_flops=at,
        sd_before=spread_after(before, each[:0], gradient),
        runs=tuple(
            ProposedRun(
                row=row,
                columns={name: float(np.asarray(values)[row]) for name, values in candidates.items()},
                flops=float(flops[row]),
                sd_after=spread_after(before, each[rows[: i + 1]], gradient),
            )
            for i, row in enumerate(rows)
        ),
    )


def choose_runs(
    before: np.ndarray,
    each: np.ndarray,
    flops: np.ndarray,
    gradient: np.ndarray,
    k: int,
    budget_flops: float,
    by_flop: bool = True,
) -> list[int]:
    """Choose at most `k` rows of `each` [G, K] within the budget: greedily, then by exchanges while any helps."""
    chosen: list[int] = []
    while True:
        while len(chosen) < k:
            row = _best_addition(before, each, flops, gradient, chosen, budget_flops, by_flop)
            if row is None:
                break
            chosen.append(row)
        better = _exchange_run(before, each, flops, gradient, chosen, budget_flops)
        if better is None:
            return _order_by_gain(before, each, flops, gradient, chosen)
        chosen = better


def _exchange_run(
    before: np.ndarray,
    each: np.ndarray,
    flops: np.ndarray,
    gradient: np.ndarray,
    chosen: list[int],
    budget_flops: float,
) -> list[int] | None:
    """The rows after one exchange that narrows the target; None if no exchange does."""
    now = spread_after(before, each[chosen], gradient)
    for out in chosen:
        rest = [row for row in chosen if row != out]
        row = _best_addition(before, each, flops, gradient, rest, budget_flops, by_flop=False)
        if row is not None and spread_after(before, each[[*rest, row]], gradient) < now * (1 - BETTER):
            return [*rest, row]
    return None


def _best_addition(
    before: np.ndarray,
    each: np.ndarray,
    flops: np.ndarray,
    gradient: np.ndarray,
    chosen: list[int],
    budget_flops: float,
    by_flop: bool,
) -> int | None:
    """The affordable row that adds most to those chosen; None if nothing is affordable."""
    open_ = flops <= (budget_flops - flops[chosen].sum()) * (1 + 1e-12)
    open_[chosen] = False
    if not open_.any():
        return None
    spread = information.covariance_matrix(before + each[chosen].T @ each[chosen])
    score = information.variance_gain(spread, each, gradient) / (flops if by_flop else 1.0)
    return int(np.where(open_, score, -np.inf).argmax())


def _order_by_gain(
    before: np.ndarray, each: np.ndarray, flops: np.ndarray, gradient: np.ndarray, chosen: list[int]
) -> list[int]:
    """Order the chosen rows, the greatest gain per FLOP first."""
    order: list[int] = []
    left = list(chosen)
    while left:
        spread = information.covariance_matrix(before + each[order].T @ each[order])
        order.append(left.pop(int((information.variance_gain(spread, each[left], gradient) / flops[left]).argmax())))
    return order


def spread_after(before: np.ndarray, each: np.ndarray, gradient: np.ndarray) -> float:
    """Standard deviation of the target once runs with sensitivities `each` [n, K] are done as well."""
    return float(np.sqrt(gradient @ information.covariance_matrix(before + each.T @ each) @ gradient))


def _read_candidates(
    fitted: Fitted, candidates: Mapping[str, ArrayLike]
) -> tuple[Mapping[str, np.ndarray], np.ndarray]:
    """(the law's columns, FLOPs) of the candidates, each [G]; BadInput if they are empty or lack a column."""
    law = fitted.law
    given = {name: np.atleast_1d(np.asarray(values, float)) for name, values in candidates.items()}
    if not given or not len(next(iter(given.values()))):
        raise BadInput("no candidate runs: give a grid to choose from")
    if "C" not in given and {"N", "D"} <= set(given):
        given["C"] = fitted.k * given["N"] * given["D"]
    if "C" not in given:
        raise BadInput("candidates need N and D, or their cost C in FLOPs")
    columns, _ = law_columns(given | {law.target: np.ones_like(given["C"])}, law)
    return columns, given["C"]


def _default_budget(fitted: Fitted) -> float:
    """The default target budget: the fit's first, else AHEAD times the largest run's; BadInput without N and D."""
    if fitted.decisions:
        return fitted.decisions[0].C
    N, D = information.sizes_and_tokens(fitted.problem.columns, fitted.k)
    if not len(N):
        raise BadInput(f"law {fitted.law.name!r} has no N and D: name a parameter as the target")
    return AHEAD * fitted.k * float((N * D).max())


def target_gradient(
    posed: Problem, best: Optimum, k: float, target: str, at: float | None, held: Mapping[str, float]
) -> np.ndarray:
    """Gradient [K] of the target (see `propose_runs`) by the solver's coordinates; "N" and "loss" at `at` FLOPs.

    BadInput for an unknown target, FitError if the law has no best size at `at`.
    """
    law = posed.law
    if at is None:
        return information.param_gradient(posed, best, target, list(law.params).index(target))
    if target not in ("N", "loss"):
        known = [*law.params, "N", "loss"]
        raise BadInput(f"target {target!r}: unknown{nearest_hint(target, known)}; one of {', '.join(known)}")
    decision.check_held_columns(law, held)

    def log_target(params: Mapping[str, np.ndarray]) -> np.ndarray:
        N = decision.optimal_size(law, {name: value[:, 0] for name, value in params.items()}, at, k, held)[:, None]
        return np.log(N if target == "N" else decision.losses_at_budget(law, params, N, at, k, held))

    gradient = information.function_derivatives(posed, best, log_target)[:, 0]
    if not np.isfinite(gradient).all():
        raise FitError(f"the law has no compute-optimal size at {at:.3g} FLOPs: choose a parameter as the target")
    return gradient
