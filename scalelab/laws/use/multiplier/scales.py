"""Variances that may differ between rungs: shrunk towards their common value or trend, drawn, and tested for equality.

The model is Smyth's (2004, "Linear models and empirical Bayes methods"): the variance of rung r is
s0^2 exp(trend x_r) d0 / chi^2 of d0. Its three numbers are not estimated but averaged over, on a grid, so that the
draws hold what a few seeds leave open.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from scipy import special

STEPS = 61  # values of log s0^2
# Change of the log variance from the first rung to the last, each as likely: intervals then hold as often where noise
# grows or falls as where it is equal. No weight on 0, which would draw a noise that grows towards one that does not.
TRENDS = np.linspace(-12, 12, 17)
PRIOR_DF = np.array([np.inf, 16.0, 8.0, 4.0, 2.0])
PRIOR_DF_WEIGHTS = np.array([0.4, 0.15, 0.15, 0.15, 0.15])
TESTED = 2000  # draws of the test that variances are equal
MOST_DF = 200.0


@dataclasses.dataclass(frozen=True, eq=False)
class Scatter:
    """Sums of squares and degrees of freedom by rung, each [R].

    `beside` [3, K]: sums of squares, degrees of freedom and log FLOPs of other variants' rungs, which tell of the noise
    that all have in common.
    """

    ss: np.ndarray
    df: np.ndarray
    beside: np.ndarray | None = None

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
        return Scatter(self.ss * anew, self.df * anew)


def draw_sds(scatter: Scatter, x: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of the standard deviation at each rung, [draws, R]; `x` [R]: log FLOPs."""
    if not scatter.total_df or not scatter.ss.sum():
        return np.zeros((draws, len(x)))
    ss, df, places = scatter.ss, scatter.df, x
    if scatter.beside is not None:
        ss, df, places = (np.concatenate(both) for both in zip((ss, df, places), scatter.beside, strict=True))
    span, total = np.ptp(x), df.sum()
    place = (places - x.mean()) / span if span > 0 else np.zeros(len(places))
    reach = 4 * (2 / total) ** 0.5 + 2
    levels = np.log(ss.sum() / total) + np.linspace(-reach, reach, STEPS)
    base, slope, prior = (each.ravel() for each in np.meshgrid(levels, TRENDS, PRIOR_DF, indexing="ij"))
    logs = base[:, None] + slope[:, None] * place  # [grid, R]
    with np.errstate(invalid="ignore"):
        likelihood = _log_likelihood(ss, df, logs, prior[:, None]).sum(1)
    likelihood += np.tile(np.log(PRIOR_DF_WEIGHTS), STEPS * len(TRENDS))
    share = np.exp(likelihood - likelihood.max())
    chosen = rng.choice(len(share), draws, p=share / share.sum())
    jitter = (rng.random((draws, 1)) - 0.5) * (levels[1] - levels[0])
    n = len(x)
    d0, means = prior[chosen][:, None], np.exp(logs[chosen, :n] + jitter)
    finite = np.isfinite(d0)
    known = np.where(finite, d0, 1.0)
    drawn = (known * means + ss[:n]) / rng.chisquare(known + df[:n])
    return np.sqrt(np.where(finite, drawn, means))


def beside_others(scatters: Sequence[Scatter], places: Sequence[np.ndarray], shared: float) -> list[Scatter]:
    """Each scatter with all others beside it, which count as much as they tell anew; `places`: log FLOPs of each.

    `shared`: the correlation of two variants' sums of squares, by the runs of the baseline that are in both.
    """
    k = len(scatters)
    if k < 2:
        return list(scatters)
    anew = (k / (1 + shared * (k - 1)) - 1) / (k - 1)
    out = []
    for i, each in enumerate(scatters):
        others = [
            (s.ss * anew, s.df * anew, x) for j, (s, x) in enumerate(zip(scatters, places, strict=True)) if j != i
        ]
        out.append(dataclasses.replace(each, beside=np.concatenate([np.stack(other) for other in others], axis=1)))
    return out


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
