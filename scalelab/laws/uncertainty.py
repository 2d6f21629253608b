"""How far to trust a fit: bootstrap intervals of its parameters, of a decision, and of the loss of one new run."""

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws import solve
from scalelab.laws.fit import MIN_SIZES, Fit, FitError, checked, seed_grid
from scalelab.laws.forms import FLOPS_PER_PARAM_TOKEN, Params, chinchilla, exponents, optimum

RESTART_EXPONENTS = np.geomspace(0.1, 1.6, 5)  # each resample also starts from its own best seed, not only from the fit
MIN_DISTINCT = 6  # one more than the parameters: with fewer distinct runs a resample is interpolated, not fitted
BATCH = 1_000_000  # resamples x runs fitted at once: some hundred MB
MAX_FOLDS = 200  # left-out residuals: beyond this many runs, folds of several runs


class Interval(NamedTuple):
    """A point estimate and its interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, eq=False)
class Bootstrap:
    """Refits to resampled runs. `params` holds one array [used] a parameter; `failed` counts the reasons of the others.

    `noise` [n] are left-out log residuals: each run's log loss minus the law that was fitted without it.
    """

    params: Params
    requested: int
    failed: dict[str, int]
    at_bounds: dict[str, int]
    noise: np.ndarray
    seed: int

    @property
    def used(self) -> int:
        """Resamples that gave a fit."""
        return len(np.asarray(self.params.E))

    def to_json(self) -> dict[str, Any]:
        """What was resampled and what came of it."""
        return {
            "requested": self.requested,
            "used": self.used,
            "failed": self.failed,
            "at_bounds": self.at_bounds,
            "noise_rms": float(np.sqrt(np.mean(self.noise**2))),
            "seed": self.seed,
        }


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The loss of one new run (nats per token) with its interval; `fit_low`, `fit_high`: the law's own part of it."""

    loss: float
    low: float
    high: float
    fit_low: float
    fit_high: float
    level: float


@dataclasses.dataclass(frozen=True)
class Decision:
    """How to spend C = k N D FLOPs, with intervals; `loss` is that of one run at the point estimate of N and D."""

    C: float
    k: float
    N: Interval
    D: Interval
    loss: Interval
    level: float


def quantiles(values: np.ndarray, level: float) -> tuple[float, float]:
    """The central interval of `values` that holds `level` of them (values that occur: infinities are no trouble)."""
    if not 0 < level < 1:
        raise BadInput(f"level = {level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)


def refit(weights: np.ndarray, data: solve.Data, fit: Fit) -> solve.Solutions:
    """Fit each row of weights [R, P], from the fit itself and from the row's own best seed; the lower one counts."""
    rows = max(1, BATCH // weights.shape[1])
    parts = [_refit(weights[first : first + rows], data, fit) for first in range(0, max(len(weights), 1), rows)]
    return solve.Solutions(*(np.concatenate(found) for found in zip(*map(dataclasses.astuple, parts), strict=True)))


def _refit(weights: np.ndarray, data: solve.Data, fit: Fit) -> solve.Solutions:
    seeds = solve.seeds(data, weights, seed_grid(RESTART_EXPONENTS))
    values = np.stack([solve.objective(seeds[:, g], data, weights) for g in range(seeds.shape[1])], axis=1)
    own = seeds[np.arange(len(seeds)), values.argmin(axis=1)]
    warm = np.broadcast_to(solve.from_params(fit.params, data), own.shape)
    first, second = (solve.descend(start, data, weights) for start in (warm, own))
    better = second.objective < first.objective
    return solve.Solutions(
        np.where(better[:, None], second.x, first.x),
        np.where(better, second.objective, first.objective),
        np.where(better, second.converged, first.converged),
    )


def unfit(weights: np.ndarray, N: np.ndarray, D: np.ndarray) -> np.ndarray:
    """Why each resample [R, P] determines no law: an array of reasons, "" where it does."""
    drawn = weights > 0
    reasons = np.full(len(weights), "", dtype=object)
    for name, values in (("D", D), ("N", N)):
        labels = np.unique(values, return_inverse=True)[1]
        different = (drawn.astype(int) @ np.eye(labels.max() + 1, dtype=int)[labels] > 0).sum(axis=1)
        reasons[different < MIN_SIZES] = f"fewer than {MIN_SIZES} different {name}"
    reasons[drawn.sum(axis=1) < MIN_DISTINCT] = f"fewer than {MIN_DISTINCT} different runs"
    return reasons


def labels_of(groups: ArrayLike | None, points: int) -> np.ndarray:
    """Group labels [P] as integers from 0; every run its own group where none are given."""
    if groups is None:
        return np.arange(points)
    groups = np.asarray(groups)
    if groups.shape != (points,):
        raise BadInput(f"{groups.size} group labels for {points} runs: one a run is needed")
    return np.unique(groups, return_inverse=True)[1]


def left_out_residuals(data: solve.Data, fit: Fit, N: np.ndarray, D: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Log loss of each run minus the log law fitted without its group: what a new run's noise looks like, [<= P].

    In-sample residuals are too small for that: five parameters have bent towards each of few points, and near delta -> 0
    the law runs through five of them exactly, where the usual leverage correction sqrt(1 - h) would leave zero. The
    refit charges each point for its own pull. Runs without which no law is determined give none.
    """
    folds = labels % MAX_FOLDS
    weights = (np.arange(folds.max() + 1)[:, None] != folds).astype(float)
    weights = weights[unfit(weights, N, D) == ""]
    found = refit(weights, data, fit)
    residuals = data.y - np.log(solve.log_model(found.x, data)[0])
    return residuals[(weights == 0) & found.converged[:, None]]


def bootstrap(
    N: ArrayLike, D: ArrayLike, loss: ArrayLike, fit: Fit, count: int = 1000, seed: int = 0,
    groups: ArrayLike | None = None,
) -> Bootstrap:  # fmt: skip
    """Refit `count` resamples of the runs that `fit` was made from, drawn with replacement.

    Runs that share a label in `groups` [P] (checkpoints of one run, say) are drawn together. A resample that determines
    no law, or whose fit did not converge, gives no number: it is counted under its reason in `failed`.
    FitError where no resample or no left-out run gave a fit.
    """
    N, D, loss = checked(N, D, loss)
    if count < 1:
        raise BadInput(f"count = {count}: at least 1 resample is needed; 1000 is usual")
    data = solve.centred(N, D, loss, fit.delta)
    labels = labels_of(groups, len(N))
    clusters = int(labels.max()) + 1
    draws = np.random.default_rng(seed).multinomial(clusters, np.full(clusters, 1 / clusters), size=count)
    weights = draws[:, labels].astype(float)
    reasons = unfit(weights, N, D)
    usable = np.flatnonzero(reasons == "")
    found = refit(weights[usable], data, fit)
    reasons[usable[~found.converged]] = "not converged"
    noise = left_out_residuals(data, fit, N, D, labels)
    x = found.x[found.converged]
    if not len(x) or not len(noise):
        raise FitError(f"no resample of {len(N)} runs determines the law: more runs are needed for intervals")
    bound = ((x <= solve.LOWER) | (x >= solve.UPPER)).sum(axis=0)
    return Bootstrap(
        params=solve.to_params(x, data),
        requested=count,
        failed=dict(collections.Counter(str(reason) for reason in reasons if reason)),
        at_bounds={name: int(held) for name, held in zip(Params._fields, bound, strict=True) if held},
        noise=noise,
        seed=seed,
    )


def intervals(boot: Bootstrap, level: float = 0.9) -> dict[str, tuple[float, float]]:
    """Percentile interval of each parameter and of the exponents a, b of N_opt ~ C^a, D_opt ~ C^b."""
    a, b = exponents(boot.params)
    return {name: quantiles(np.asarray(v), level) for name, v in (boot.params._asdict() | {"a": a, "b": b}).items()}


def predict(fit: Fit, boot: Bootstrap, N: float, D: float, level: float = 0.9) -> Prediction:
    """The loss of a single new run with N parameters and D tokens, with an interval meant to hold it.

    The interval is the central part of every resampled law's loss times every left-out residual: the uncertainty of the
    parameters and the noise of one run. (All pairs are taken, so nothing is drawn; of very many residuals, 200 quantiles.)
    It is conditional on the law's form: it knows nothing of a break beyond the data.
    """
    losses = chinchilla(boot.params, N, D)
    noise = boot.noise if len(boot.noise) <= 200 else np.quantile(boot.noise, (np.arange(200) + 0.5) / 200)
    low, high = quantiles(np.outer(losses, np.exp(noise)).ravel(), level)
    fit_low, fit_high = quantiles(losses, level)
    return Prediction(float(chinchilla(fit.params, N, D)), low, high, fit_low, fit_high, level)


def decide(
    fit: Fit, boot: Bootstrap, C: float, k: float = FLOPS_PER_PARAM_TOKEN, level: float = 0.9
) -> Decision:  # fmt: skip
    """The best N and D for C = k N D FLOPs, with intervals from the resamples, and the loss of a run there.

    FitError where the law has no interior optimum (A or B is 0).
    """
    if not (np.isfinite(C) and C > 0):
        raise BadInput(f"C = {C:g}: a budget is a positive number of FLOPs")
    point, spread = optimum(fit.params, C, k), optimum(boot.params, C, k)
    if not np.isfinite(point.loss):
        raise FitError(f"the law has no compute-optimal size: A = {fit.params.A:g}, B = {fit.params.B:g}")
    loss = predict(fit, boot, float(point.N), float(point.D), level)
    return Decision(
        C=C,
        k=k,
        N=Interval(float(point.N), *quantiles(spread.N, level)),
        D=Interval(float(point.D), *quantiles(spread.D, level)),
        loss=Interval(loss.loss, loss.low, loss.high),
        level=level,
    )
