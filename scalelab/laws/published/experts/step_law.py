"""Step Law (Li et al. 2025, arXiv 2503.04715) on its authors' own sweep of models with experts.

Their README: the law "generalizes across diverse model shapes, architectures, and data distributions". It gives the
best learning rate from N and D and the best batch from D alone, fitted on dense models. The sweep (step-law/steplaw,
data, moe.csv: 708 runs) has four models of nearly equal N, all parameters without embeddings, and of 9 % to 58 % active
ones, at four numbers of tokens. So it tells which N the law means, and whether sparsity matters beside it.
"""

import pathlib
from collections.abc import Callable

import numpy as np

from scalelab.laws.law.names import LAWS
from scalelab.laws.published import tables
from scalelab.laws.published.verdict import (
    ComparisonRow,
    PaperReport,
    judge_statement,
    make_comparison_row,
    rounding_tolerance,
)
from scalelab.laws.use.settings.best import BestSettings, fit_best_settings

SOURCE = "arXiv 2503.04715; github.com/step-law/steplaw, README and data (moe.csv)"
TABLE = "steplaw/moe.csv"
LR = {"c": 1.79, "alpha": -0.713, "beta": 0.307}
BATCH = {"c": 0.58, "beta": 0.571}
SEQ_LEN = 2048
LEVEL = 0.9
GRID_STEP = 2**0.5 - 1  # neighbouring learning rates of the sweep
RECIPE = (
    "best lr and batch of each model and D by a surface through its 40 to 45 runs, and a power law of active "
    "parameters and D through these; interval 90 %"
)
MIDDLE_RECIPE = "the same, in the middle of the sweep, over the law's own value; within a step of the sweep's grid"


def fit_sweep(data: pathlib.Path) -> tuple[BestSettings, float]:
    """(the best settings of the sweep and their laws, the geometric mean of all parameters)."""
    lines = tables.read_paper_table(data, TABLE)
    lr, sequences, loss, active, total, D = tables.float_columns(lines, "lr", "bs", "smooth loss", "Na", "N", "D")
    table = {"lr": lr, "batch_tokens": sequences * SEQ_LEN, "loss": loss, "N_active": active, "D": D}
    over = dict.fromkeys(("lr", "batch_tokens"), ("N_active", "D"))
    best = fit_best_settings(table, list(over), ["N_active", "D"], over, LEVEL)
    return best, float(np.exp(np.log(total).mean()))


def reproduce(data: pathlib.Path, tell: Callable[[str], None]) -> PaperReport:
    """Judge the law's exponents and its values on models with experts."""
    best, N = fit_sweep(data)
    lr, batch = best.laws["lr"], best.laws["batch_tokens"]
    middle = dict(zip(lr.columns, np.exp(lr.centre).tolist(), strict=True))
    rows = [
        _exponent_row(best, "lr", "N_active", "0", "at equal N of all parameters"),
        _exponent_row(best, "lr", "D", "0.307", ""),
        _exponent_row(best, "batch_tokens", "N_active", "0", "at equal N of all parameters"),
        _exponent_row(best, "batch_tokens", "D", "0.571", ""),
    ]
    of_all, of_active = (_over_law(lr.predict(middle)[0], size, middle["D"]) for size in (N, middle["N_active"]))
    name = "best lr over the law's, N of all parameters"
    rows.append(make_comparison_row(name, of_all, "1", MIDDLE_RECIPE, judge_statement, GRID_STEP))
    low, high = batch.interval("N_active")
    findings = (
        f"N of the law is all parameters: with the active ones its rate would be {1 / of_active:.1f} times the best.",
        f"the best batch is not one of D alone: it goes as (active parameters)^p, p = {low:.2f} to {high:.2f}, so that "
        "sparser models of one size want larger batches.",
    )
    return PaperReport("step_law", SOURCE, tuple(rows), findings, stated=True)


def _exponent_row(best: BestSettings, setting: str, column: str, stated: str, at: str) -> ComparisonRow:
    law = best.laws[setting]
    name = f"best {setting} ~ {column}^p{', ' * bool(at)}{at}: p"
    rounding = rounding_tolerance(stated) if float(stated) else 0.0  # the law does not have the column at all
    return make_comparison_row(
        name, law.exponents[column], stated, RECIPE, judge_statement, rounding, law.interval(column)
    )


def _over_law(lr: float, N: float, D: float) -> float:
    """A learning rate over that of Step Law."""
    return lr / float(LAWS["step_law_lr"]({"N": N, "D": D}, LR))
