"""How two groups differ: in each parameter, and in the compute that one needs for the other's loss.

Legend: R draws.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.law.law import Law
from scalelab.laws.trust.uncertainty import bca_interval, central_interval, widen
from scalelab.laws.use.decision import Interval, check_held_columns, losses_at_budget, optimal_size

WIDEST = 14.0  # log of the largest factor of compute that is looked for
HALVINGS = 45

Params = Mapping[str, np.ndarray]


class Difference(NamedTuple):
    """One parameter of a group beside the reference group's: the difference and the ratio, with intervals."""

    difference: Interval
    ratio: Interval


class ComputeFactor(NamedTuple):
    """A group's best loss at C FLOPs, and the factor of C with which it reaches the reference's best loss at C.

    Infinite if it never does; the interval may end at infinity.
    """

    C: float
    loss: Interval
    factor: Interval


def compare_params(
    value: float,
    reference: float,
    draws: np.ndarray,
    others: np.ndarray,
    level: float,
    corrected: bool = True,
    carried: tuple[np.ndarray, np.ndarray] | None = None,
) -> Difference:
    """Compare a parameter with the reference's, from their paired draws [R] (empty without resamples).

    `carried`: both draws with what the law may get wrong.
    """
    moved = carried or (draws, others)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios, moved_ratios = draws / others, moved[0] / moved[1]
        ratio = value / reference if reference else np.nan
    return Difference(
        make_interval(value - reference, draws - others, level, corrected, moved[0] - moved[1]),
        make_interval(float(ratio), ratios, level, corrected, moved_ratios),
    )


def make_interval(
    value: float, draws: np.ndarray, level: float, corrected: bool = True, carried: np.ndarray | None = None
) -> Interval:
    """The value with the interval of its draws, `corrected` for bias where these are finite; nan without draws.

    Draws of a random-effects model are not refits, and are taken as they are. `carried`: the draws with what the law
    may get wrong, which widens the interval.
    """
    if carried is not None and len(draws):
        narrow = make_interval(value, draws, level, corrected)
        return Interval(value, *widen(narrow[1:], value, draws, carried, level))
    if not len(draws):
        return Interval(value, np.nan, np.nan)
    if not corrected or not np.isfinite(draws).all() or not np.isfinite(value):
        return Interval(value, *central_interval(np.nan_to_num(draws, nan=np.inf, posinf=np.inf), level))
    return Interval(value, *bca_interval(draws, value, None, level))


def check_compute(law: Law, held: Mapping[str, float]) -> None:
    """BadInput if the law has no best loss at a budget of FLOPs, or a column neither follows from it nor is held."""
    if law.target != "loss":
        raise BadInput(f"law {law.name!r} predicts {law.target}, not a loss: groups have no factor of compute")
    if law.columns != ("C",) and "M" not in law.columns and not {"N", "D"} <= set(law.columns):
        raise BadInput(f"law {law.name!r} has no N and D to split a budget between: groups have no factor of compute")
    check_held_columns(law, held)


def best_loss(law: Law, params: Params, C: np.ndarray | float, k: float, held: Mapping[str, float]) -> np.ndarray:
    """The least loss [R] of laws `params` [R] at C FLOPs (a number or [R]); nan where the law has no best size."""
    arrays = {name: np.atleast_1d(np.asarray(values, float)) for name, values in params.items()}
    if law.columns == ("C",):
        return law({"C": np.asarray(C, float)}, arrays)
    sizes = optimal_size(law, arrays, C, k, held)
    with np.errstate(all="ignore"):
        losses = losses_at_budget(law, arrays, sizes, C, k, held)
    return np.where(np.isfinite(sizes) & (sizes > 0), losses, np.nan)


def compute_factor(
    law: Law,
    params: Params,
    reference: Params,
    C: float,
    k: float,
    held: Mapping[str, float] = {},
    handicap: np.ndarray | float = 1.0,
) -> np.ndarray:
    """The factor [R] of C with which laws `params` reach the reference's best loss at C, by bisection in its log.

    `handicap` [R]: the loss to reach is so many times the reference's.
    """
    wanted = best_loss(law, reference, C, k, held) * handicap
    low, high = np.full_like(wanted, -WIDEST), np.full_like(wanted, WIDEST)
    reaches = best_loss(law, params, C * np.exp(high), k, held) <= wanted
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        enough = best_loss(law, params, C * np.exp(middle), k, held) <= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(np.isfinite(wanted), np.where(reaches, np.exp(high), np.inf), np.nan)
