"""What a law gets wrong: a smooth error over the logs of its columns, of a size that rows and forecasts allow.

The truth is the law times exp(delta). Delta is a Gaussian process (Kennedy & O'Hagan 2001) with a squared exponential
kernel, made of random features (Rahimi & Recht 2007), so that one draw is a function known everywhere. Its standard
deviation and length have priors; residuals update both (restricted likelihood), and forecasts of larger rows from
smaller ones widen them where they miss by more. Legend: P points, G further points, K parameters, F features, R draws,
H hypotheses (a length and a ratio of delta to noise).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.solve import near_fit, newton
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import information
from scalelab.laws.trust.dependence import Dependence
from scalelab.laws.trust.form import FREQUENCIES, LENGTHS, Basis, make_basis
from scalelab.laws.trust.information import run_sizes

TYPICAL = 0.003  # scale of the prior of delta's standard deviation: three in five laws miss by less
DOF = 3.0  # of that prior, a half-t: it allows for a law that misses by much more
FARTHEST = 4.0  # typical residuals: beyond, a row is an outlier
RATIOS = np.concatenate([[0.0], np.geomspace(0.05, 50.0, 24)])  # delta's standard deviation over a row's noise
NO_ERROR = 0.1  # prior weight of a law without error, over that of one step of RATIOS at TYPICAL
LEFT_OUT = (0.15, 0.25, 0.35, 0.45, 0.55)  # shares of the rows, the largest, that the law forecasts
FEWEST_ROWS = 10
TOLERATED = 2.7  # mean square of forecasts' errors over their variance: rows of one forecast err together
MOST_WIDENED = 3.0  # times the standard deviation of delta


class Posterior(NamedTuple):
    """What rows say of delta: `shares` [H] of the hypotheses, and each one's `length` index, `ratio`, variance `noise`.

    `vectors`, `values`, `pulls` by length: the eigensystem of the features' products, less the law's own directions,
    and the products with the residuals. `plain`: the residuals' variance if the law has no error; `spare` rows.
    """

    shares: np.ndarray
    length: np.ndarray
    ratio: np.ndarray
    noise: np.ndarray
    vectors: list[np.ndarray]
    values: list[np.ndarray]
    pulls: list[np.ndarray]
    plain: float
    spare: int


@dataclasses.dataclass(frozen=True, eq=False)
class Discrepancy:
    """Draws of delta: feature `weights` [R, F] for the length of index `length` [R], in the objective's terms.

    `noise_share` [R]: a row's noise over what it would be if all residuals were noise. `rms`: the median over draws of
    delta's root mean square over the fitted rows; `upper`: its 95 % quantile. `widened`: the factor of delta that
    forecasts ask for, over `forecasts` of them. `shift` [R, K]: how a fit to the fitted rows moves with delta. `log`:
    delta is of log targets.
    """

    basis: Basis
    weights: np.ndarray
    length: np.ndarray
    noise_share: np.ndarray
    shift: np.ndarray
    log: bool
    widened: float
    forecasts: int
    rms: float = 0.0
    upper: float = 0.0

    def at(self, columns: Mapping[str, Any], draws: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Delta [R, G] of the chosen draws at columns [G]."""
        weights, length = self.weights[draws], self.length[draws]
        points = {name: np.atleast_1d(np.asarray(values, float)) for name, values in columns.items()}
        each = [self.basis.features(points, LENGTHS[i]) for i in range(len(LENGTHS))]
        values = np.empty((len(weights), len(each[0])))
        for i, features in enumerate(each):
            values[length == i] = weights[length == i] @ features.T
        return values

    def along(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Delta [R], each draw at a point of its own: columns [R]."""
        return np.sum(self.weights * self._own_features(columns), axis=1)

    def beside(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Delta [R, G], each draw at G points of its own: columns [R, G]."""
        return np.einsum("rf,rgf->rg", self.weights, self._own_features(columns))

    def _own_features(self, columns: Mapping[str, Any]) -> np.ndarray:
        features = [self.basis.features(columns, length) for length in LENGTHS]
        return np.choose(self.length.reshape(-1, *[1] * (features[0].ndim - 1)), features)

    def correct(self, values: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """The law's values with delta."""
        return values * np.exp(delta) if self.log else values + delta

    def select(self, draws: np.ndarray) -> "Discrepancy":
        """The chosen draws alone."""
        parts = {name: getattr(self, name)[draws] for name in ("weights", "length", "noise_share", "shift")}
        return dataclasses.replace(self, **parts)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"rms": self.rms, "upper": self.upper, "widened": self.widened, "forecasts": self.forecasts}


def update_prior(
    basis: Basis,
    columns: Mapping[str, np.ndarray],
    slopes: np.ndarray,
    residuals: np.ndarray,
    typical: float,
    dependence: Dependence | None = None,
) -> Posterior | None:
    """Weigh all hypotheses by the restricted likelihood of the residuals [P]; None where no row is spare.

    As in the objective, an outlier has no more say than a row at FARTHEST.
    """
    whiten = dependence.whiten if dependence else np.asarray
    tangent = information.orthonormal_basis(whiten(slopes))
    freedom = max(len(residuals) - slopes.shape[1], 1)
    most = FARTHEST * 1.4826 * np.median(np.abs(residuals)) * np.sqrt(len(residuals) / freedom)
    errors = whiten(np.clip(residuals, -most, most)[:, None])[:, 0]
    errors = errors - tangent @ (tangent.T @ errors)
    spare = len(errors) - tangent.shape[1]
    total = float(errors @ errors)
    if spare < 1 or not total > 0:
        return None
    vectors, values, pulls, scores, noise = [], [], [], [], []
    for length in LENGTHS:
        features = whiten(basis.features(columns, length))
        features = features - tangent @ (tangent.T @ features)
        value, vector = np.linalg.eigh(features.T @ features)
        value, pull = np.maximum(value, 0.0), vector.T @ (features.T @ errors)
        spread = 1.0 + RATIOS[:, None] ** 2 * value
        squares = np.maximum(total - np.sum(RATIOS[:, None] ** 2 / spread * pull**2, axis=1), 1e-12 * total)
        likelihood = -0.5 * (np.sum(np.log(spread), axis=1) + spare * np.log(squares))
        relative = RATIOS * np.sqrt(squares / spare) / typical
        prior = _weigh_prior(relative)
        vectors.append(vector)
        values.append(value)
        pulls.append(pull)
        scores.append(likelihood + np.log(prior))
        noise.append(squares / spare)
    shares = np.exp(np.concatenate(scores) - np.max(scores))
    return Posterior(
        shares / shares.sum(),
        np.repeat(np.arange(len(LENGTHS)), len(RATIOS)),
        np.tile(RATIOS, len(LENGTHS)),
        np.concatenate(noise),
        vectors,
        values,
        pulls,
        total / spare,
        spare,
    )


def _weigh_prior(relative: np.ndarray) -> np.ndarray:
    """Prior weights [H] of delta's standard deviations over TYPICAL, evenly spaced in their logs: half-t."""
    return np.where(relative > 0, relative / (1.0 + relative**2 / DOF) ** ((DOF + 1) / 2), NO_ERROR)


def forecast_moments(
    basis: Basis,
    posterior: Posterior,
    fitted: tuple[Mapping[str, np.ndarray], np.ndarray],
    ahead: tuple[Mapping[str, np.ndarray], np.ndarray],
    dependence: Dependence | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, variance by noise, variance by delta), each [G], of new rows' errors, linearised.

    `fitted`, `ahead`: columns and the law's sensitivities, [P, K] and [G, K]; `dependence` of the fitted rows. New rows
    belong to new groups.
    """
    hat = ahead[1] @ information.error_map(fitted[1])
    means, noises, spreads = (np.zeros(len(hat)) for _ in range(3))
    squares = np.zeros(len(hat))
    for i, length in enumerate(LENGTHS):
        chosen = posterior.length == i
        beyond = basis.features(ahead[0], length) - hat @ basis.features(fitted[0], length)
        turned = beyond @ posterior.vectors[i]
        shares, ratio2, noise = posterior.shares[chosen], posterior.ratio[chosen] ** 2, posterior.noise[chosen]
        shrink = ratio2[:, None] / (1.0 + ratio2[:, None] * posterior.values[i])  # [H, F]
        mean = (shrink * posterior.pulls[i]) @ turned.T
        means += shares @ mean
        squares += shares @ mean**2
        spreads += (shares * noise) @ (shrink @ (turned**2).T)
        shared = dependence.shared_variance(hat) if dependence else 0.0
        noises += np.sum(shares * noise) * (1.0 + np.sum(hat**2, axis=1) + shared)
    return means, noises, spreads + np.maximum(squares - means**2, 0.0)


def find_discrepancy(
    problem: Problem, best: Optimum, count: int, seed: int = 0, dependence: Dependence | None = None, group: str = ""
) -> Discrepancy | None:
    """Draw `count` errors of the law, as rows and forecasts allow them; None without a spare row or a column.

    Of a large table evenly spaced rows tell. `group` names the column that numbers groups of rows.
    """
    basis = make_basis(problem.columns, group)
    if basis is None:
        return None
    typical = TYPICAL * (1.0 if problem.objective.log else float(np.mean(np.abs(problem.target))))
    slopes = information.law_sensitivity(problem, best, problem.columns, 1.0)
    fitted = np.zeros(problem.points, bool)
    some = min(problem.points, near_fit.MANY_ROWS)
    order = np.argsort(run_sizes(problem.columns), kind="stable")
    fitted[order[np.linspace(0, problem.points - 1, some).astype(int)]] = True
    columns = {name: column[fitted] for name, column in problem.columns.items()}
    residuals, groups = problem.residuals(best.params)[fitted], dependence.select_rows(fitted) if dependence else None
    rows = (columns, slopes[fitted], residuals, groups)
    posterior = update_prior(basis, *rows[:3], typical, rows[3])
    if posterior is None:
        return None
    widened, forecasts = _widen_by_forecasts(problem, best, basis, typical, dependence)
    weights, length, noise = _draw_weights(posterior, widened, count, np.random.default_rng([seed, 1]))
    draws = Discrepancy(
        basis, weights, length, noise, np.zeros((count, len(best.x))), problem.objective.log, widened, forecasts
    )
    delta = draws.at(columns)
    rms = np.sqrt(np.mean(delta**2, axis=1))
    return dataclasses.replace(
        draws,
        shift=delta @ information.error_map(rows[1]).T,
        rms=float(np.median(rms)),
        upper=float(np.quantile(rms, 0.95)),
    )


def _draw_weights(
    posterior: Posterior, widened: float, count: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weights [R, F], indices of lengths [R], shares of noise [R]); hypotheses are stratified, in random order."""
    places = random.permutation((np.arange(count) + 0.5) / count)
    chosen = np.searchsorted(np.cumsum(posterior.shares), places).clip(0, len(posterior.shares) - 1)
    length, ratio2 = posterior.length[chosen], posterior.ratio[chosen] ** 2
    scale = np.sqrt(posterior.noise[chosen] * posterior.spare / random.chisquare(posterior.spare, count))
    weights = random.standard_normal((count, 2 * FREQUENCIES))
    for i in range(len(LENGTHS)):
        draws = length == i
        shrink = ratio2[draws, None] / (1.0 + ratio2[draws, None] * posterior.values[i])
        deviation = widened * np.sqrt(shrink) * scale[draws, None] * weights[draws]
        weights[draws] = (shrink * posterior.pulls[i] + deviation) @ posterior.vectors[i].T
    return weights, length, np.sqrt(posterior.noise[chosen] / posterior.plain)


def _widen_by_forecasts(
    problem: Problem, best: Optimum, basis: Basis, typical: float, dependence: Dependence | None
) -> tuple[float, int]:
    """(factor of delta's standard deviation at which forecasts of larger rows miss as much as they should, how many).

    The geometric mean over forecasts: their largest factor is chance's, too.
    """
    order = np.argsort(run_sizes(problem.columns), kind="stable")
    needed = max(FEWEST_ROWS, 2 * len(problem.law.params))
    counts = [int(share * problem.points) for share in LEFT_OUT]
    splits = [order[: problem.points - left] for left in counts if left >= 2 and problem.points - left >= needed]
    if not splits:
        return 1.0, 0
    weights = np.zeros((len(splits), problem.points))
    for row, fitted in zip(weights, splits, strict=True):
        row[fitted] = 1.0
    refits = newton.descend(problem, np.tile(best.x, (len(splits), 1)), weights)
    factors = []
    for row, x, converged in zip(weights > 0, refits.x, refits.converged, strict=True):
        if converged:
            params = {name: float(values[0]) for name, values in problem.to_params(x[None]).items()}
            small = dataclasses.replace(best, x=x, params=params)
            factors.append(_needed_factor(problem, small, basis, row, typical, dependence))
    known = [factor for factor in factors if factor is not None]
    return (float(np.exp(np.mean(np.log(known)))), len(known)) if known else (1.0, 0)


def _needed_factor(
    problem: Problem, small: Optimum, basis: Basis, rows: np.ndarray, typical: float, dependence: Dependence | None
) -> float | None:
    """The factor for one forecast from `rows` [P]; None where these leave no spare row."""
    slopes = information.law_sensitivity(problem, small, problem.columns, 1.0)
    residuals = problem.residuals(small.params)
    parts = [{name: column[part] for name, column in problem.columns.items()} for part in (rows, ~rows)]
    groups = dependence.select_rows(rows) if dependence else None
    posterior = update_prior(basis, parts[0], slopes[rows], residuals[rows], typical, groups)
    if posterior is None:
        return None
    sides = (parts[0], slopes[rows]), (parts[1], slopes[~rows])
    mean, noise, delta = forecast_moments(basis, posterior, *sides, groups)
    square = (residuals[~rows] - mean) ** 2
    low, high = 0.0, 2 * np.log(MOST_WIDENED)  # of log factor squared
    for _ in range(30):
        middle = 0.5 * (low + high)
        too_small = np.mean(square / (noise + np.exp(middle) * delta)) > TOLERATED
        low, high = (middle, high) if too_small else (low, middle)
    return float(np.exp(0.5 * low))
