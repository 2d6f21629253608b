"""The laws as pure functions. A new law is a function here or in `axis_forms.py` and a row
in `names.LAWS`.

Columns come first: N parameters, D training tokens, C FLOPs, M = D/N, U unique tokens, width, depth, loss in nats a
token. Keyword-only arguments are parameters, annotated with their kind (`law.py`). A law returns loss in nats a token
unless its docstring gives another quantity.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.laws.law.law import Between, Coefficient, Exponent, Real, Scale, Share, StartsIn

FLOPS_PER_PARAM_TOKEN = 6.0  # C = 6 N D: 2 forward, 4 backward (Kaplan et al. 2020, sec. 2.1)


def chinchilla(N, D, *, E: Coefficient, A: Coefficient, B: Coefficient, alpha: Exponent, beta: Exponent):
    """L = E + A/N^alpha + B/D^beta

    Hoffmann et al. 2022, eq. 2 (approach 3).
    """
    return E + A / N**alpha + B / D**beta


def chinchilla_gamma(
    N,
    D,
    *,
    E: Coefficient,
    A: Scale(1e-3, 1e12),
    B: Scale(1e-3, 1e12),
    alpha: Exponent,
    beta: Exponent,
    gamma: Between(0.2, 5.0),
):
    """L = E + (A/N^alpha + B/D^beta)^gamma

    Beck et al. 2026 (xLSTM scaling laws). gamma = 1 is Chinchilla's law; A^(1/alpha) and gamma are easily confounded.
    """
    return E + (A / N**alpha + B / D**beta) ** gamma


def kaplan(N, D, *, N_c: Scale(1e3, 1e22), D_c: Scale(1e3, 1e22), alpha_N: Exponent, alpha_D: Exponent):
    """L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D

    Kaplan et al. 2020, eq. 1.5; N without embeddings. No irreducible loss.
    """
    return ((N_c / N) ** (alpha_N / alpha_D) + D_c / D) ** alpha_D


def saturating(C, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    """L = E + A/C^alpha

    Loss of the best run at each budget (Porian et al. 2024, sec. 4; Henighan et al. 2020, eq. 1.1).
    """
    return E + A / C**alpha


def effective_data(D, U, R_star):
    """Tokens of fresh data D' that are worth as much as D tokens with U unique ones: U <= D' <= D.

    Muennighoff et al. 2023, eq. 5.
    """
    xp = _array_module(U, D, R_star)
    unique = xp.minimum(U, D)
    return unique + unique * R_star * (1.0 - xp.exp(-(D / unique - 1.0) / R_star))


def data_constrained(
    N,
    D,
    U,
    *,
    E: Coefficient,
    A: Scale(1e-3, 1e12),
    B: Scale(1e-3, 1e12),
    alpha: Exponent,
    beta: Exponent,
    R_D_star: Scale(0.1, 1e6),
    R_N_star: Scale(0.1, 1e6),
):
    """L = E + A/N'^alpha + B/D'^beta, N' and D' less than N and D where D > U

    Muennighoff et al. 2023, eqs. 4 to 6. U_N, the best size for U tokens, follows from the law itself: with
    G = (alpha A / (beta B))^(1/(alpha+beta)) it is (U G)^(beta/alpha) G, at most N. So the law is linear in E alone.
    """
    G = (alpha * A / (beta * B)) ** (1.0 / (alpha + beta))
    xp = _array_module(N, D, U, G, R_N_star)
    best_N = xp.minimum((xp.minimum(U, D) * G) ** (beta / alpha) * G, N)
    size = best_N + best_N * R_N_star * (1.0 - xp.exp(-(N / best_N - 1.0) / R_N_star))
    return E + A / size**alpha + B / effective_data(D, U, R_D_star) ** beta


def _array_module(*values: Any) -> Any:
    """numpy, which compiles nothing, for its own arrays and plain numbers; else jax.numpy."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def overtraining(C, M, *, E: Coefficient, a: Coefficient, b: Coefficient, eta: Exponent):
    """L = E + (a M^eta + b M^-eta) C^-eta

    Gadre et al. 2024, eq. 4, with C in FLOPs: Chinchilla's law with one exponent (alpha = beta = 2 eta) and D = M N.
    """
    return E + (a * M**eta + b * M**-eta) * C**-eta


def downstream(loss, *, epsilon: Coefficient, k: Coefficient, gamma: Scale(1e-2, 1e2)):
    """error = epsilon - k exp(-gamma L)

    Gadre et al. 2024, eq. 5: average top-1 error over tasks, from the validation loss.
    """
    return epsilon - k * jnp.exp(-gamma * loss)


def farseer(
    N,
    D,
    *,
    a1: Real,
    b1: Real,
    alpha: Between(-1.0, 1.0),
    a2: Real,
    b2: Real,
    beta: Between(-1.0, 1.0),
    a3: Real,
    b3: Real,
    gamma: Between(-1.0, 1.0),
):
    """L = exp(a3 N^gamma + b3) + exp(a2 N^beta + b2) D^(-exp(a1 N^alpha + b1)), N and D in billions

    Li et al. 2025 (Farseer), eq. 5: the exponent of D depends on N. Another unit of N only rescales parameters. Another
    unit of D would give another law: D^-exponent turns the unit into a factor that no parameter can absorb.
    """
    n, d = N / 1e9, D / 1e9
    exp = np.exp if isinstance(n, np.ndarray) and isinstance(a1, np.ndarray) else jnp.exp  # numpy compiles nothing
    return exp(a3 * n**gamma + b3) + exp(a2 * n**beta + b2) * d ** -exp(a1 * n**alpha + b1)


def farseer_counts(
    N,
    D,
    *,
    a1: Real,
    b1: StartsIn(-2.0, 0.0),
    alpha: Between(-1.0, 1.0),
    a2: Real,
    b2: StartsIn(0.0, 12.0),
    beta: Between(-1.0, 1.0),
    a3: Real,
    b3: Real,
    gamma: Between(-1.0, 1.0),
):
    """L = exp(a3 N^gamma + b3) + exp(a2 N^beta + b2) D^(-exp(a1 N^alpha + b1)), N and D as they are

    Li et al. 2025 (Farseer), eq. 5, for parameters that belong to plain counts: another law than `farseer` (see there).
    """
    exp = np.exp if isinstance(N, np.ndarray) and isinstance(a1, np.ndarray) else jnp.exp
    return exp(a3 * N**gamma + b3) + exp(a2 * N**beta + b2) * D ** -exp(a1 * N**alpha + b1)


def step_law_lr(N, D, *, c: Coefficient, alpha: Between(-3.0, 3.0), beta: Between(-3.0, 3.0)):
    """best peak LR = c N^alpha D^beta

    Li et al. 2025 (Step Law): 1.79 N^-.713 D^.307, N without embeddings.
    """
    return c * N**alpha * D**beta


def step_law_batch(D, *, c: Coefficient, beta: Between(-3.0, 3.0)):
    """best batch in tokens = c D^beta

    Li et al. 2025 (Step Law): .58 D^.571.
    """
    return c * D**beta


def broken_power(
    C,
    *,
    E: Coefficient,
    A: Coefficient,
    alpha: Exponent,
    shift: Between(-3.0, 3.0),
    C_break: Scale(1e3, 1e30),
    sharpness: Between(0.02, 2.0),
):
    """L = E + A C^-alpha (1 + (C/C_break)^(1/sharpness))^(-shift sharpness)

    Caballero et al. 2023, eq. 1, with one break: the slope goes from alpha to alpha + shift around C_break.
    """
    return E + A * C**-alpha * (1.0 + (C / C_break) ** (1.0 / sharpness)) ** (-shift * sharpness)


def width_depth(
    width,
    depth,
    N,
    D,
    *,
    E: Coefficient,
    W: Coefficient,
    P: Coefficient,
    A: Coefficient,
    B: Coefficient,
    w: Exponent,
    p: Exponent,
    alpha: Exponent,
    beta: Exponent,
):
    """L = E + W/width^w + P/depth^p + A/N^alpha + B/D^beta

    McLeish et al. 2025 (Gemstones), the four-term law.
    """
    return E + W / width**w + P / depth**p + A / N**alpha + B / D**beta


def precision(
    N,
    D,
    P_w,
    P_a,
    P_kv,
    *,
    E: Coefficient,
    A: Coefficient,
    B: Coefficient,
    alpha: Exponent,
    beta: Exponent,
    gamma_w: Scale(0.1, 20.0),
    gamma_a: Scale(0.1, 20.0),
    gamma_kv: Scale(0.1, 20.0),
):
    """L = E + A/N'^alpha + B/D^beta, N' = N (1 - exp(-P_w/gamma_w)) (1 - exp(-P_a/gamma_a)) (1 - exp(-P_kv/gamma_kv))

    Kumar et al. 2024 (scaling laws for precision): training with weights, activations and KV cache of P bits is like a
    smaller model. Hold the gamma of a part whose bits never change (`--hold`).
    """
    size = N * (1.0 - jnp.exp(-P_w / gamma_w)) * (1.0 - jnp.exp(-P_a / gamma_a)) * (1.0 - jnp.exp(-P_kv / gamma_kv))
    return E + A / size**alpha + B / D**beta


def vocabulary(
    N,
    N_v,
    D,
    *,
    E: Coefficient,
    A: Coefficient,
    V: Coefficient,
    B: Coefficient,
    alpha: Exponent,
    nu: Exponent,
    beta: Exponent,
):
    """L = E + A/N^alpha + V/N_v^nu + B/D^beta, N without and N_v with the vocabulary's parameters alone

    Tao et al. 2024 (scaling laws with vocabulary). D in characters or bytes, and the loss per byte, so that tokenisers
    compare. A loss less that of a unigram model is for `vocabulary_normalised`.
    """
    return E + A / N**alpha + V / N_v**nu + B / D**beta


def mixture(
    r1: Share,
    r2: Share,
    r3: Share,
    *,
    c: Coefficient,
    t1: Between(-20.0, 5.0),
    t2: Between(-20.0, 5.0),
    t3: Between(-20.0, 5.0),
):
    """L = c + exp(t1 r1 + t2 r2 + t3 r3), r the shares of three training domains (mixture5: of five)

    Ye et al. 2024 (data mixing laws), eq. 1, of one validation domain. Shares sum to one, so their factor k is in t:
    t_j = t_ij + log k. A share may be zero. `axis_forms.mixture_of` has other numbers of domains.
    """
    return c + jnp.exp(t1 * r1 + t2 * r2 + t3 * r3)
