"""The noise of each rung: told by its own runs, of both sides together, drawn, and tested for equality.

The two sides of a rung tell one scale. Their scatters differ by a factor that is the same at all rungs, and so is
the share of one in the other; all rungs tell these two numbers, and only the rung itself its scale. Rungs also lend
each other what a hierarchy tells, Smyth's (2004, "Linear models and empirical Bayes methods"): the variance of rung r
is s0^2 exp(trend x_r) d0 / chi^2 of d0. Its numbers are averaged over, on a grid; d0 is small, so that a rung whose
noise is another one is no surprise, and little is lent where a rung has runs enough of its own.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

STEPS, FACTORS = 31, 11  # values of log s0^2, and of the factor between main and companion
# Change of the log variance from the first rung to the last, each as likely: intervals then hold as often where noise
# grows or falls as where it is equal. No weight on 0, which would draw a noise that grows towards one that does not.
TRENDS = np.linspace(-12, 12, 13)
PRIOR_DF = np.array([0.5, 0.25])  # of a rung that was run more than once
ALIKE_DF = np.array([np.inf, 16.0, 8.0, 4.0, 2.0])  # of one that was not: it is taken to be as alike as others are
ALIKE_WEIGHTS = np.array([0.4, 0.15, 0.15, 0.15, 0.15])
TESTED = 2000  # draws of the test that variances are equal
MOST_DF = 200.0
ROUNDS = 20  # of the weights by which a share between two scatters is fitted


class Companion(NamedTuple):
    """Sums of squares and degrees of freedom by rung, each [R], whose variances are a factor times the main ones."""

    ss: np.ndarray
    df: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Scatter:
    """Sums of squares and degrees of freedom by rung, each [R]; `companion`: another scatter of the same scales."""

    ss: np.ndarray
    df: np.ndarray
    companion: Companion | None = None

    @property
    def total_df(self) -> int:
        """Degrees of freedom of all rungs."""
        return int(self.df.sum())

    @property
    def pooled(self) -> float:
        """The standard deviation, were it equal at all rungs."""
        return float(np.sqrt(self.ss.sum() / self.df.sum())) if self.df.sum() else 0.0

    def told_anew(self, rho: float) -> "Scatter":
        """The scatter where blocks or seeds correlate by rho between rungs: R rungs tell less than R times as much.

        R / (1 + rho^2 (R - 1)) over R; one degree of freedom is left, not .9999.
        """
        if not self.df.sum():
            return self
        anew = max(1 / (1 + rho**2 * (len(self.df) - 1)), 1 / self.df.sum()) * (1 + 1e-9) if rho else 1.0
        beside = self.companion and Companion(self.companion.ss * anew, self.companion.df * anew)
        return Scatter(self.ss * anew, self.df * anew, beside)


def find_companion(main: Sequence[np.ndarray], other: Sequence[np.ndarray], df: np.ndarray) -> Companion | None:
    """What `other` deviations tell of the scale of the `main` ones, by rung; None where rungs are too few to compare.

    The share of main in other is taken out. It is fitted with each rung weighed by its own scale, or a noisy rung
    alone would fit it, and so lose its own degrees of freedom. It costs one of them, over all rungs.
    """
    rungs, total = int((df > 0).sum()), float(df.sum())
    ss = np.array([float(values @ values) for values in main])
    if rungs < 2 or total < 3 or not ss.sum():
        return None
    least = 1e-12 * ss.sum() / total
    scale = np.maximum(ss / np.maximum(df, 1), least)
    left = ss
    for _ in range(ROUNDS):
        products = np.array([float(a @ b) for a, b in zip(other, main, strict=True)])
        share = (products / scale).sum() / (ss / scale).sum()
        left = np.array([float(((b - share * a) ** 2).sum()) for a, b in zip(main, other, strict=True)])
        factor = (left / scale).sum() / (ss / scale).sum()
        if not factor > 0:
            return None
        scale = np.maximum((ss + left / factor) / np.maximum(2 * df, 1), least)
    return Companion(left, df * (1 - 1 / total))


def draw_sds(scatter: Scatter, x: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of the standard deviation at each rung, [draws, R]; `x` [R]: log FLOPs."""
    return draw_both(scatter, x, draws, rng)[0]


def draw_both(scatter: Scatter, x: np.ndarray, draws: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the standard deviations of a scatter and of its companion at each rung, each [draws, R]."""
    if not scatter.total_df or not scatter.ss.sum():
        return np.zeros((draws, len(x))), np.zeros((draws, len(x)))
    uniform = np.full(len(PRIOR_DF), 1 / len(PRIOR_DF))
    variances, factors = _draw_variances(scatter, x, PRIOR_DF, uniform, draws, rng)
    alone = scatter.df + (scatter.companion.df if scatter.companion else 0) <= 0
    if alone.any():
        alike, others = _draw_variances(scatter, x, ALIKE_DF, ALIKE_WEIGHTS, draws, rng)
        variances, factors = np.where(alone, alike, variances), np.where(alone, others, factors)
    return np.sqrt(variances), np.sqrt(variances * factors)


def _draw_variances(
    scatter: Scatter, x: np.ndarray, prior_df: np.ndarray, weights: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the variances [draws, R] and of the companion's factor [draws, 1]."""
    total, span = scatter.df.sum(), np.ptp(x)
    place = (x - x.mean()) / span if span > 0 else np.zeros(len(x))
    reach = 4 * (2 / total) ** 0.5 + 2
    levels = np.log(scatter.ss.sum() / total) + np.linspace(-reach, reach, STEPS)
    factors = _possible_factors(scatter)
    beside = scatter.companion or Companion(np.zeros(len(x)), np.zeros(len(x)))
    df = scatter.df + beside.df
    base, slope, prior, factor = (
        each.ravel() for each in np.meshgrid(levels, TRENDS, prior_df, factors, indexing="ij")
    )
    logs = base[:, None] + slope[:, None] * place  # [grid, R]
    ss = scatter.ss + beside.ss * np.exp(-factor)[:, None]
    with np.errstate(invalid="ignore"):
        likelihood = _log_likelihood(ss, df, logs, prior[:, None]).sum(1) - factor * beside.df.sum() / 2
    likelihood += np.log(weights)[np.searchsorted(-prior_df, -prior)]
    share = np.exp(likelihood - likelihood.max())
    chosen = rng.choice(len(share), draws, p=share / share.sum())
    jitter, other = rng.random((2, draws, 1)) - 0.5
    d0, means = prior[chosen][:, None], np.exp(logs[chosen] + jitter * (levels[1] - levels[0]))
    step = factors[1] - factors[0] if len(factors) > 1 else 0.0
    finite = np.isfinite(d0)
    known = np.where(finite, d0, 1.0)
    drawn = (known * means + ss[chosen]) / rng.chisquare(known + df)
    return np.where(finite, drawn, means), np.exp(factor[chosen][:, None] + other * step)


def _possible_factors(scatter: Scatter) -> np.ndarray:
    """Values of the log of the companion's variance over the main one, three standard errors to each side."""
    if scatter.companion is None:
        return np.zeros(1)
    df, beside = scatter.df.sum(), scatter.companion.df.sum()
    middle = np.log(companion_factor(scatter.ss, scatter.df, scatter.companion))
    return np.asarray(middle + 3 * (2 / df + 2 / max(beside, 1.0)) ** 0.5 * np.linspace(-1, 1, FACTORS))


def companion_factor(ss: np.ndarray, df: np.ndarray, beside: Companion) -> float:
    """The companion's variance over the main one, with each rung weighed by its own scale."""
    least, factor = 1e-12 * ss.sum() / df.sum(), max(beside.ss.sum() / beside.df.sum(), 1e-300) / (ss.sum() / df.sum())
    for _ in range(ROUNDS):
        scale = np.maximum((ss + beside.ss / factor) / np.maximum(df + beside.df, 1e-9), least)
        factor = max(float((beside.ss / scale).sum() / beside.df.sum() * df.sum() / (ss / scale).sum()), 1e-300)
    return factor


def beside_others(scatters: Sequence[Scatter], places: Sequence[np.ndarray], shared: float) -> list[Scatter]:
    """Each scatter with what all others tell of its rungs' scales in its companion; `places`: log FLOPs of each.

    `shared`: the correlation of two variants' sums of squares, by the runs of the baseline that are in both. The
    others count at most as much as its own runs do: what is its own must show.
    """
    k = len(scatters)
    if k < 2:
        return list(scatters)
    anew = (k / (1 + shared * (k - 1)) - 1) / (k - 1)
    out = []
    for i, each in enumerate(scatters):
        others = [
            _at_places(other, places[j], places[i]) for j, other in enumerate(scatters) if j != i and other.ss.sum()
        ]
        out.append(_add_to_companion(each, others, anew))
    return out


def _at_places(scatter: Scatter, there: np.ndarray, here: np.ndarray) -> Companion:
    """Another variant's scatter at these rungs; nothing at those it lacks."""
    near = np.abs(here[:, None] - there) < 1e-6  # both are the baseline's
    return Companion(near @ scatter.ss, near @ scatter.df)


def _add_to_companion(scatter: Scatter, others: Sequence[Companion], anew: float) -> Scatter:
    """The scatter with the others' sums of squares in its companion, brought to the companion's scale."""
    usable = [other for other in others if other.df.sum() and scatter.ss.sum()]
    if not usable or len(scatter.ss) < 2:
        return scatter
    own = scatter.companion or Companion(np.zeros(len(scatter.ss)), np.zeros(len(scatter.ss)))
    unit = companion_factor(scatter.ss, scatter.df, own) if own.df.sum() else 1.0
    ss, df = np.zeros_like(own.ss), np.zeros_like(own.df)
    for other in usable:
        ss, df = ss + other.ss * unit / companion_factor(scatter.ss, scatter.df, other), df + other.df
    anew = anew * np.minimum(1.0, (scatter.df + own.df) / np.maximum(anew * df, 1e-9))
    return dataclasses.replace(scatter, companion=Companion(own.ss + anew * ss, own.df + anew * df))


def _log_likelihood(ss: np.ndarray, df: np.ndarray, logs: np.ndarray, d0: np.ndarray) -> np.ndarray:
    """log p(ss), [grid, R], but for what does not depend on the grid; d0 inf: all variances are exp(logs)."""
    ratio = ss * np.exp(-logs)
    known = np.where(np.isfinite(d0), d0, 1.0)
    spread = special.gammaln((known + df) / 2) - special.gammaln(known / 2) - df / 2 * np.log(known / 2)
    spread = spread - (known + df) / 2 * np.log1p(ratio / known)
    return np.asarray(np.where(np.isfinite(d0), spread, -ratio / 2) - df / 2 * logs)


def effective_df(sds: np.ndarray) -> np.ndarray:
    """Degrees of freedom of chi^2 whose log scatters like the drawn variances [draws, R]; 0 where there is no noise."""
    if not sds.all():
        return np.zeros(sds.shape[1])
    scatter = np.maximum((2 * np.log(sds)).var(axis=0), 1e-12)
    grid = np.geomspace(0.5, MOST_DF, 400)
    return np.interp(-scatter, -special.polygamma(1, grid / 2), grid)


def equal_p(scatter: Scatter) -> float | None:
    """P(variances as unequal as these | they are equal), by simulation of Bartlett's statistic; None: no test."""
    ss, df = scatter.ss[scatter.df > 0], scatter.df[scatter.df > 0]
    if len(df) < 2 or not ss.all():
        return None
    null = _null_bartlett(tuple(df.tolist()))
    return float((1 + (null >= _bartlett(ss[None], df)).sum()) / (1 + len(null)))


def _bartlett(ss: np.ndarray, df: np.ndarray) -> np.ndarray:
    return np.asarray(df.sum() * np.log(ss.sum(1) / df.sum()) - (df * np.log(ss / df)).sum(1))


@functools.cache
def _null_bartlett(df: tuple[float, ...]) -> np.ndarray:
    chi = np.random.default_rng(0).chisquare(np.array(df), (TESTED, len(df)))
    return _bartlett(chi, np.array(df))
