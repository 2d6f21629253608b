"""Muennighoff et al. 2023, "Scaling Data-Constrained Language Models" (arXiv 2305.16264).

R_D* and R_N* are fitted, all other parameters held at the C4 law of that paper (appendix A; huggingface/datablations).
Data: the 182 runs of the authors' fit.
"""

import pathlib
from collections.abc import Callable

import numpy as np

from scalelab.laws.law import law as law_lib
from scalelab.laws.law.names import LAWS
from scalelab.laws.law.objective import huber_log
from scalelab.laws.published import tables
from scalelab.laws.published.verdict import (
    ComparisonRow,
    PaperReport,
    judge_minimum,
    judge_superseded,
    make_comparison_row,
)
from scalelab.laws.solve import optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Columns, Problem
from scalelab.laws.trust import profile
from scalelab.laws.trust.profile import ParamProfile
from scalelab.laws.use import decision

SOURCE = "arXiv 2305.16264; notebook and README of huggingface/datablations"
LOG_A, LOG_B, LOG_E, EXPONENT = 6.255414, 7.3049974, 0.6254804, 0.3526596  # alpha = beta
HELD_PARAMS = {
    "E": float(np.exp(LOG_E)),
    "A": float(np.exp(LOG_A)),
    "B": float(np.exp(LOG_B)),
    "alpha": EXPONENT,
    "beta": EXPONENT,
}
PUBLISHED = {"R_D_star": "15.387756", "R_N_star": "5.309743"}
OBJECTIVE = "0.015825936570763588"
R_SQUARED, R_SQUARED_NO_DECAY = "0.7722046", "0.4451684"
README = (((6.34e9, 242e9, 25e9), "2.2256440890"), ((8.67e9, 178e9, 25e9), "2.2269634075"))  # N, D, U: loss
BUDGET, UNIQUE, BEST_N, BEST_EPOCHS = 1e22, 25e9, "7.02e9", "9.49"  # FLOPs, unique tokens, and their best use
# Share of the objective: the authors computed it in single precision (it is the float32 0.015825937).
SINGLE_PRECISION_TOLERANCE = 1e-7
LEVEL = 0.9

LAW = law_lib.hold_params(LAWS["data_constrained"], **HELD_PARAMS)
RECIPE = "182 runs; a, b, e, alpha = beta held at the C4 law; sum of Huber(1e-3) of log loss"


def read_columns(data: pathlib.Path) -> tuple[Columns, np.ndarray]:
    """Read N, D and unique tokens U of the runs, and their loss."""
    lines = tables.read_paper_table(data, "datablations/runs_182_fit_set.csv")
    N, D, U, loss = tables.float_columns(lines, "params", "tokens_total", "tokens_unique", "val_loss")
    return {"N": N, "D": D, "U": U}, loss


def reproduce(data: pathlib.Path, tell: Callable[[str], None]) -> PaperReport:
    """Recompute the objective at the published optimum and at ours, fits with and without decay, and predictions."""
    columns, loss = read_columns(data)
    posed = pose_problem(LAW, columns, loss, huber_log())
    theirs = {name: float(text) for name, text in PUBLISHED.items()}
    there = _objective_value(posed, theirs)
    best = optimum.minimise_objective(posed, also=theirs)
    profiles = profile.profile_params(posed, best, LEVEL)
    tolerance = SINGLE_PRECISION_TOLERANCE * there
    at_minimum, at_params = f"{RECIPE}; global minimum", f"{RECIPE}; at the global minimum"
    rows = [
        make_comparison_row("objective at the published optimum", there, OBJECTIVE, RECIPE, tolerance=tolerance),
        make_comparison_row("minimum of the objective", best.value, OBJECTIVE, at_minimum, judge_minimum, tolerance),
        *[
            make_comparison_row(name.replace("_star", "*"), best.params[name], text, at_params, judge_superseded)
            for name, text in PUBLISHED.items()
        ],
        *_fit_rows(columns, loss, theirs),
        *_use_rows(theirs),
    ]
    return PaperReport("muennighoff", SOURCE, tuple(rows), _findings(there, best.value, profiles))


def _objective_value(posed: Problem, params: dict[str, float]) -> float:
    return float(posed.value(posed.from_params(params)[None], np.ones((1, posed.points)))[0])


def _fit_rows(columns: Columns, loss: np.ndarray, theirs: dict[str, float]) -> list[ComparisonRow]:
    def r_squared(law: np.ndarray) -> float:
        return float(1 - np.sum((loss - law) ** 2) / np.sum((loss - loss.mean()) ** 2))

    plain = LAWS["chinchilla"](columns, HELD_PARAMS)
    recipe = "1 - sum of squared residuals of the loss over its variance, 182 runs"
    return [
        make_comparison_row("R^2 at the published optimum", r_squared(LAW(columns, theirs)), R_SQUARED, recipe),
        make_comparison_row("R^2 without decay", r_squared(plain), R_SQUARED_NO_DECAY, recipe),
    ]


def _use_rows(theirs: dict[str, float]) -> list[ComparisonRow]:
    """Rows of the numbers that the authors' README computes from the published law."""
    rows = []
    for (N, D, U), text in README:
        ours = float(LAW({"N": N, "D": D, "U": U}, theirs))
        rows.append(
            make_comparison_row(
                f"loss of N = {N:.3g}, D = {D:.3g}, U = {U:.3g}", ours, text, "the published law", tolerance=1e-7
            )
        )
    size = float(decision.optimal_size(LAW, theirs, BUDGET, 6.0, {"U": UNIQUE})[0])
    recipe = "the published law's lowest loss where C = 6ND = 1e22 and U = 25e9"
    rows.append(make_comparison_row("best N", size, BEST_N, recipe, tolerance=0.01e9))  # the README cuts digits off
    rows.append(make_comparison_row("best number of epochs", BUDGET / (6 * size * UNIQUE), BEST_EPOCHS, recipe))
    return rows


def _findings(there: float, best: float, profiles: dict[str, ParamProfile]) -> tuple[str, ...]:
    findings = [f"The published optimum is a local minimum: an objective {1 - best / there:.2%} lower exists."]
    for name, curve in profiles.items():
        low, high = ("open" if end is None else f"{end:.3g}" for end in curve.interval)
        symbol, interval = name.replace("_star", "*"), f"{LEVEL:.0%} profile interval {low} to {high}"
        findings.append(f"{symbol} is {curve.verdict} by these runs: {interval}")
    return tuple(findings)
