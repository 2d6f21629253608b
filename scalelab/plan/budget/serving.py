"""Least FLOPs of training and serving together at a given loss (Sardana et al. 2024, "Beyond Chinchilla-Optimal")."""

import dataclasses

import numpy as np

from scalelab.errors import BadInput
from scalelab.plan.budget.book import LawBook
from scalelab.plan.budget.solve import find_first_true, minimise_unimodal

FORWARD_FLOPS = 2.0  # FLOPs a parameter and token of serving (Sardana et al., eq. 2)
SMALLEST = 1e-3  # smallest size tried, as a share of the size that is best for training alone
MOST_TOKENS = 1e30


@dataclasses.dataclass(frozen=True)
class Serving:
    """Effect of `tokens` of inference: `total_flops` of training and serving; `saved`: share of `plain_total_flops`.

    `plain_n` and `plain_d` are best for training alone, at the same loss.
    """

    tokens: float
    total_flops: float
    plain_n: float
    plain_d: float
    plain_total_flops: float
    saved: float


def cheapest_split(
    book: LawBook, N: np.ndarray, D: np.ndarray, tokens: float
) -> tuple[np.ndarray, np.ndarray, Serving]:
    """(N, D, `Serving`) with the loss of the given N and D [R] at the least k N D + 2 N `tokens`.

    BadInput for a law whose split is not the minimum of its loss.
    """
    if book.split:
        raise BadInput(f"serve_tokens: law {book.name} has no loss L(N, D) of its own; use chinchilla_3 or besiroglu")
    goal = book.loss(N, D)

    def enough_tokens(size: np.ndarray) -> np.ndarray:
        return find_first_true(lambda tokens: book.loss(size, tokens) <= goal, 1.0, MOST_TOKENS, book.rows)

    def total(size: np.ndarray) -> np.ndarray:
        return (book.k * enough_tokens(size) + FORWARD_FLOPS * tokens) * size

    size = minimise_unimodal(total, SMALLEST * N, N)
    plain, least = (book.k * D + FORWARD_FLOPS * tokens) * N, total(size)
    served = Serving(
        tokens=float(tokens),
        total_flops=float(least[0]),
        plain_n=float(N[0]),
        plain_d=float(D[0]),
        plain_total_flops=float(plain[0]),
        saved=float(1 - least[0] / plain[0]),
    )
    return size, enough_tokens(size), served
