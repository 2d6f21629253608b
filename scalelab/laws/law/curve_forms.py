"""The laws of curves as pure functions of sums over the learning rate (LR) of every step.

Columns: S1 [P], the sum of the LR of all steps up to a row, warm-up included; and for K changes of the LR after the
warm-up `drop` [P, K], by how much it fell (0 where the change comes after the row), `age` [P, K], steps since, `area`
[P, K], the sum of the LR since, `lr` [P, K], the LR after it. `curve.schedule_columns` computes them. Keyword-only
arguments are parameters, in the order E, A, alpha, the coefficient of the annealing term, and its shape.
"""

from typing import Annotated, Any

import jax.numpy as jnp

from scalelab.laws.law.law import Between, Coefficient, Exponent, Law, ParamKind, Scale, law_of

Saturation = Annotated[float, ParamKind("log", 1e-4, 1e10, (1.0, 1e5))]  # bounds and starts hold for LRs over the peak


def annealing(S1, drop, age, *, E: Coefficient, A: Coefficient, alpha: Exponent, C: Coefficient, memory: Scale(2, 1e5)):
    """L = E + A/S1^alpha - C S2, S2 = sum over i and k <= i of (lr_(k-1) - lr_k) (1 - 1/memory)^(i-k)

    Tissue et al. 2024, eq. 1: their lambda is 1 - 1/memory, memory in steps. The inner sums are geometric series.
    """
    return E + A * S1**-alpha - C * annealing_area(drop, age, memory)


def annealing_area(drop, age, memory):
    """S2 of rows [P]: an LR that fell by `drop` adds drop (1 - lambda^age) / (1 - lambda)."""
    m = _beside_changes(memory)
    return jnp.sum(drop * m * (1.0 - jnp.exp(age * jnp.log1p(-1.0 / m))), axis=-1)


def multi_power(
    S1,
    drop,
    area,
    lr,
    *,
    E: Coefficient,
    A: Coefficient,
    alpha: Exponent,
    B: Coefficient,
    C: Saturation,
    beta: Between(0.05, 3.0),
    gamma: Between(0.0, 2.0),
):
    """L = E + A/S1^alpha - B sum over k of (lr_(k-1) - lr_k) (1 - (C lr_k^-gamma S_k + 1)^-beta)

    Luo et al. 2025 (Multi-Power Law), eq. 1. S_k is the sum of the LR since change k; the warm-up's rises are changes.
    """
    c, g, b = (_beside_changes(value) for value in (C, gamma, beta))
    return E + A * S1**-alpha - B * jnp.sum(drop * (1.0 - (c * lr**-g * area + 1.0) ** -b), axis=-1)


def _power_of_steps(step, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    """L = E + A/step^alpha

    A baseline that ignores the schedule.
    """
    return E + A * step**-alpha


def _beside_changes(value: Any) -> Any:
    """A parameter [] or [R, 1] with one more axis, for arrays [P, K]."""
    return jnp.asarray(value)[..., None]


CURVE_LAWS: dict[str, Law] = {law.name: law for law in (law_of(annealing), law_of(multi_power))}
WARMUP_LAWS = (multi_power.__name__,)  # the warm-up's rises are changes
BASELINE = law_of(_power_of_steps, "power_of_steps")
