"""Budgets with fewer unique tokens than they would use: tokens repeat and are worth less (Muennighoff et al. 2023)."""

import dataclasses

import jax
import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.law import forms
from scalelab.laws.law.names import LAWS
from scalelab.laws.published import muennighoff
from scalelab.plan.budget.book import LawBook
from scalelab.plan.budget.lawbook import REPETITION

R_D, R_N = "R_D_star", "R_N_star"


@dataclasses.dataclass(frozen=True)
class Repetition:
    """`epochs` over `unique_tokens`. `worth_tokens`: fresh tokens of equal worth, by the published R_D*.

    `not_identified`: what the runs behind R_D* and R_N* can't tell, in words.
    """

    unique_tokens: float
    epochs: float
    worth_tokens: float
    r_d_star: float
    r_n_star: float
    not_identified: str


def limit_unique_tokens(book: LawBook, unique_tokens: float) -> LawBook:
    """The law with only so many unique tokens: its loss by N' and D' (Muennighoff et al. 2023, eqs. 4 to 6).

    A law of that form keeps its R_D* and R_N*. One of Chinchilla's form takes the published pair in the first row and
    all pairs that the runs allow in the others, so intervals include what is not identified. BadInput for another form.
    """
    law, held = LAWS["data_constrained"], {"U": unique_tokens}
    if book.surface.columns == law.columns:
        return dataclasses.replace(book, held=held)
    if book.split or book.surface.function is not forms.chinchilla:
        raise BadInput(
            f"unique_tokens: law {book.name} is not of the form E + A/N^alpha + B/D^beta; use besiroglu or muennighoff"
        )
    rows = 1 + len(REPETITION) if book.level is None else book.rows
    params = {name: np.resize(values, rows) for name, values in book.params.items()}
    for name, allowed in zip((R_D, R_N), np.array(REPETITION).T, strict=True):
        # The law itself takes the published pair, its draws take each pair in turn.
        params[name] = np.append(allowed[0], np.resize(allowed, rows - 1))
    pairs = f"R_D* and R_N* over {len(REPETITION)} pairs that the 182 runs behind them allow"
    return dataclasses.replace(
        book,
        surface=law,
        params=params,
        held=held,
        level=book.level or muennighoff.LEVEL,
        interval=pairs if book.level is None else f"{book.interval}; {pairs}",
        source=f"{book.source}; repeated tokens: {muennighoff.SOURCE}" if book.name != "muennighoff" else book.source,
    )


def assess_repetition(book: LawBook, D: np.ndarray, unique_tokens: float) -> Repetition:
    """Epochs and worth of D [R] tokens drawn from `unique_tokens`."""
    r_d, r_n = (float(book.params[name][0]) for name in (R_D, R_N))
    with jax.enable_x64(True):
        worth = float(forms.effective_data(D[0], unique_tokens, r_d))
    return Repetition(unique_tokens, float(D[0] / unique_tokens), worth, r_d, r_n, NOT_IDENTIFIED)


NOT_IDENTIFIED = (
    f"R_D* = {REPETITION[0][0]:.4g} is not identified by its 182 runs (90 % profile: 5.8 or more, no upper end), "
    f"and with R_D* = {REPETITION[1][0]:.3g}, R_N* = {REPETITION[1][1]:.2g} their objective is lower: "
    "trust the gain of repeating only up to the few epochs that they tried"
)
