"""The best mixture of training domains by data mixing laws: one law for each validation loss, weighed together.

Ye et al. 2024 (arXiv 2403.16952), eq. 1: the loss of validation domain i is c_i + k_i exp(sum_j t_ij r_j). A weighted
sum of such losses is convex in the shares r, so its least value on the simplex is one, and the gap of Frank & Wolfe
bounds how far any shares are from it. The shares stay within those that were tried, domain by domain: a law says
little of a domain that is left out, and what it says there is an extrapolation.

Legend: V validation losses, K training domains, B resamples, P mixtures tried.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy import optimize

from scalelab.laws.solve.optimum import FitError

MOST_DRAWS = 400  # resamples whose best shares are searched for
LARGEST_GAP = 1e-4  # nats: what the shares found may lose to the best ones
ON_SIMPLEX = 1e-6  # how far the sum of shares may lie from one
SEEN = 0.01  # a share that lies less than this beyond those tried is not spoken of


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
    `held`: {domain's place: its share by the laws alone} of domains that are held at the end of what was tried.
    `gap`: what the shares may lose to the best ones within what was tried, nats.
    """

    shares: np.ndarray
    intervals: np.ndarray
    losses: np.ndarray
    loss: float
    loss_interval: tuple[float, float]
    tried: int
    gain: float
    gain_interval: tuple[float, float]
    held: dict[int, float]
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


class Region(NamedTuple):
    """The shares that are looked at: those of a simplex between `low` [K] and `high` [K]."""

    low: np.ndarray
    high: np.ndarray

    def least(self, slope: np.ndarray) -> np.ndarray:
        """The shares [K] of the region with the least slope @ shares: domains are filled in the order of slope."""
        shares = self.low.copy()
        for place in np.argsort(slope):
            shares[place] += min(self.high[place] - self.low[place], 1 - shares.sum())
        return shares


def whole_simplex(count: int) -> Region:
    """All shares of `count` domains."""
    return Region(np.zeros(count), np.ones(count))


def span_tried(tried: np.ndarray) -> Region:
    """The shares between the least and the largest that were tried [P, K], domain by domain."""
    return Region(tried.min(0), tried.max(0))


def find_best(laws: MixingLaws, region: Region, start: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """(the shares [K] of least weighted loss in the region, a bound on what they lose to the best there).

    FitError if the bound is above LARGEST_GAP.
    """
    inside = region.least(np.zeros(len(region.low)))
    best, least = inside, np.inf
    for begin in (inside if start is None else start, inside):
        found = optimize.minimize(
            laws.loss,
            begin,
            jac=laws.slope,
            method="SLSQP",
            bounds=list(zip(*region, strict=True)),
            constraints={"type": "eq", "fun": lambda r: r.sum() - 1, "jac": lambda r: np.ones(len(r))},
            options={"ftol": 1e-12},
        )
        shares = np.clip(np.nan_to_num(found.x), *region)
        if abs(shares.sum() - 1) > ON_SIMPLEX:
            continue
        if (gap := bound_loss(laws, shares, region)) < least:
            best, least = shares, gap
        if least <= LARGEST_GAP / 10:
            break
    if least > LARGEST_GAP:
        raise FitError(f"the best shares are not certain: they may be {least:.2g} nats from the best")
    return best, least


def bound_loss(laws: MixingLaws, shares: np.ndarray, region: Region) -> float:
    """An upper bound on how far the loss at `shares` lies above the least of the region (Frank & Wolfe 1956)."""
    slope = laws.slope(shares)
    return max(0.0, float(slope @ (shares - region.least(slope))))


def best_shares(
    fits: Sequence[FittedLaw], weights: Sequence[float], tried: np.ndarray, level: float = 0.9
) -> BestShares:
    """The shares of least weighted loss with intervals, from fits of a mixture law [V] and the mixtures tried [P, K].

    Intervals are percentiles of the best shares of each resample. FitError where an optimum is not certain.
    """
    whole, draws = stack_laws(fits, weights)
    region = span_tried(tried)
    shares, gap = find_best(whole, region)
    free, _ = find_best(whole, whole_simplex(len(shares)))
    found = np.array([find_best(each, region, shares)[0] for each in draws]).reshape(len(draws), len(shares))
    place = int(np.argmin([whole.loss(each) for each in tried]))
    gains = [each.loss(tried[place]) - each.loss(shares) for each in draws]
    losses = [each.loss(shares) for each in draws]
    beyond = np.flatnonzero((free > region.high + SEEN) | (free < region.low - SEEN))
    return BestShares(
        shares,
        np.quantile(found, _ends(level), axis=0).T if len(draws) else np.full((len(shares), 2), np.nan),
        whole.losses(shares),
        whole.loss(shares),
        _interval(losses, level),
        place,
        whole.loss(tried[place]) - whole.loss(shares),
        _interval(gains, level),
        {int(place): float(free[place]) for place in beyond},
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
