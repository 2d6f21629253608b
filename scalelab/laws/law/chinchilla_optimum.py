"""The compute-optimal allocation by Chinchilla's law, in closed form."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scalelab.laws.law import forms
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN

Value = float | np.ndarray


class ChinchillaParams(NamedTuple):
    """Parameters of L(N, D) = E + A / N^alpha + B / D^beta: each a number, or an array with one value per resample."""

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


def loss_at(params: ChinchillaParams, N: ArrayLike, D: ArrayLike) -> np.ndarray:
    """Loss in nats per token of a model with N parameters after D tokens (Hoffmann et al. 2022, eq. 2)."""
    values: dict[str, Any] = {name: np.asarray(value, float) for name, value in params._asdict().items()}
    return forms.chinchilla(np.asarray(N, float), np.asarray(D, float), **values)


def allocation_exponents(params: ChinchillaParams) -> tuple[np.ndarray, np.ndarray]:
    """Exponents (a, b) of N_opt ~ C^a and D_opt ~ C^b: beta and alpha over their sum (Hoffmann et al. 2022, eq. 4)."""
    alpha, beta = np.asarray(params.alpha, float), np.asarray(params.beta, float)
    return beta / (alpha + beta), alpha / (alpha + beta)


def optimal_allocation(params: ChinchillaParams, C: ArrayLike, k: float = FLOPS_PER_PARAM_TOKEN) -> Allocation:
    """The split of C = k N D FLOPs with the least loss (Hoffmann et al. 2022, eq. 4).

    N = G (C/k)^a and D = (C/k)^b / G with G = (alpha A / (beta B))^(1/(alpha+beta)). If A or B is zero, there is no
    interior optimum: N or D is 0 or infinite, and the loss nan.
    """
    _, A, B, alpha, beta = (np.asarray(value, float) for value in params)
    a, b = allocation_exponents(params)
    budget = np.asarray(C, float) / k
    with np.errstate(divide="ignore", invalid="ignore"):
        G = (alpha * A / (beta * B)) ** (1.0 / (alpha + beta))
        N, D = G * budget**a, budget**b / G
        return Allocation(N, D, loss_at(params, N, D))
