"""Marin's frontier of mixtures of experts, 2026 (marin-community/marin, issues 4447 and 4697): a forecast, scored.

The best loss at each of six budgets up to 3e20 FLOPs, and two runs that were measured later, at 1e21 and 1e23. The
authors' own forecast held the limit of the loss at 1.6. Ours is retrospective: both runs were known when it was made.
Nothing was tuned for it: the law is `saturating` with all its parameters free, and options are the defaults.
"""

import pathlib
from collections.abc import Callable

import numpy as np

from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.fits.fitting import fit
from scalelab.laws.published import tables
from scalelab.laws.published.verdict import ComparisonRow, PaperReport, judge_forecast, make_comparison_row
from scalelab.laws.trust.uncertainty import predict_run

SOURCE = "github.com/marin-community/marin, issues 4447 and 4697 (Apache-2.0)"
AUTHORS = {1e21: "2.606", 1e23: "2.252"}  # their forecast, L_inf = 1.6
RECIPE = "L = E + A/C^alpha fitted to the six budgets up to 3e20; `published` was measured, the interval is ours, 90 %"


def fit_frontier(data: pathlib.Path) -> tuple[Fitted, dict[float, str]]:
    """Fit the law to the six budgets: (the fit, the losses measured later by their FLOPs, as printed)."""
    lines = tables.read_paper_table(data, "marin/moe_frontier.csv")
    early = [line for line in lines if line["note"] == "fitted"]
    C, loss = tables.float_columns(early, "C", "loss")
    later = {float(line["C"]): line["loss"] for line in lines if line["note"] != "fitted"}
    return fit({"C": C, "loss": loss}, "saturating", identify=False), later


def reproduce(data: pathlib.Path, tell: Callable[[str], None]) -> PaperReport:
    """Forecast the two later runs, and score the forecast beside the authors' own."""
    fitted, later = fit_frontier(data)
    rows = [_forecast_row(fitted, C, measured) for C, measured in later.items()]
    beyond = max(later) / float(np.max(fitted.problem.columns["C"]))
    findings = [
        f"{C:g} FLOPs: ours is {_percent_off(row.ours, row.published):+.2f} % off, "
        f"the authors' own forecast of {AUTHORS[C]} {_percent_off(float(AUTHORS[C]), row.published):+.2f} %"
        for C, row in zip(later, rows, strict=True)
    ]
    findings.append(
        f"retrospective: the later runs, the last {beyond:.0f} times beyond the data, were known, but nothing was tuned"
    )
    return PaperReport("marin", SOURCE, tuple(rows), tuple(findings))


def _forecast_row(fitted: Fitted, C: float, measured: str) -> ComparisonRow:
    assert fitted.bootstrap  # fit's default
    forecast = predict_run(fitted.problem, fitted.best, fitted.bootstrap, {"C": C}, fitted.level)
    interval = (forecast.low, forecast.high)
    name = f"loss at {C:g} FLOPs"
    return make_comparison_row(name, forecast.loss, measured, RECIPE, judge_forecast, interval=interval)


def _percent_off(forecast: float, measured: float) -> float:
    return 100 * (forecast / measured - 1)
