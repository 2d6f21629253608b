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
from scalelab.laws.solve.refit import SEEDED, join_solutions, refit_weighted, unfit_reasons
from scalelab.laws.trust.dependence import Dependence, simulate_refits
from scalelab.laws.trust.form import Misfit

Progress = Callable[[str, int, int], None]  # (what, pieces done, of how many)

MAX_FOLDS = 200  # left-out refits at most: more runs share a fold
MOST_POINTS = 2_000_000_000  # resamples x runs: above, many minutes; memory doesn't depend on it
HELD_AT_ONCE = 4_000_000  # of these, weights in memory at once, of large tables
FEW = 0.05  # a larger share of failed resamples, or of those at a bound, gives a warning
HANDED_ON = 200  # resamples that a fit's JSON holds for later decisions


@dataclasses.dataclass(frozen=True, eq=False)
class Bootstrap:
    """Refits to resampled runs: `params` holds one array [used] per parameter, `failed` counts the others by reason.

    `noise` [n] are left-out residuals: each run's log loss minus the law fitted without it; `jackknife` holds the
    parameters [folds] of those laws, as BCa intervals need them. Where rows depend, `noise` are quantiles of a new
    group's error and `jackknife` is empty: then BCa intervals correct for bias alone. `misfit`: what predictions add
    where the law's form fails its test.
    """

    params: dict[str, np.ndarray]
    requested: int
    failed: dict[str, int]
    at_bounds: dict[str, int]
    noise: np.ndarray
    jackknife: dict[str, np.ndarray]
    seed: int
    objective: np.ndarray
    misfit: Misfit | None = None

    @property
    def used(self) -> int:
        """Number of resamples that gave a fit."""
        return len(self.objective)

    def warnings(self) -> list[str]:
        """Reasons to trust the intervals less."""
        warnings = []
        if self.used < (1 - FEW) * self.requested:
            warnings.append(f"only {self.used} of {self.requested} resamples gave a fit: the intervals are too narrow")
        for name, count in self.at_bounds.items():
            if count > FEW * self.used:
                warnings.append(f"{name} is at its bound in {count} of {self.used} resamples: it is poorly identified")
        return warnings

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `draws` holds the parameters of at most HANDED_ON evenly chosen resamples."""
        some = np.linspace(0, self.used - 1, min(self.used, HANDED_ON)).astype(int)
        return {
            "draws": {name: [float(f"{value:.9g}") for value in values[some]] for name, values in self.params.items()},
            "requested": self.requested,
            "used": self.used,
            "failed": self.failed,
            "at_bounds": self.at_bounds,
            "noise_rms": float(np.sqrt(np.mean(self.noise**2))),
            "seed": self.seed,
        }


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
) -> Bootstrap:
    """Refit `count` tables: resamples of the fitted runs, drawn with replacement, or simulated ones.

    Tables are simulated where rows depend (`Dependence.simulate_errors`): a resample of a dozen groups would hold too
    few of them. A table that determines no law, or whose fit does not converge, gives no number: `failed` counts it
    under its reason. FitError where no table or no left-out run gives a fit. BadInput as in `check_resample_count`.
    """
    check_resample_count(count, problem.points)
    if dependence:
        reasons = np.full(count, "", dtype=object)
        refits = simulate_refits(problem, best, dependence, count, seed, progress)
        noise, jackknife = dependence.new_run_errors(), dict[str, np.ndarray]()
    else:
        reasons, refits = _refit_resamples(problem, best, count, seed, progress)
        noise, jackknife = left_out_residuals(problem, best, progress)
    reasons[np.flatnonzero(reasons == "")[~refits.converged]] = "not converged"
    x = refits.x[refits.converged]
    if not len(x) or not len(noise):
        raise FitError(f"no resample of {problem.points} runs determines the law: more runs are needed for intervals")
    bound = ((x <= problem.lower) | (x >= problem.upper)).sum(axis=0)
    return Bootstrap(
        params=problem.to_params(x),
        requested=count,
        failed=dict(collections.Counter(str(reason) for reason in reasons if reason)),
        at_bounds={name: int(count) for name, count in zip(problem.law.params, bound, strict=True) if count},
        noise=noise,
        jackknife=jackknife,
        seed=seed,
        objective=refits.objective[refits.converged],
    )


def _refit_resamples(
    problem: Problem, best: Optimum, count: int, seed: int, progress: Progress | None
) -> tuple[np.ndarray, newton.Solutions]:
    """(why each of `count` resamples has no fit [count], fits of the others); of large tables a part at a time."""
    random, shares = np.random.default_rng(seed), np.full(problem.points, 1 / problem.points)
    reasons, parts = [], list[newton.Solutions]()
    for chosen in _batches(count, problem.points):
        draws = random.multinomial(problem.points, shares, size=len(chosen)).astype(float)
        reasons.append(unfit_reasons(draws, problem.columns, len(problem.law.params)))
        usable = draws[reasons[-1] == ""]
        near = bool(parts) and problem.points > near_fit.MANY_ROWS
        parts.append((near_fit.refit_near if near else refit_weighted)(problem, usable, best.x))
        if progress:
            progress("resamples", int(chosen[-1]) + 1, count)
    return np.concatenate(reasons), join_solutions(parts)


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
    """{parameter: {"percentile": (low, high), "bca": (low, high), "se": standard deviation of the resamples}}."""
    return {
        name: {
            "percentile": central_interval(values, level),
            "bca": bca_interval(values, point[name], boot.jackknife.get(name), level),
            "se": float(np.std(values)),
        }
        for name, values in boot.params.items()
    }


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

    The interval joins the uncertainty of the parameters and the noise of one run: it is the central part of all pairs
    of a resampled law's value and a left-out residual (beyond 200 residuals, their 200 quantiles), so nothing is drawn.
    Where the law's form failed its test, `boot.misfit` adds its half-width, as independent errors add. Beyond that the
    interval assumes the law's form: it knows nothing of a break beyond the data.
    """
    values = problem.law(columns, boot.params)
    noise = boot.noise if len(boot.noise) <= 200 else np.quantile(boot.noise, (np.arange(200) + 0.5) / 200)
    noise = noise * problem.scale_at(columns)
    pairs = np.outer(values, np.exp(noise)) if problem.objective.log else np.add.outer(values, noise)
    low, high = central_interval(pairs.ravel(), level)
    fit_low, fit_high = central_interval(values, level)
    loss = float(problem.law(columns, best.params))
    if boot.misfit:
        low, high = _widen(problem, loss, low, high, boot.misfit.half_width(problem.law, columns))
    return Prediction(loss, low, high, fit_low, fit_high, level)


def _widen(problem: Problem, value: float, low: float, high: float, half_width: float) -> tuple[float, float]:
    """Ends further away from the value by `half_width`, in quadrature, in the objective's terms."""
    centre, ends = problem.objective.target(np.array(value)), problem.objective.target(np.array([low, high]))
    moved = centre + np.sign(ends - centre) * np.hypot(ends - centre, half_width)
    low, high = np.exp(moved) if problem.objective.log else moved
    return float(low), float(high)
