"""Laws of models with experts: their number, their granularity, and the share of parameters that a token uses.

Declared as in `forms.py`. N counts the parameters that a token uses (`Active`) or all of them (`Total`), and a table's
columns are read accordingly; FLOPs are those of active parameters. `experts`: routed experts a layer, 1 for a dense
model; `granularity`: how many times narrower an expert is than a dense MLP, by each paper's measure; `sparsity`: idle
experts as a share of all; `activation`: active experts, shared ones included, as a share of all. A new law is a
function here and a row in `names.LAWS`.
"""

from typing import Annotated, Any

import jax.numpy as jnp

from scalelab.laws.law.law import Active, Coefficient, Exponent, ParamKind, Share, StartsIn, Total

Start = Annotated[float, ParamKind("log", 1.0, 100.0, (1.1, 10.0))]  # E_start: experts below it hardly help
Most = Annotated[float, ParamKind("log", 10.0, 1e7, (50.0, 3000.0))]  # E_max: experts above it hardly help
# Exponents as published, with their sign.
Falls = Annotated[float, ParamKind("direct", -3.0, 3.0, (-0.6, -0.05))]
Bends = Annotated[float, ParamKind("direct", -1.0, 1.0, (-0.04, 0.04))]
Either = Annotated[float, ParamKind("direct", -3.0, 3.0, (-0.8, 0.8))]
ActivationStart = Annotated[float, ParamKind("log", 1e-6, 0.9, (1e-3, 0.1))]


def saturated_experts(experts: Any, E_start: Any, E_max: Any) -> Any:
    """The number of experts, saturated at both ends: E_start for one expert, E_max for ever more.

    Clark et al. 2022, eq. 1: 1/E' = 1/(E - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max.
    """
    first = 1.0 / (1.0 / E_start - 1.0 / E_max)
    return 1.0 / (1.0 / (experts - 1.0 + first) + 1.0 / E_max)


def routed(
    N: Active,
    experts,
    *,
    a: Falls,
    b: Falls,
    c: Bends,
    d: StartsIn(0.3, 3.0),
    E_start: Start,
    E_max: Most,
):
    """log10 L = a log10 N + b log10 E' + c log10 N log10 E' + d, E' the experts saturated from E_start to E_max

    Clark et al. 2022 (routed language models), eq. 1, N the active parameters, all models trained on equally many
    tokens. With one expert E' = E_start, and L is the dense power law of N with exponent a + c log10 E_start.
    """
    log_n, log_e = jnp.log10(N), jnp.log10(saturated_experts(experts, E_start, E_max))
    return 10.0 ** (a * log_n + b * log_e + c * log_n * log_e + d)


def granularity(
    N: Total,
    D,
    granularity,
    *,
    c: Coefficient,
    a: Coefficient,
    g: Coefficient,
    b: Coefficient,
    alpha: Exponent,
    gamma: Exponent,
    beta: Exponent,
):
    """L = c + (g/G^gamma + a)/N^alpha + b/D^beta, G the granularity

    Krajewski et al. 2024 (fine-grained experts), eq. 9: G = d_ff/d_expert with G experts a token, so that a token's
    parameters do not change; N all parameters without embeddings, at one number of experts over G.
    """
    return c + (g / granularity**gamma + a) / N**alpha + b / D**beta


def expert_count(
    N: Active,
    D,
    experts,
    *,
    c: Coefficient,
    a: Coefficient,
    b: Coefficient,
    alpha: Falls,
    delta: Either,
    gamma: Bends,
    beta: Falls,
    omega: Either,
    zeta: Bends,
    E_start: Start,
    E_max: Most,
):
    """L = c + a E'^delta N^(alpha + gamma ln E') + b E'^omega D^(beta + zeta ln E'), E' the experts, saturated

    Ludziejewski et al. 2025 (joint MoE scaling laws), eq. 6, N the active parameters, E' as in `routed`. For each
    number of experts it is Chinchilla's law (`chinchilla_of`), for one expert that of dense models.
    """
    log_e = jnp.log(saturated_experts(experts, E_start, E_max))
    of_size = a * jnp.exp(delta * log_e + (alpha + gamma * log_e) * jnp.log(N))
    return c + of_size + b * jnp.exp(omega * log_e + (beta + zeta * log_e) * jnp.log(D))


def sparsity(
    N: Total,
    D,
    sparsity: Share,
    *,
    e: Coefficient,
    a: Coefficient,
    b: Coefficient,
    c: Coefficient,
    d: Coefficient,
    alpha: Exponent,
    beta: Exponent,
    lam: Either,
    delta: Either,
    gamma: Exponent,
):
    """L = e + a/N^alpha + b/D^beta + c/(1-S)^lam + d/((1-S)^delta N^gamma), S the sparsity

    Abnar et al. 2025 (parameters vs FLOPs), eq. 6, N all parameters, S = (experts - active experts)/experts. A dense
    model has S = 0 and Chinchilla's law with one more power of N.
    """
    dense = 1.0 - sparsity
    return e + a / N**alpha + b / D**beta + c / dense**lam + d / (dense**delta * N**gamma)


def leverage(
    activation,
    granularity,
    C,
    *,
    a: StartsIn(0.2, 3.0),
    d: StartsIn(-0.2, -0.01),
    gamma: StartsIn(0.0, 0.1),
    beta: StartsIn(-0.3, 0.0),
    A_start: ActivationStart,
):
    """leverage = (A + A_start)^(a + d log10 C + gamma log2(G)^2 + beta log2 G), A the activation, G the granularity

    Tian et al. 2025 (efficiency leverage), eq. 13: the FLOPs of a dense model of equal loss over those of the model
    with experts, C. G = 2 d_model/d_expert. The paper does not print the bases of its logarithms: with these the
    printed parameters give its optimum (G about 12) and its forecast (above 7 at 1e22 FLOPs, A = 3.1 %), with others
    they don't. Its A_max of 5e16 is infinite, and left out.
    """
    log_g = jnp.log2(granularity)
    return (activation + A_start) ** (a + d * jnp.log10(C) + gamma * log_g**2 + beta * log_g)


def chinchilla_of(experts: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Chinchilla's parameters of `expert_count` at a number of experts (Ludziejewski et al. 2025, table 4)."""
    log_e = jnp.log(saturated_experts(experts, params["E_start"], params["E_max"]))
    return {
        "E": params["c"],
        "A": params["a"] * jnp.exp(params["delta"] * log_e),
        "B": params["b"] * jnp.exp(params["omega"] * log_e),
        "alpha": -(params["alpha"] + params["gamma"] * log_e),
        "beta": -(params["beta"] + params["zeta"] * log_e),
    }
