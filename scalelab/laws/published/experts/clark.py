"""Clark et al. 2022, "Unified Scaling Laws for Routed Language Models" (arXiv 2202.01169): table 3.

Its parameters and cut-offs are as two public texts quote them alike; the runs are public
(github.com/google-deepmind/scaling_laws_for_routing, data/curves.csv.gz, CC-BY).
"""

import math

from scalelab.laws.law.expert_forms import saturated_experts
from scalelab.laws.published.verdict import ComparisonRow, judge_consistency, make_comparison_row, rounding_spread

TABLE_3 = {  # of eq. 1
    "S-BASE": {"a": "-0.082", "b": "-0.108", "c": "0.009", "d": "1.104", "E_start": "1.847", "E_max": "314.478"},
    "RL-R": {"a": "-0.083", "b": "-0.126", "c": "0.012", "d": "1.111", "E_start": "1.880", "E_max": "469.982"},
    "HASH": {"a": "-0.087", "b": "-0.136", "c": "0.012", "d": "1.157", "E_start": "4.175", "E_max": "477.741"},
}
CUTOFFS = {"S-BASE": "937e9", "RL-R": "85e9", "HASH": "83e9"}  # parameters above which routing no longer helps
EXAMPLE = (5e6, 128.0, "55e6")  # parameters with so many experts are like a dense model of the third
CUTOFF_RECIPE = "b + c log10 N = 0, within the rounding of b and c"
EXAMPLE_RECIPE = "N' of equal loss with one expert (eq. 11), within the rounding of table 3"


def cutoff(params: dict[str, float]) -> float:
    """The N at which the loss no longer depends on the number of experts."""
    return 10.0 ** (-params["b"] / params["c"])


def effective_params(N: float, experts: float, params: dict[str, float]) -> float:
    """Parameters of a dense model with the loss of N active ones and so many experts (Clark et al. 2022, eq. 11)."""
    most = params["E_start"], params["E_max"]
    relative = saturated_experts(experts, *most) / params["E_start"]
    slope = params["a"] + params["c"] * math.log10(params["E_start"])
    routed = params["a"] + params["c"] * math.log10(saturated_experts(experts, *most))
    return float(N ** (routed / slope) * relative ** (params["b"] / slope))


def compare_rows() -> list[ComparisonRow]:
    """Rows of the cut-offs and of the example."""
    rows = []
    for router, printed in TABLE_3.items():
        exact = {name: float(text) for name, text in printed.items()}
        spread = rounding_spread(cutoff, printed)
        name = f"Clark, {router}: parameters above which experts no longer help"
        rows.append(make_comparison_row(name, cutoff(exact), CUTOFFS[router], CUTOFF_RECIPE, judge_consistency, spread))
    N, experts, text = EXAMPLE
    exact = {name: float(each) for name, each in TABLE_3["S-BASE"].items()}
    spread = rounding_spread(lambda params: effective_params(N, experts, params), TABLE_3["S-BASE"])
    name = f"Clark, S-BASE: dense parameters like {N:.0e} with {experts:.0f} experts"
    ours = effective_params(N, experts, exact)
    return [*rows, make_comparison_row(name, ours, text, EXAMPLE_RECIPE, judge_consistency, spread)]
