"""Ludziejewski et al. 2025, "Joint MoE Scaling Laws: Mixture of Experts Can Be Memory Efficient" (arXiv 2502.05172).

Table 3 has the parameters of eq. 6, table 4 the Chinchilla law that they give for each number of experts, table 1 the
best active parameters and tokens of three budgets, C = 6 N D.
"""

import functools

from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, optimal_allocation
from scalelab.laws.law.expert_forms import chinchilla_of
from scalelab.laws.published.verdict import (
    ComparisonRow,
    judge_consistency,
    make_comparison_row,
    rounding_spread,
    rounding_tolerance,
)

TABLE_3 = {
    "a": "35.91", "alpha": "-0.1889", "delta": "-0.2285", "gamma": "0.0098", "b": "35.98", "beta": "-0.1775",
    "omega": "0.5529", "zeta": "-0.0259", "E_start": "2.0732", "E_max": "290.4521", "c": "1.3637",
}  # fmt: skip
TABLE_4 = {  # experts: m, mu, n, nu of m N^mu + n D^nu + c
    1: ("30.3640", "-0.1817", "53.9838", "-0.1965"), 2: ("27.7982", "-0.1780", "66.8401", "-0.2065"),
    4: ("24.8462", "-0.1731", "87.7022", "-0.2192"), 8: ("21.8330", "-0.1676", "119.9126", "-0.2338"),
    16: ("19.0159", "-0.1617", "167.5073", "-0.2494"), 32: ("16.5424", "-0.1557", "234.6726", "-0.2652"),
}  # fmt: skip
TABLE_1 = {  # FLOPs: {experts: (active parameters, tokens)}
    1e20: {1: ("1.7e9", "9.7e9"), 2: ("1.5e9", "11.4e9"), 4: ("1.2e9", "13.9e9"), 8: ("990e6", "17e9"),
           16: ("810e6", "20.7e9"), 32: ("669e6", "24.9e9")},
    1e21: {1: ("5.7e9", "29.3e9"), 2: ("5e9", "33e9"), 4: ("4.4e9", "38e9"), 8: ("3.8e9", "44.3e9"),
           16: ("3.3e9", "51.2e9"), 32: ("2.85e9", "58.4e9")},
    1e22: {1: ("18.8e9", "88.6e9"), 2: ("17.4e9", "96e9"), 4: ("15.8e9", "105.4e9"), 8: ("14.4e9", "115.8e9"),
           16: ("13.2e9", "126.5e9"), 32: ("12.2e9", "136.9e9")},
}  # fmt: skip
FORM_RECIPE = "eq. 6 at so many experts, with the parameters of table 3, within their rounding"
BEST_RECIPE = (
    "Chinchilla's closed form (eq. 7) of the law at so many experts, C = 6 N D, within the rounding of table 3"
)
NAMES = {"m": ("A", 1), "mu": ("alpha", -1), "n": ("B", 1), "nu": ("beta", -1)}


def _coefficient(name: str, experts: int, params: dict[str, float]) -> float:
    ours, sign = NAMES[name]
    return sign * float(chinchilla_of(float(experts), params)[ours])


def _best(place: str, C: float, experts: int, params: dict[str, float]) -> float:
    law = ChinchillaParams(**{name: float(value) for name, value in chinchilla_of(float(experts), params).items()})
    return float(getattr(optimal_allocation(law, C), place))


def compare_rows() -> list[ComparisonRow]:
    """Rows of tables 4 and 1."""
    jobs = [
        (f"table 4, {experts} experts: {name}", functools.partial(_coefficient, name, experts), text, FORM_RECIPE)
        for experts, texts in TABLE_4.items()
        for name, text in zip(NAMES, texts, strict=True)
    ]
    jobs += [
        (f"table 1, {C:.0e} FLOPs, {experts} experts: {place}", functools.partial(_best, place, C, experts), text,
         BEST_RECIPE)
        for C, by_experts in TABLE_1.items()
        for experts, texts in by_experts.items()
        for place, text in zip("ND", texts, strict=True)
    ]  # fmt: skip
    exact = {name: float(text) for name, text in TABLE_3.items()}
    rows = []
    for name, compute, text, recipe in jobs:
        allowed = rounding_tolerance(text) + rounding_spread(compute, TABLE_3)
        rows.append(
            make_comparison_row(f"Ludziejewski, {name}", compute(exact), text, recipe, judge_consistency, allowed)
        )
    return rows
