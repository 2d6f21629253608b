"""How far to trust fitted parameters: refits of resampled runs, each converged or counted as failed, and intervals.

Legend: R resamples, P points, K parameters.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special

from scalelab.errors import BadInput
from scalelab.laws.solve import near_fit, newton
from scalelab.laws.solve.optimum import FitError, Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.solve.refit import SEEDED, join_solutions, refit_moved, refit_weighted, unfit_reasons
from scalelab.laws.trust.dependence import Dependence, simulate_refits
from scalelab.laws.trust.discrepancy import Discrepancy
from scalelab.laws.trust.stored_misfit import draws_to_json

Progress = Callable[[str, int, int], None]  # (what, pieces done, of how many)

MAX_FOLDS = 200  # left-out refits at most: more runs share a fold
MOST_POINTS = 2_000_000_000  # resamples x runs: above, many minutes; memory doesn't depend on it
HELD_AT_ONCE = 4_000_000  # of these, weights in memory at once, of large tables
FEW = 0.05  # a larger share of failed resamples, or of those at a bound, gives a warning
HANDED_ON = 200  # resamples that a fit's JSON holds for later decisions


@dataclasses.dataclass(frozen=True, eq=False)
class Bootstrap:
    """Refits to resampled runs: `params` holds one array [used] per parameter, `failed` counts the others by reason.

    `params` carry what the law may get wrong, as drawn in `misfit`; `sampled` are the refits themselves, and the same
    without a misfit.
    `noise` [n] are left-out residuals: each run's log loss minus the law fitted without it; `jackknife` holds the
    parameters [folds] of those laws, as BCa intervals need them. Where rows depend, `noise` are quantiles of a new
    group's error and `jackknife` is empty: then BCa intervals correct for bias alone.
    """

    params: dict[str, np.ndarray]
    sampled: dict[str, np.ndarray]
    requested: int
    failed: dict[str, int]
    at_bounds: dict[str, int]
    noise: np.ndarray
    jackknife: dict[str, np.ndarray]
    seed: int
    objective: np.ndarray
    misfit: Discrepancy | None = None

    @property
    def used(self) -> int:
        """Number of resamples that gave a fit."""
        return len(self.objective)

    def warnings(self) -> list[str]:
        """Reasons to trust the intervals less."""
        few = f"only {self.used} of {self.requested} resamples gave a fit: the intervals are too narrow"
        at_bound = f"is at its bound in {{}} of {self.used} resamples: it is poorly identified"
        found = [few] if self.used < (1 - FEW) * self.requested else []
        return found + [f"{name} {at_bound.format(n)}" for name, n in self.at_bounds.items() if n > FEW * self.used]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `draws` and `misfit` are those of at most HANDED_ON evenly chosen resamples."""
        some = np.linspace(0, self.used - 1, min(self.used, HANDED_ON)).astype(int)
        return {
            "draws": {name: [float(f"{value:.9g}") for value in values[some]] for name, values in self.params.items()},
            "misfit": draws_to_json(self.misfit, some) if self.misfit else None,
            "requested": self.requested, "used": self.used, "failed": self.failed, "at_bounds": self.at_bounds,
            "noise_rms": float(np.sqrt(np.mean(self.noise**2))), "seed": self.seed,
        }  # fmt: skip


def left_out_residuals(
    problem: Problem, best: Optimum, progress: Progress | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(residuals [<= P] of each run against the law fitted without it, parameters [folds] of those laws).

    In-sample residuals are too small for a new run's noise, since each point pulls the law towards itself. Near
    delta -> 0 the law runs through as many points as it has parameters; there the usual leverage correction sqrt(1 - h)
    would leave zero. Refits without the point avoid both. Runs without which no law is determined give no residual.
    """
    folds = np.arange(problem.points) % MAX_FOLDS
    count, parts = int(folds.max()) + 1, []
    for each in _batches(count, problem.points):
        parts.append(_left_out(problem, best, folds, each))
        if progress:
            progress("left-out fits", int(each[-1]) + 1, count)
    residuals, params = zip(*parts, strict=True)
    return np.concatenate(residuals), {name: np.concatenate([part[name] for part in params]) for name in params[0]}


def _batches(count: int, points: int) -> list[np.ndarray]:
    """Indices 0 to count - 1, in parts whose weights [R, P] fit in memory."""
    size = count if points <= near_fit.MANY_ROWS else max(SEEDED + 1, HELD_AT_ONCE // points)
    return np.split(np.arange(count), range(size, count, size))


def _left_out(
    problem: Problem, best: Optimum, folds: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """`left_out_residuals` of the chosen folds alone."""
    weights = (chosen[:, None] != folds).astype(float)
    weights = weights[unfit_reasons(weights, problem.columns, len(problem.law.params)) == ""]
    refit = near_fit.refit_near if problem.points > near_fit.MANY_ROWS else refit_weighted
    refits = refit(problem, weights, best.x)
    params = {name: values[refits.converged] for name, values in problem.to_params(refits.x).items()}
    out = weights[refits.converged] == 0
    law = {name: values[:, None] for name, values in params.items()}
    residuals = problem.objective.target(problem.target) - problem.objective.target(problem.law(problem.columns, law))
    residuals = residuals if problem.scale is None else residuals / problem.scale
    return residuals[out], params


def check_resample_count(count: int, points: int) -> None:
    """BadInput unless `count` is at least 1 and `count` x `points` at most MOST_POINTS."""
    if count < 1:
        raise BadInput(f"count = {count}: at least 1 resample is needed; 1000 is usual")
    if count * points > MOST_POINTS:
        raise BadInput(
            f"bootstrap={count} of {points:,} rows: over {MOST_POINTS:,} rows to fit again, which takes too long; "
            f"nearest: bootstrap={MOST_POINTS // points}, or 0 for no intervals"
        )


def bootstrap_fit(
    problem: Problem,
    best: Optimum,
    count: int = 1000,
    seed: int = 0,
    dependence: Dependence | None = None,
    progress: Progress | None = None,
    misfit: Discrepancy | None = None,
) -> Bootstrap:
    """Refit `count` tables: resamples of the fitted runs, drawn with replacement, or simulated ones.

    Each of the `count` draws of `misfit` is taken from the targets of one table, to which the law is then fitted again.
    Tables are simulated where rows depend (`Dependence.simulate_errors`): a resample of a dozen groups would hold too
    few of them. A table that determines no law, or whose fit does not converge, gives no number: `failed` counts it
    under its reason. FitError where no table or no left-out run gives a fit. BadInput as in `check_resample_count`.
    """
    check_resample_count(count, problem.points)
    if dependence:
        reasons, weights = np.full(count, "", dtype=object), None
        refits = simulate_refits(problem, best, dependence, count, seed, progress)
        noise, jackknife = dependence.new_run_errors(), dict[str, np.ndarray]()
    else:
        reasons, refits, weights = _refit_resamples(problem, best, count, seed, progress)
        noise, jackknife = left_out_residuals(problem, best, progress)
    tables = np.flatnonzero(reasons == "")
    reasons[tables[~refits.converged]] = "not converged"
    x, used = refits.x[refits.converged], tables[refits.converged]
    if not len(x) or not len(noise):
        raise FitError(f"no resample of {problem.points} runs determines the law: more runs are needed for intervals")
    carried = x
    if misfit and problem.points > near_fit.MANY_ROWS:
        carried = np.clip(x - misfit.shift[used], problem.lower, problem.upper)
    elif misfit:
        moved = dependence.simulate_errors(count, seed) - problem.residuals(best.params) if dependence else None
        shifts = -misfit.at(problem.columns, used) + (0.0 if moved is None else moved[used])
        rows = np.ones_like(shifts) if weights is None else weights[refits.converged]
        carried = refit_moved(problem, x, rows, shifts, x - misfit.shift[used])
    misfit = misfit.select(used) if misfit else None
    bound = ((x <= problem.lower) | (x >= problem.upper)).sum(axis=0)
    failed = dict(collections.Counter(str(reason) for reason in reasons if reason))
    at_bounds = {name: int(count) for name, count in zip(problem.law.params, bound, strict=True) if count}
    laws, objective = (problem.to_params(carried), problem.to_params(x)), refits.objective[refits.converged]
    return Bootstrap(*laws, count, failed, at_bounds, noise, jackknife, seed, objective, misfit)


def _refit_resamples(
    problem: Problem, best: Optimum, count: int, seed: int, progress: Progress | None
) -> tuple[np.ndarray, newton.Solutions, np.ndarray | None]:
    """(why each of `count` resamples has no fit [count], fits of the others, their weights); of large tables by parts.

    Weights of large tables are not held.
    """
    random, shares = np.random.default_rng(seed), np.full(problem.points, 1 / problem.points)
    reasons, parts, weights = [], list[newton.Solutions](), []
    for chosen in _batches(count, problem.points):
        draws = random.multinomial(problem.points, shares, size=len(chosen)).astype(float)
        reasons.append(unfit_reasons(draws, problem.columns, len(problem.law.params)))
        usable = draws[reasons[-1] == ""]
        weights += [usable] if problem.points <= near_fit.MANY_ROWS else []
        near = bool(parts) and problem.points > near_fit.MANY_ROWS
        parts.append((near_fit.refit_near if near else refit_weighted)(problem, usable, best.x))
        if progress:
            progress("resamples", int(chosen[-1]) + 1, count)
    return np.concatenate(reasons), join_solutions(parts), np.concatenate(weights) if weights else None


def central_interval(values: np.ndarray, level: float) -> tuple[float, float]:
    """The central interval that holds the share `level` of `values`; its ends are values that occur, inf included.

    BadInput unless 0 < level < 1.
    """
    if not 0 < level < 1:
        raise BadInput(f"level = {level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)


def bca_interval(values: np.ndarray, point: float, jackknife: np.ndarray | None, level: float) -> tuple[float, float]:
    """Bias-corrected, accelerated interval from resampled `values` [R] and left-out ones (Efron 1987, eq. 3.8).

    Without left-out values it is not accelerated. If every resample lies on one side of the point, the correction
    would be infinite: the extreme value is used.
    """
    below = (np.sum(values < point) + 0.5 * np.sum(values == point)) / len(values)
    bias = special.ndtri(np.clip(below, 0.5 / len(values), 1 - 0.5 / len(values)))
    lean = np.zeros(1) if jackknife is None else np.mean(jackknife) - jackknife
    spread = np.sum(lean**2) ** 1.5
    acceleration = np.sum(lean**3) / (6 * spread) if spread > 0 else 0.0
    ends = special.ndtri([(1 - level) / 2, (1 + level) / 2])
    shifted = special.ndtr(bias + (bias + ends) / (1 - acceleration * (bias + ends)))
    low, high = np.quantile(values, shifted, method="inverted_cdf")
    return float(low), float(high)


def param_intervals(boot: Bootstrap, point: Mapping[str, float], level: float = 0.9) -> dict[str, dict[str, Any]]:
    """{parameter: {"percentile": (low, high), "bca": (low, high), "se": standard deviation of the resamples}}.

    Both intervals are widened by what the law may get wrong; the standard deviation isn't.
    """
    intervals = {}
    for name, values in boot.sampled.items():
        ends = {
            "percentile": central_interval(values, level),
            "bca": bca_interval(values, point[name], boot.jackknife.get(name), level),
        }
        wide = {kind: widen(pair, point[name], values, boot.params[name], level) for kind, pair in ends.items()}
        intervals[name] = {**wide, "se": float(np.std(values))}
    return intervals


def widen(
    ends: tuple[float, float], value: float, sampled: np.ndarray, carried: np.ndarray, level: float
) -> tuple[float, float]:
    """Move the ends away from the value as the draws' misfit does, in quadrature; as they are without one.

    Of what is always positive, factors count: logs are moved, and a draw that underflows to zero is beyond all others.
    What no draw has below zero has no end there. Draws without a finite value have no say.
    """
    known = np.isfinite(sampled) & np.isfinite(carried)
    if not known.any() or not np.isfinite(value) or np.array_equal(sampled[known], carried[known]):
        return ends
    sampled, carried = sampled[known], carried[known]
    never_negative = min(value, *ends, sampled.min(), carried.min()) >= 0
    zeros = float(np.mean((sampled == 0) | (carried == 0)))
    positive = never_negative and min(value, *ends) > 0 and zeros < (1 - level) / 2
    before, back = (np.log, np.exp) if positive else (np.asarray, np.asarray)
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = float(np.quantile(np.nan_to_num(np.abs(before(carried) - before(sampled)), posinf=np.inf), level))
    centre, (low, high) = float(before(value)), before(np.array(ends))
    low, high = (back(centre + np.sign(end - centre) * np.hypot(end - centre, reach)) for end in (low, high))
    low = max(low, 0) if never_negative else low
    return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The loss of one new run (nats per token) with its interval; `fit_low`, `fit_high`: that of the law alone."""

    loss: float
    low: float
    high: float
    fit_low: float
    fit_high: float
    level: float


def predict_run(
    problem: Problem, best: Optimum, boot: Bootstrap, columns: Mapping[str, float], level: float = 0.9
) -> Prediction:
    """Predict the target of one new run at `columns`, with an interval that should hold it.

    The interval joins the uncertainty of the parameters, the law's own error (`boot.misfit`) and the noise of one run:
    it is the central part of all pairs of a resampled law's value and a left-out residual (beyond 200 residuals, their
    200 quantiles), so nothing is drawn. It is widened to hold the prediction itself, where the law misses on one side.
    """
    values = resampled_values(problem, boot, columns)[:, 0]
    noise = boot.noise if len(boot.noise) <= 200 else np.quantile(boot.noise, (np.arange(200) + 0.5) / 200)
    noise = noise * problem.scale_at(columns)
    each = np.outer(boot.misfit.noise_share, noise) if boot.misfit else noise[None]
    pairs = values[:, None] * np.exp(each) if problem.objective.log else values[:, None] + each
    low, high = central_interval(pairs.ravel(), level)
    fit_low, fit_high = central_interval(values, level)
    loss = float(problem.law(columns, best.params))
    return Prediction(loss, min(low, loss), max(high, loss), min(fit_low, loss), max(fit_high, loss), level)


def resampled_values(problem: Problem, boot: Bootstrap, columns: Mapping[str, Any]) -> np.ndarray:
    """The target [R, G] at columns [G] by each resampled law and its misfit, without noise."""
    points = {name: np.atleast_1d(np.asarray(columns[name], float)) for name in problem.law.columns}
    params = {name: values[:, None] for name, values in boot.params.items()}
    values = np.asarray(problem.law(points, params))
    return boot.misfit.correct(values, boot.misfit.at(points)) if boot.misfit else values
