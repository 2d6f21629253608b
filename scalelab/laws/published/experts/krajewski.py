"""Krajewski et al. 2024, "Scaling Laws for Fine-Grained Mixture of Experts" (arXiv 2402.07871): tables 1 and 2.

Table 2 names, for seven sizes, the budget at which each is best, its tokens and granularity, and the loss. All follow
from table 1 and eq. 10, the FLOPs with routing: 64 experts over G, d_model = 64 blocks.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.law.names import LAWS
from scalelab.laws.published.verdict import (
    ComparisonRow,
    judge_consistency,
    make_comparison_row,
    rounding_spread,
    rounding_tolerance,
)

LAW = LAWS["granularity"]
TABLE_1 = {"a": "18.1", "alpha": "0.115", "b": "30.8", "beta": "0.147", "g": "2.1", "gamma": "0.58", "c": "0.47"}
EXPERTS = 64.0  # E, the rate of expansion: experts over G
FLOPS_PARAM, FLOPS_ROUTER = 6.0, 14.0  # c_f and c_r of eq. 10
DEPTH = 64.0  # d_model = 64 n_blocks
NAMED_SIZE = 0.01  # a size as "3B" is off by so much
GRANULARITIES = 2.0 ** np.arange(9)
WIDTHS = np.exp(np.linspace(np.log(64), np.log(262144), 4001))
LOSS_RECIPE = "eq. 9 with the parameters of table 1, within their rounding; N = d^2 (8E + 4) n"
FLOPS_RECIPE = (
    "eq. 10 with E = 64, c_f = 6, c_r = 14, d = 64 n and 12 d^2 n active parameters; within 1 %: sizes are names"
)
BEST_RECIPE = "the law minimised over d, D and G (powers of two) at the printed FLOPs, within the rounding of table 1"


class Best(NamedTuple):
    """A row of table 2: active parameters, tokens, granularity, FLOPs and loss, as printed."""

    active: str
    tokens: str
    granularity: str
    flops: str
    loss: str


TABLE_2 = (
    Best("100e6", "4.37e9", "8", "2.95e18", "3.133"), Best("1e9", "28.94e9", "16", "1.93e20", "2.491"),
    Best("3e9", "72.90e9", "16", "1.41e21", "2.245"), Best("7e9", "137.60e9", "32", "6.46e21", "2.076"),
    Best("70e9", "941.07e9", "32", "4.16e23", "1.694"), Best("300e9", "2.96e12", "64", "5.69e24", "1.503"),
    Best("1e12", "7.94e12", "64", "4.97e25", "1.367"),
)  # fmt: skip


def width_of(active: float) -> float:
    """d_model of a model with so many active parameters, 12 d^2 n with d = 64 n."""
    return float((active * DEPTH / 12) ** (1 / 3))


def all_params(width: Any) -> Any:
    """All parameters without embeddings at a width: d^2 (8E + 4) n."""
    return width**3 * (8 * EXPERTS + 4) / DEPTH


def flops_per_token(width: Any, granularity: float) -> Any:
    """FLOPs of a token, those of routing included (eq. 10)."""
    return (12 * width**2 * FLOPS_PARAM + width * EXPERTS * granularity * FLOPS_ROUTER) * width / DEPTH


def best_at(flops: float, params: dict[str, float]) -> tuple[float, float, float]:
    """(active parameters, tokens, granularity) of least loss at a budget."""
    return _best_cached(flops, tuple(params.items()))


@functools.cache
def _best_cached(flops: float, params: tuple[tuple[str, float], ...]) -> tuple[float, float, float]:
    candidates = []
    for granularity in GRANULARITIES:
        tokens = flops / flops_per_token(WIDTHS, granularity)
        columns = {"N": all_params(WIDTHS), "D": tokens, "granularity": np.full_like(WIDTHS, granularity)}
        loss = LAW(columns, dict(params))
        at = int(loss.argmin())
        candidates.append((float(loss[at]), float(12 * WIDTHS[at] ** 3 / DEPTH), float(tokens[at]), float(granularity)))
    return min(candidates)[1:]


def _loss_of(row: Best, params: dict[str, float]) -> float:
    columns = {
        "N": all_params(width_of(float(row.active))),
        "D": float(row.tokens),
        "granularity": float(row.granularity),
    }
    return float(LAW(columns, params))


def compare_rows() -> list[ComparisonRow]:
    """Rows of table 2: loss, FLOPs, and the best size, tokens and granularity."""
    exact = {name: float(text) for name, text in TABLE_1.items()}
    return [row for best in TABLE_2 for row in _rows_of(best, exact)]


def _rows_of(best: Best, exact: dict[str, float]) -> list[ComparisonRow]:
    """Rows of one size."""
    label = f"Krajewski, table 2, 64 x {float(best.active):.0e}"
    F, width = float(best.flops), width_of(float(best.active))

    def spread(compute) -> float:
        return rounding_spread(compute, TABLE_1)

    per_token = float(flops_per_token(width, float(best.granularity)))
    allowed = rounding_tolerance(best.flops) + NAMED_SIZE * F
    active, tokens, granularity = best_at(F, exact)
    row = functools.partial(make_comparison_row, judge=judge_consistency)
    losses = rounding_tolerance(best.loss) + spread(lambda params: _loss_of(best, params))
    return [
        row(f"{label}: loss", _loss_of(best, exact), best.loss, LOSS_RECIPE, tolerance=losses),
        row(f"{label}: FLOPs", per_token * float(best.tokens), best.flops, FLOPS_RECIPE, tolerance=allowed),
        row(f"{label}: best active parameters", active, best.active, BEST_RECIPE,
            tolerance=spread(lambda params: best_at(F, params)[0])),
        row(f"{label}: best tokens", tokens, best.tokens, BEST_RECIPE,
            tolerance=spread(lambda params: best_at(F, params)[1])),
        row(f"{label}: best granularity", granularity, best.granularity, BEST_RECIPE,
            tolerance=spread(lambda params: best_at(F, params)[2])),
    ]  # fmt: skip
