"""Gadre et al. 2024, "Language models scale reliably with over-training and on downstream tasks" (arXiv 2403.08540).

Coefficients of tables 2 and 5 and predictions of section 4, with the digits of the authors' code
(mlfoundations/scaling, `scaling/laws.py`, `scaling/shared.py`). Data: their runs, merged into one table.
"""

import pathlib
from collections.abc import Callable, Iterable

import numpy as np

from scalelab.laws.law.law import Law
from scalelab.laws.law.names import LAWS
from scalelab.laws.law.objective import load_objective
from scalelab.laws.published import tables
from scalelab.laws.published.tables import Line
from scalelab.laws.published.verdict import ComparisonRow, PaperReport, make_comparison_row
from scalelab.laws.solve import optimum
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.pose import pose_problem

SOURCE = "arXiv 2403.08540; code of mlfoundations/scaling"
LOSS_LAW = {  # L = E + (a M^eta + b M^-eta) C^-eta on C4 validation loss, by training set
    "c4_original": {"E": "1.50826", "a": "141.28", "b": "189.5155", "eta": "0.121235"},
    "rpj": {"E": "1.83665", "a": "212.24", "b": "366.6872", "eta": "0.136425"},
    "rw_original": {"E": "1.73446", "a": "157.12", "b": "246.2067", "eta": "0.127195"},
}
ERROR_LAW = {  # error = epsilon - k exp(-gamma L), averages over 17 and 46 tasks
    ("c4_original", 17): {"epsilon": "0.8497", "k": "2.0789", "gamma": "0.7561"},
    ("c4_original", 46): {"epsilon": "0.7589", "k": "1.2885", "gamma": "0.9722"},
    ("rpj", 17): {"epsilon": "0.8570", "k": "2.2065", "gamma": "0.7146"},
    ("rpj", 46): {"epsilon": "0.7608", "k": "1.3229", "gamma": "0.8907"},
    ("rw_original", 17): {"epsilon": "0.8653", "k": "2.2148", "gamma": "0.7070"},
    ("rw_original", 46): {"epsilon": "0.7677", "k": "1.1281", "gamma": "0.8215"},
}
ERROR_COLUMN = {17: "err_avg_subset", 46: "err_avg"}
PREDICTED = {  # held-out runs on RedPajama: relative errors of the predicted loss and 17-task error, %
    "1.4B, M = 640": ("open_lm_1b", 32, "0.7103", "3.6365"),
    "6.9B, M = 20": ("open_lm_7b", 1, "0.7320", "0.0464"),
}
ETA_TOLERANCE = 5e-6  # eta is half of the exponent that the code prints to six digits

LOSS_RECIPE = (
    "5 runs: the four smaller sizes at M = 20 and the smallest at M = 320; C = 6ND; least squares on C4 loss, global"
)
ERROR_RECIPE = "6 runs: those and 1.4B at M = 20; least squares of average error on measured C4 loss, global"
PREDICTION = "the two laws, one after the other, at a run that neither has seen; |predicted / measured - 1| in %"
COLUMNS = ("flops", "tok_mult", "loss_c4_val")
OVERTRAINING, DOWNSTREAM = LAWS["overtraining"], LAWS["downstream"]


def fit_rows(lines: Iterable[Line], dataset: str) -> tuple[list[Line], list[Line]]:
    """(the 5 runs of the loss law, the 6 of the error law) of one training set."""
    runs = [line for line in lines if line["dataset_name"] == dataset]
    small = [line for line in runs if not line["model_name"].startswith("open_lm")]
    five = [line for line in small if float(line["cc_mult"]) == 1]
    five += [line for line in small if float(line["cc_mult"]) == 16 and line["model_name"] == "d=96_l=8_h=4"]
    return five, [*five, find_run(runs, dataset, "open_lm_1b", 1)]


def find_run(lines: Iterable[Line], dataset: str, model: str, multiple: float) -> Line:
    """Find the run of this training set, size and multiple of 20 tokens per parameter; there is only one."""
    (run,) = [
        line
        for line in lines
        if (line["dataset_name"], line["model_name"], float(line["cc_mult"])) == (dataset, model, multiple)
    ]
    return run


def _least_squares(law: Law, columns: dict[str, np.ndarray], target: np.ndarray) -> Optimum:
    return optimum.minimise_objective(pose_problem(law, columns, target, load_objective("mse")))


def fit_loss(five: list[Line]) -> Optimum:
    """Fit the overtraining law to the losses of five runs, by least squares of the raw loss."""
    C, M, loss = tables.float_columns(five, *COLUMNS)
    return _least_squares(OVERTRAINING, {"C": C, "M": M}, loss)


def fit_error(six: list[Line], tasks: int) -> Optimum:
    """Fit the downstream law to the losses and average errors of six runs."""
    loss, error = tables.float_columns(six, "loss_c4_val", ERROR_COLUMN[tasks])
    return _least_squares(DOWNSTREAM, {"loss": loss}, error)


def reproduce(data: pathlib.Path, tell: Callable[[str], None]) -> PaperReport:
    """Recompute the coefficients of both laws on three training sets, and the predictions."""
    lines = tables.read_paper_table(data, "gadre/runs.csv")
    rows, findings = [], []
    for dataset, coefficients in LOSS_LAW.items():
        five, six = fit_rows(lines, dataset)
        loss_law = fit_loss(five)
        for name, text in coefficients.items():
            tolerance = ETA_TOLERANCE if name == "eta" else None
            rows.append(
                make_comparison_row(f"{dataset}: {name}", loss_law.params[name], text, LOSS_RECIPE, tolerance=tolerance)
            )
        for tasks in ERROR_COLUMN:
            error_law = fit_error(six, tasks)
            for name, text in ERROR_LAW[dataset, tasks].items():
                rows.append(
                    make_comparison_row(f"{dataset}, {tasks} tasks: {name}", error_law.params[name], text, ERROR_RECIPE)
                )
            if (dataset, tasks) == ("rpj", 17):
                rows += _prediction_rows(lines, loss_law, error_law)
        a, eta = loss_law.params["a"], loss_law.params["eta"]
        findings.append(f"{dataset}: the code's own coefficient of N^(-2 eta) is {a * 6**-eta:.2f}: a / 6^eta, not a")
    return PaperReport("gadre", SOURCE, tuple(rows), tuple(findings))


def _prediction_rows(lines: list[Line], loss_law: Optimum, error_law: Optimum) -> list[ComparisonRow]:
    rows = []
    for name, (model, multiple, loss_text, error_text) in PREDICTED.items():
        run = [find_run(lines, "rpj", model, multiple)]
        C, M, loss = tables.float_columns(run, *COLUMNS)
        (error,) = tables.float_columns(run, ERROR_COLUMN[17])
        predicted = OVERTRAINING({"C": C, "M": M}, loss_law.params)
        predicted_error = DOWNSTREAM({"loss": predicted}, error_law.params)
        rows.append(
            make_comparison_row(f"rpj, {name}: loss, % off", _relative_error(predicted, loss), loss_text, PREDICTION)
        )
        rows.append(
            make_comparison_row(
                f"rpj, {name}: 17-task error, % off", _relative_error(predicted_error, error), error_text, PREDICTION
            )
        )
    return rows


def _relative_error(predicted: np.ndarray, measured: np.ndarray) -> float:
    return float(100 * abs(predicted[0] / measured[0] - 1))
