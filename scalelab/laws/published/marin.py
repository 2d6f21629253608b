"""Marin's mixtures of experts, 2026 (marin-community/marin): a forecast (issues 4447 and 4697), scored; a grid (8003).

The best loss at each of six budgets up to 3e20 FLOPs, and two runs that were measured later, at 1e21 and 1e23. The
authors' own forecast held the limit of the loss at 1.6. Ours is retrospective: both runs were known when it was made.
Nothing was tuned for it: the law is `saturating` with all its parameters free, and options are the defaults.
The grid of widths and budgets of issue 8003 is typed from its first results; later cells were never finished. The grid
of issue 6074 is not here: its table could not be read.
"""

import functools
import pathlib
from collections.abc import Callable

import numpy as np

from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.fits.fitting import fit
from scalelab.laws.published import tables
from scalelab.laws.published.verdict import (
    ComparisonRow,
    PaperReport,
    judge_consistency,
    judge_forecast,
    make_comparison_row,
    rounding_spread,
    rounding_tolerance,
)
from scalelab.laws.trust.uncertainty import predict_run

SOURCE = "github.com/marin-community/marin, issues 4447, 4697 and 8003, experiments/grug/moe/README.md (Apache-2.0)"
AUTHORS = {1e21: "2.606", 1e23: "2.252"}  # their forecast, L_inf = 1.6
LIMIT = 1.6  # the loss of ever more FLOPs, pinned by the authors
# Issue 8003, comment of 2026-08-06 (#issuecomment-5209786274): FLOPs, width, tokens, Paloma macro loss, finished cells
# of the budgets of which all finished; the optima below them; and the laws beside each other.
GRID = {
    1e18: ((512, 5.77e9, "3.399"), (768, 2.33e9, "3.364"), (1024, 9.23e8, "3.456")),
    3e18: ((512, 1.73e10, "3.298"), (768, 7.00e9, "3.204"), (1024, 2.77e9, "3.224"), (1280, 1.57e9, "3.289")),
    1e19: ((512, 5.77e10, "3.226"), (768, 2.33e10, "3.071"), (1024, 9.23e9, "3.039"), (1280, 5.23e9, "3.058"),
           (1536, 3.29e9, "3.105")),
}  # fmt: skip
OPTIMA = {1e18: ("2.84e9", "3.361"), 3e18: ("5.08e9", "3.198"), 1e19: ("9.90e9", "3.033")}  # tokens, loss
TOKENS_POWER = "0.542"
LAWS_8003 = {"of issue 8003": ("72.6", "0.0897"), "May recipe": ("88.32", "0.0941"), "v16": ("95.18", "0.0941")}
BESIDE = {  # issue 8003 (ours, README, README v16)
    1e18: ("3.362", "3.388", "3.526"), 1e19: ("3.033", "3.039", "3.151"), 3e19: ("2.899", "2.898", "2.999"),
    1e20: ("2.766", "2.759", "2.849"),
}  # fmt: skip
GRID_RECIPE = (
    "a parabola of the loss in log tokens through the cells of one budget, within the rounding of their losses"
)
PINNED_RECIPE = "log(L - 1.6) as a straight line in log C through the best losses, within their rounding"
BESIDE_RECIPE = "1.6 + A C^-alpha with the printed A and alpha, within their rounding"
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
    forecasts = [_forecast_row(fitted, C, measured) for C, measured in later.items()]
    beyond = max(later) / float(np.max(fitted.problem.columns["C"]))
    findings = [
        f"{C:g} FLOPs: ours is {_percent_off(row.ours, row.published):+.2f} % off, "
        f"the authors' own forecast of {AUTHORS[C]} {_percent_off(float(AUTHORS[C]), row.published):+.2f} %"
        for C, row in zip(later, forecasts, strict=True)
    ]
    findings.append(
        f"retrospective: the later runs, the last {beyond:.0f} times beyond the data, were known, but nothing was tuned"
    )
    frontier = {float(C): f"{L:.3f}" for C, L in zip(fitted.problem.columns["C"], fitted.problem.target, strict=True)}
    rows = [*forecasts, *_pinned_rows("v16", frontier), *_grid_rows(), *_beside_rows()]
    return PaperReport("marin", SOURCE, tuple(rows), tuple(findings))


def parabola_minimum(tokens: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """(tokens, loss) at the vertex of a parabola of the loss in log tokens."""
    bend, slope, level = np.polyfit(np.log10(tokens), loss, 2)
    return float(10 ** (-slope / (2 * bend))), float(level - slope**2 / (4 * bend))


def _grid_rows() -> list[ComparisonRow]:
    """Rows of the grid's optima, and of the laws through them."""
    row = functools.partial(make_comparison_row, judge=judge_consistency)
    rows = []
    for C, cells in GRID.items():
        tokens, printed = np.array([cell[1] for cell in cells]), {str(width): loss for width, _, loss in cells}
        for place, (what, text) in enumerate(zip(("best tokens", "loss there"), OPTIMA[C], strict=True)):

            def compute(losses: dict[str, float], tokens=tokens, place=place) -> float:
                return parabola_minimum(tokens, np.array(list(losses.values())))[place]

            ours = compute({width: float(loss) for width, loss in printed.items()})
            allowed = rounding_tolerance(text) + rounding_spread(compute, printed)
            rows.append(row(f"issue 8003, {C:.0e} FLOPs: {what}", ours, text, GRID_RECIPE, tolerance=allowed))
    best = {f"{C:g}": tokens for C, (tokens, _) in OPTIMA.items()}
    power = _power_of({name: float(text) for name, text in best.items()})
    allowed = rounding_tolerance(TOKENS_POWER) + rounding_spread(_power_of, best)
    recipe = "a straight line through the logs of the three printed optima, within their rounding"
    rows.append(row("issue 8003: best tokens ~ C^p: p", power, TOKENS_POWER, recipe, tolerance=allowed))
    return rows + _pinned_rows("of issue 8003", {C: loss for C, (_, loss) in OPTIMA.items()})


def _power_of(values: dict[str, float]) -> float:
    """The exponent of a power law through {C: value}."""
    return float(np.polyfit(np.log([float(C) for C in values]), np.log(list(values.values())), 1)[0])


def _pinned_rows(name: str, printed: dict[float, str]) -> list[ComparisonRow]:
    """Rows of A and alpha of 1.6 + A C^-alpha through the best losses {C: loss}."""
    texts = {f"{C:g}": text for C, text in printed.items()}

    def alpha(losses: dict[str, float]) -> float:
        return -_power_of({C: loss - LIMIT for C, loss in losses.items()})

    def scale(losses: dict[str, float]) -> float:
        above = np.log([loss - LIMIT for loss in losses.values()])
        return float(np.exp(np.mean(above + alpha(losses) * np.log([float(C) for C in losses]))))

    losses = {C: float(text) for C, text in texts.items()}
    return [
        make_comparison_row(
            f"law {name}: {what}",
            compute(losses),
            text,
            PINNED_RECIPE,
            judge_consistency,
            rounding_tolerance(text) + rounding_spread(compute, texts),
        )
        for what, compute, text in zip(("A", "alpha"), (scale, alpha), LAWS_8003[name], strict=True)
    ]


def _beside_rows() -> list[ComparisonRow]:
    """Rows of the losses that issue 8003 prints for three laws."""
    rows = []
    for C, texts in BESIDE.items():
        for (name, (A, alpha)), text in zip(LAWS_8003.items(), texts, strict=True):

            def compute(law: dict[str, float], C=C) -> float:
                return LIMIT + law["A"] * C ** -law["alpha"]

            allowed = rounding_tolerance(text) + rounding_spread(compute, {"A": A, "alpha": alpha})
            ours = compute({"A": float(A), "alpha": float(alpha)})
            rows.append(
                make_comparison_row(
                    f"law {name}: loss at {C:g} FLOPs", ours, text, BESIDE_RECIPE, judge_consistency, allowed
                )
            )
    return rows


def _forecast_row(fitted: Fitted, C: float, measured: str) -> ComparisonRow:
    assert fitted.bootstrap  # fit's default
    forecast = predict_run(fitted.problem, fitted.best, fitted.bootstrap, {"C": C}, fitted.level)
    interval = (forecast.low, forecast.high)
    name = f"loss at {C:g} FLOPs"
    return make_comparison_row(name, forecast.loss, measured, RECIPE, judge_forecast, interval=interval)


def _percent_off(forecast: float, measured: float) -> float:
    return 100 * (forecast / measured - 1)
