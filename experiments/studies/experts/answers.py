"""From losses to answers: the gain of experts at equal active compute, the joint law, and the prediction."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab import laws
from scalelab.errors import BadInput, WorkFailed
from scalelab.experiments.studies.experts import runs
from scalelab.experiments.studies.experts.runs import EXPANSIONS, SEEDS, WIDTHS, Cell
from scalelab.laws import FitError, Fitted
from scalelab.sweep.answer.differences import mean_difference

LEVEL = 0.95
LAW = "expert_count"
# What 36 cells can't tell is held: exponents that change with experts, and a saturation of their number.
FIXED = {"gamma": 0.0, "zeta": 0.0, "omega": 0.0, "E_start": 1.0, "E_max": 1e6}
RESAMPLES = 200
Losses = Mapping[Cell, Sequence[float]]  # by seed


def best_widths(losses: Losses, budget: float) -> dict[int, int]:
    """{expansion: width of the least mean loss} at a budget."""
    mean = lambda expansion, width: float(np.mean(losses[expansion, width, budget]))  # noqa: E731
    return {x: min(WIDTHS, key=lambda width: mean(x, width)) for x in EXPANSIONS}


def compare_with_dense(losses: Losses, budget: float) -> list[dict[str, Any]]:
    """Each expansion's loss less the dense model's at a budget, each at its best width, paired by seed.

    The best width is chosen on the same seeds; so it is for the dense model, and both gain by it.
    """
    best = best_widths(losses, budget)
    by_seed: dict[int, dict[Hashable, float]] = {x: dict(enumerate(losses[x, best[x], budget])) for x in EXPANSIONS}
    rows = []
    for expansion in EXPANSIONS:
        row = {"budget": budget, "expansion": expansion, "width": best[expansion],
               "edge": best[expansion] in (min(WIDTHS), max(WIDTHS)), **runs.measure_model(expansion, best[expansion]),
               "loss": float(np.mean(list(by_seed[expansion].values())))}  # fmt: skip
        difference = mean_difference(by_seed[expansion], by_seed[1], LEVEL) if expansion > 1 else None
        rows.append(row | (difference._asdict() if difference else {}))
    return rows


def count_falls(rows: Sequence[Mapping[str, Any]]) -> int:
    """How often the loss falls from one expansion to the next, at one budget."""
    each = [row["loss"] for row in sorted(rows, key=lambda row: row["expansion"])]
    return int(np.sum(np.diff(each) < 0))


def law_table(losses: Losses) -> dict[str, np.ndarray]:
    """The columns of the joint law: N active, D, experts (the expansion: 1 is dense), loss; a row a run."""
    rows = [
        (runs.measure_model(x, width)["active"], count_tokens((x, width, budget)), x, loss)
        for (x, width, budget), each in losses.items()
        for loss in each
    ]
    return dict(zip(("N", "D", "experts", "loss"), np.array(rows, float).T, strict=True))


def count_tokens(cell: Cell) -> float:
    """Tokens of a cell's runs."""
    return float(runs.count_steps(cell) * runs.RULE.batch(0.0, 0) * runs.build_model(1, cell[1]).model.seq_len)


def fit_law(losses: Losses) -> Fitted:
    """The joint law. WorkFailed if the fit is not certain."""
    try:
        return laws.fit(law_table(losses), LAW, fixed=FIXED, bootstrap=RESAMPLES, identify=False, n_convention="active")
    except FitError as failure:
        raise WorkFailed(f"the joint law could not be fitted: {failure}") from failure


def hold_out(losses: Losses, is_held: Callable[[Cell], bool]) -> dict[str, Any]:
    """Relative errors, by mean losses, of the joint law of the other cells on those that are held: where does it fail?

    `alpha`: that fit's exponent of N. {"reason": why} where the others don't determine the law.
    """
    others, held = ({c: each for c, each in losses.items() if is_held(c) is side} for side in (False, True))
    try:
        fitted = laws.fit(law_table(others), LAW, fixed=FIXED, bootstrap=0, identify=False, n_convention="active")
    except (BadInput, FitError) as failure:
        return {"reason": str(failure)}
    table = law_table({cell: [float(np.mean(each))] for cell, each in held.items()})
    errors = fitted.problem.law(table, fitted.params) / table["loss"] - 1
    worst = float(errors[np.argmax(np.abs(errors))])
    return {"mean": float(np.mean(errors)), "worst": worst, "alpha": fitted.params["alpha"]}


def predict_cell(fitted: Fitted, cell: Cell) -> dict[str, Any]:
    """The law's prediction of one run."""
    expansion, width, budget = cell
    N, D = runs.measure_model(expansion, width)["active"], count_tokens(cell)
    predicted = fitted.predict(N, D, experts=float(expansion))
    return {"expansion": expansion, "width": width, "budget": budget, "N": N, "D": D, "loss": predicted.loss,
            "interval90": [predicted.low, predicted.high], "params": fitted.params}  # fmt: skip


def compare_balances(arms: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Means by way to balance, and the bias less the loss: of losses and imbalances, paired by seed."""
    first, other = "bias 1e-2", "aux 1e-2"

    def by_seed(arm: str, key: str) -> dict[Hashable, float]:
        return {seed: each[key] for seed, each in zip(SEEDS, arms[arm], strict=True)}

    differences = {
        key: mean_difference(by_seed(first, key), by_seed(other, key), LEVEL) for key in ("loss", "imbalance")
    }
    return {
        "arms": {
            arm: {key: float(np.mean([run[key] for run in each])) for key in each[0]} for arm, each in arms.items()
        },
        "differences": {key: each._asdict() if each else None for key, each in differences.items()},
    }
