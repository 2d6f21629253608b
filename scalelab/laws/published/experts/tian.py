"""Tian et al. 2025, "Towards Greater Leverage" (arXiv 2507.17702): efficiency leverage, tables 1 and 2.

Eq. 13 does not print the bases of its logarithms. With log2 G and log10 C its parameters give the paper's own optimum
and forecast; with one base for both they don't.
"""

import functools

from scalelab.laws.law.names import LAWS
from scalelab.laws.published.verdict import (
    ComparisonRow,
    judge_agreement,
    judge_consistency,
    judge_least,
    make_comparison_row,
    rounding_spread,
)

LAW = LAWS["leverage"]
TABLE_2 = {"a": "1.23", "d": "-7.61e-2", "gamma": "1.67e-2", "beta": "-1.17e-1", "A_start": "1.63e-2"}
DESIGN = {"activation": 0.031, "granularity": 12.0, "C": 1e22}  # sec. 4.2.2: above 7
LEVERAGE = "7"
BEST_G = ("12", (8.0, 12.0))  # sec. 4.1.2: the optimum, and its range
TABLE_1 = {  # best FLOPs a token M = m C^p and tokens D = t C^q: m, p, t, q
    "dense": ("0.0655", "0.5422", "15.2582", "0.4578"),
    "experts": ("0.1915", "0.5095", "5.2232", "0.4905"),
}


def best_granularity(params: dict[str, float]) -> float:
    """The granularity of greatest leverage at any activation and budget."""
    return float(2.0 ** (-params["beta"] / (2 * params["gamma"])))


def _leverage(params: dict[str, float]) -> float:
    return float(LAW(DESIGN, params))


def compare_rows() -> list[ComparisonRow]:
    """Rows of the forecast, the best granularity, and table 1, whose M D is C."""
    exact = {name: float(text) for name, text in TABLE_2.items()}
    text, interval = BEST_G
    recipe = "eq. 13 with table 2, log2 G and log10 C; A_max is infinite"
    design = "Tian: leverage at 1e22 FLOPs, A = 3.1 %, G = 12: above"
    rows = [
        make_comparison_row(design, _leverage(exact), LEVERAGE, recipe, judge_least, tolerance=0.0),
        make_comparison_row(
            "Tian: best granularity", best_granularity(exact), text, recipe, judge_agreement, 0.0, interval
        ),
    ]
    for kind, (m, p, t, q) in TABLE_1.items():
        row = functools.partial(make_comparison_row, judge=judge_consistency)
        product = rounding_spread(lambda each: each["m"] * each["t"], {"m": m, "t": t})
        exponents = rounding_spread(lambda each: each["p"] + each["q"], {"p": p, "q": q})
        recipe = "M D = C: the factors' product and the exponents' sum are 1, within their rounding"
        name = f"Tian, table 1, {kind}"
        rows.append(row(f"{name}: product of factors", float(m) * float(t), "1", recipe, tolerance=product))
        rows.append(row(f"{name}: sum of exponents", float(p) + float(q), "1", recipe, tolerance=exponents))
    return rows
