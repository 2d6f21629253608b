"""Laws of other axes than size and data: breaks, vocabulary, parallel streams, batch, weight decay, domains.

Declared as in `forms.py`, with the same columns, and P parallel streams, batch sequences (or tokens) a step, lr the
peak learning rate, batch_tokens tokens a step. A new one is a function here and a row in `names.LAWS`.
"""

import functools
import typing
from typing import Annotated, Any

import jax.numpy as jnp

from scalelab.laws.law.law import Between, Coefficient, Exponent, Law, ParamKind, Scale

# Of two breaks: search begins at budgets of language models, and at slopes and distances that a table can show.
Slope = Annotated[float, ParamKind("direct", 0.01, 3.0, (0.03, 0.6))]
Shift = Annotated[float, ParamKind("direct", -3.0, 3.0, (-0.4, 0.4))]
Break = Annotated[float, ParamKind("log", 1e3, 1e30, (1e15, 1e24))]
Apart = Annotated[float, ParamKind("log", 2.0, 1e12, (10.0, 1e5))]
Sharpness = Annotated[float, ParamKind("direct", 0.02, 2.0, (0.1, 1.0))]
TimeScale = Annotated[float, ParamKind("log", 1e-12, 1e12, (1e-3, 1e3))]
DomainSlope = Between(-20.0, 5.0)


def broken_power_2(
    C,
    *,
    E: Coefficient,
    A: Coefficient,
    alpha: Slope,
    shift_1: Shift,
    C_1: Break,
    sharpness_1: Sharpness,
    shift_2: Shift,
    apart: Apart,
    sharpness_2: Sharpness,
):
    """L = E + A C^-alpha (1 + (C/C_1)^(1/f_1))^(-s_1 f_1) (1 + (C/C_2)^(1/f_2))^(-s_2 f_2), C_2 = apart C_1

    Caballero et al. 2023, eq. 1, with two breaks: shift s_i, sharpness f_i. `apart` keeps the breaks in order.
    """
    first = _log_break(C, C_1, shift_1, sharpness_1)
    return E + A * C**-alpha * jnp.exp(first + _log_break(C, C_1 * apart, shift_2, sharpness_2))


def _log_break(C, place, shift, sharpness):
    """Logarithm of a break's factor, which does not overflow however sharp the break is."""
    return -shift * sharpness * jnp.logaddexp(0.0, jnp.log(C / place) / sharpness)


def vocabulary_normalised(
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
    """unigram-normalised loss = -E + A/N^alpha + V/N_v^nu + B/D^beta, N without the vocabulary's parameters N_v

    Tao et al. 2024 (scaling laws with vocabulary): the loss less that of a unigram model of the same tokens, usually
    negative. They hold alpha = beta, count N and N_v in millions and D in billions of tokens, and minimise Huber's
    penalty, 1e-3, of the loss itself: this law's default objective.
    """
    return -E + A / N**alpha + V / N_v**nu + B / D**beta


def parscale(N, P, *, E: Coefficient, A: Scale(1e-3, 1e15), alpha: Exponent, k: Scale(1e-3, 10.0)):
    """L = E + (A/(N (1 + k log P)))^alpha, P parallel streams

    Chen et al. 2025 (ParScale), eq. 5: P streams are like 1 + k log P times the parameters.
    """
    return E + (A / (N * (1.0 + k * jnp.log(P)))) ** alpha


def critical_batch(batch, *, S_min: Coefficient, B_crit: Scale(1e-3, 1e12)):
    """steps to a target loss = S_min (1 + B_crit/batch)

    McCandlish et al. 2018, eq. 2.11: (S/S_min - 1)(E/E_min - 1) = 1 with E = batch S and B_crit = E_min/S_min, in the
    batch's unit. Twice the least steps, and twice the least examples, are needed at B_crit.
    """
    return S_min * (1.0 + B_crit / batch)


def timescale(M, *, c: Coefficient, m: Between(-3.0, 3.0)):
    """best tau = c M^m, tau = batch/(lr weight_decay D) of AdamW, as a share of training

    Bergsma et al. 2025 (Power Lines): the best time scale follows tokens a parameter, M = D/N, alone.
    """
    return c * M**m


def weight_decay(N, D, lr, batch_tokens, *, c: TimeScale, m: Between(-3.0, 3.0)):
    """best weight decay = batch_tokens/(lr D tau), tau = c (D/N)^m

    Bergsma et al. 2025 (Power Lines): the law of `timescale` solved for the weight decay.
    """
    return batch_tokens / (lr * D * c * (D / N) ** m)


@functools.cache
def mixture_of(count: int) -> Law:
    """The mixture law of `count` training domains: `forms.mixture` for any number, mixture5 by name."""
    shares, slopes = ([f"{letter}{place}" for place in range(1, count + 1)] for letter in "rt")

    def mixture(*columns, c, **params):
        return c + jnp.exp(sum(params[slope] * share for slope, share in zip(slopes, columns, strict=True)))

    mixture.__doc__ = (
        f"L = c + exp(t1 r1 + … + t{count} r{count}), r the shares of {count} training domains\n\n"
        "Ye et al. 2024 (data mixing laws), eq. 1, of one validation domain."
    )
    kinds = dict.fromkeys(["c", *slopes], _kind(DomainSlope)) | {"c": _kind(Coefficient)}
    return Law(f"mixture{count}", mixture, tuple(shares), kinds, zeros=tuple(shares))


def _kind(annotation: Any) -> ParamKind:
    return typing.get_args(annotation)[1]
