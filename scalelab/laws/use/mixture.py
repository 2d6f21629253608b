"""The best mixture of training domains by data mixing laws: one law for each validation loss, weighed together.

Ye et al. 2024 (arXiv 2403.16952), eq. 1: the loss of validation domain i is c_i + k_i exp(sum_j t_ij r_j). A weighted
sum of such losses is convex in the shares r, so its least value on the simplex is one, and the gap of Frank & Wolfe
bounds how far any shares are from it. Legend: V validation losses, K training domains, B resamples.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy import optimize

from scalelab.laws.solve.optimum import FitError

MOST_DRAWS = 400  # resamples whose best shares are searched for
LARGEST_GAP = 1e-4  # nats: what the shares found may lose to the best ones


class Resampled(Protocol):
    """What refits to resampled rows gave: one array [B] for each parameter."""

    @property
    def params(self) -> Mapping[str, np.ndarray]:
        """The parameters of each refit."""


class FittedLaw(Protocol):
    """A fitted mixture law with its refits, as `laws.fit` returns it."""

    @property
    def params(self) -> Mapping[str, float]:
        """The fitted parameters: c, t1, t2, …"""

    @property
    def bootstrap(self) -> Resampled | None:
        """The refits; None if none were made."""


class MixingLaws(NamedTuple):
    """Laws of V losses: `c` [V], `t` [V, K] (k is in t, as shares sum to one), `weights` [V] that sum to one."""

    c: np.ndarray
    t: np.ndarray
    weights: np.ndarray

    def losses(self, shares: np.ndarray) -> np.ndarray:
        """The V losses at shares [K]."""
        losses: np.ndarray = self.c + np.exp(self.t @ shares)
        return losses

    def loss(self, shares: np.ndarray) -> float:
        """The weighted loss at shares [K]."""
        return float(self.weights @ self.losses(shares))

    def slope(self, shares: np.ndarray) -> np.ndarray:
        """The slope of the weighted loss in shares [K]."""
        slope: np.ndarray = (self.weights * np.exp(self.t @ shares)) @ self.t
        return slope


class BestShares(NamedTuple):
    """The best shares [K] with intervals [K, 2], and what they are worth.

    `loss`: the weighted loss there, with `loss_interval` of the law (a run scatters by its noise too); `gain`: how far
    it lies below that of the best mixture that was tried (`tried`, its place) by the laws, with `gain_interval`.
    `outside`: domains whose best share is beyond those tried. `gap`: what the shares may lose to the best ones, nats.
    """

    shares: np.ndarray
    intervals: np.ndarray
    losses: np.ndarray
    loss: float
    loss_interval: tuple[float, float]
    tried: int
    gain: float
    gain_interval: tuple[float, float]
    outside: tuple[int, ...]
    gap: float
    draws: int


def stack_laws(fits: Sequence[FittedLaw], weights: Sequence[float]) -> tuple[MixingLaws, list[MixingLaws]]:
    """(the fitted laws, those of resamples) of a mixture law for each loss.

    Resamples of equal number are of the same rows for all losses, as all fits have one seed.
    """
    share = np.asarray(weights, float) / np.sum(weights)
    slopes = [name for name in fits[0].params if name != "c"]
    whole = MixingLaws(
        np.array([fit.params["c"] for fit in fits]), np.array([[f.params[s] for s in slopes] for f in fits]), share
    )
    boots = [fit.bootstrap.params for fit in fits if fit.bootstrap]
    count = min((len(boot["c"]) for boot in boots), default=0)
    places = np.linspace(0, count - 1, min(count, MOST_DRAWS)).astype(int)
    draws = [
        MixingLaws(np.array([b["c"][i] for b in boots]), np.array([[b[s][i] for s in slopes] for b in boots]), share)
        for i in places
    ]
    return whole, draws


def find_best(laws: MixingLaws, start: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """(the shares [K] of least weighted loss, a bound on what they lose to the best). FitError above LARGEST_GAP."""
    count = laws.t.shape[1]
    even = np.full(count, 1 / count)
    best, least = even, np.inf
    for begin in (even if start is None else start, even):
        found = optimize.minimize(
            laws.loss, begin, jac=laws.slope, method="SLSQP", bounds=[(0, 1)] * count, options={"ftol": 1e-12},
            constraints={"type": "eq", "fun": lambda r: r.sum() - 1, "jac": lambda r: np.ones(count)},
        )  # fmt: skip
        shares = np.clip(np.nan_to_num(found.x), 0, None)
        shares = shares / shares.sum() if shares.sum() else even
        if (gap := bound_loss(laws, shares)) < least:
            best, least = shares, gap
        if least <= LARGEST_GAP / 10:
            break
    if least > LARGEST_GAP:
        raise FitError(f"the best shares are not certain: they may be {least:.2g} nats from the best")
    return best, least


def bound_loss(laws: MixingLaws, shares: np.ndarray) -> float:
    """An upper bound on how far the loss at `shares` lies above the least one (Frank & Wolfe 1956; convex losses)."""
    slope = laws.slope(shares)
    return float(slope @ shares - slope.min())


def best_shares(
    fits: Sequence[FittedLaw], weights: Sequence[float], tried: np.ndarray, level: float = 0.9
) -> BestShares:
    """The shares of least weighted loss with intervals, from fits of a mixture law [V] and the mixtures tried [P, K].

    Intervals are percentiles of the best shares of each resample. FitError where an optimum is not certain.
    """
    whole, draws = stack_laws(fits, weights)
    shares, gap = find_best(whole)
    found = np.array([find_best(each, shares)[0] for each in draws]).reshape(len(draws), len(shares))
    place = int(np.argmin([whole.loss(each) for each in tried]))
    gains = [each.loss(tried[place]) - each.loss(shares) for each in draws]
    losses = [each.loss(shares) for each in draws]
    outside = np.flatnonzero((shares > tried.max(0) + 0.01) | (shares < tried.min(0) - 0.01))
    return BestShares(
        shares,
        np.quantile(found, _ends(level), axis=0).T if len(draws) else np.full((len(shares), 2), np.nan),
        whole.losses(shares),
        whole.loss(shares),
        _interval(losses, level),
        place,
        whole.loss(tried[place]) - whole.loss(shares),
        _interval(gains, level),
        tuple(map(int, outside)),
        gap,
        len(draws),
    )


def _ends(level: float) -> tuple[float, float]:
    return (1 - level) / 2, (1 + level) / 2


def _interval(values: Sequence[float], level: float) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    low, high = np.quantile(values, _ends(level))
    return float(low), float(high)
