"""Abnar et al. 2025, "Parameters vs FLOPs: Scaling Laws for Optimal Sparsity" (arXiv 2501.12370): table 3 and its text.

The parameters are as two public repositories quote table 3 alike. The sentences judged are about compute-optimal
models, whose tokens are C / (6 N_active); N_active is (1 - S) N, the paper's own estimate (sec. 5).
"""

import numpy as np

from scalelab.laws.law.names import LAWS
from scalelab.laws.published.verdict import ComparisonRow, judge_consistency, make_comparison_row

LAW = LAWS["sparsity"]
TABLE_3 = {
    "alpha": 0.5962, "beta": 0.3954, "lam": -0.1666, "delta": 0.1603, "gamma": 0.1595, "a": 16612.50, "b": 5455.67,
    "c": 0.4598, "d": 17.26, "e": 0.94,
}  # fmt: skip
BUDGETS = np.array([3e19, 6e19, 1e20, 3e20, 1e21])  # fig. 8
SPARSITIES = np.array([0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98])
SIZES = np.geomspace(1e9, 1e10, 6)
FINE_SIZES, FINE_SPARSITIES = np.geomspace(1e7, 1e13, 4001), np.linspace(0.0, 0.999, 4001)
RECIPE = "the law with table 3 at D = C / (6 (1 - S) N): the share of neighbouring pairs for which the sentence holds"


def loss_at(C: np.ndarray | float, N: np.ndarray | float, S: np.ndarray | float) -> np.ndarray:
    """The loss of C FLOPs on N parameters at a sparsity."""
    N, S = np.broadcast_arrays(np.asarray(N, float), np.asarray(S, float))
    return LAW({"N": N, "D": C / (6 * (1 - S) * N), "sparsity": S}, TABLE_3)


def best_sparsity(C: float, N: float) -> float:
    """The sparsity of least loss at a budget and a number of parameters."""
    return float(FINE_SPARSITIES[loss_at(C, N, FINE_SPARSITIES).argmin()])


def best_size(C: float, S: float) -> tuple[float, float]:
    """(all parameters, loss) of least loss at a budget and a sparsity."""
    losses = loss_at(C, FINE_SIZES, S)
    return float(FINE_SIZES[losses.argmin()]), float(losses.min())


def compare_rows() -> list[ComparisonRow]:
    """Rows of six sentences."""
    sparsest = np.array([[best_sparsity(C, N) for N in SIZES] for C in BUDGETS])
    best = np.array([[best_size(C, S) for S in SPARSITIES] for C in BUDGETS])
    sizes, losses = best[..., 0], best[..., 1]
    sentences = {
        "the best sparsity rises with N at one budget (sec. 2.2)": np.diff(sparsest, axis=1) > 0,
        "the best N rises with sparsity (sec. 2.1)": np.diff(sizes, axis=1) > 0,
        "the best number of active parameters falls with sparsity (sec. 2.1)": np.diff(sizes * (1 - SPARSITIES)) < 0,
        "the least loss falls with sparsity (sec. 3)": np.diff(losses, axis=1) < 0,
        "at one N the best sparsity falls with the budget (sec. 3)": np.diff(sparsest, axis=0) < 0,
        "at one N the best sparsity rises with the budget (sec. 6)": np.diff(sparsest, axis=0) > 0,
    }
    return [
        make_comparison_row(f"Abnar: {name}", float(np.mean(holds)), "1", RECIPE, judge_consistency, 1e-9)
        for name, holds in sentences.items()
    ]
