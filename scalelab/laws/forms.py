"""The laws as pure functions: the loss they give, and the compute-optimal allocation that follows in closed form."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Value = float | np.ndarray
FLOPS_PER_PARAM_TOKEN = 6.0  # C = 6 N D: 2 forward, 4 backward (Kaplan et al. 2020, sec. 2.1)


class Params(NamedTuple):
    """L(N, D) = E + A / N^alpha + B / D^beta. Each field a number, or an array of one value a resample."""

    E: Value
    A: Value
    B: Value
    alpha: Value
    beta: Value


class Allocation(NamedTuple):
    """The best split of a compute budget: N parameters, D tokens, and the loss there in nats per token."""

    N: np.ndarray
    D: np.ndarray
    loss: np.ndarray


def chinchilla(params: Params, N: ArrayLike, D: ArrayLike) -> np.ndarray:
    """Loss in nats per token of a model with N parameters after D tokens (Hoffmann et al. 2022, eq. 2)."""
    E, A, B, alpha, beta = (np.asarray(value, float) for value in params)
    return E + A / np.asarray(N, float) ** alpha + B / np.asarray(D, float) ** beta


def exponents(params: Params) -> tuple[np.ndarray, np.ndarray]:
    """(a, b) of N_opt ~ C^a and D_opt ~ C^b: beta and alpha over their sum (Hoffmann et al. 2022, eq. 4)."""
    alpha, beta = np.asarray(params.alpha, float), np.asarray(params.beta, float)
    return beta / (alpha + beta), alpha / (alpha + beta)


def optimum(params: Params, C: ArrayLike, k: float = FLOPS_PER_PARAM_TOKEN) -> Allocation:
    """The allocation of C FLOPs with the least loss where C = k N D (Hoffmann et al. 2022, eq. 4).

    N = G (C/k)^a and D = (C/k)^b / G with G = (alpha A / (beta B))^(1/(alpha+beta)). A law without one of its terms
    (A or B zero) has no interior optimum: N or D is then 0 or infinite, and the loss nan.
    """
    _, A, B, alpha, beta = (np.asarray(value, float) for value in params)
    a, b = exponents(params)
    budget = np.asarray(C, float) / k
    with np.errstate(divide="ignore", invalid="ignore"):
        G = (alpha * A / (beta * B)) ** (1.0 / (alpha + beta))
        N, D = G * budget**a, budget**b / G
        return Allocation(N, D, chinchilla(params, N, D))
