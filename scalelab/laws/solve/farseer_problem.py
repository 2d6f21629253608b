"""Farseer's law in either unit: derivatives by hand, in coordinates that hardly confound its nine parameters.

L = exp(g3) + exp(g2 - exp(g1) log D), where each g = a N^gamma + b. As gamma goes to 0, a and b run off to plus and
minus infinity together, along a curved valley that no step follows far: a fit that has to change gamma's sign would
pass through infinity. So g is written as c + s (exp(gamma tau) - 1) / gamma (Box & Cox 1964), tau = log N less its
mean: c is g at the centre of the data and s its slope there, and gamma = 0 is a point like any other.
Autodiff in these coordinates finds the same optimum to 1e-15 but takes 5 times as long for derivatives, and compiles
for each number of rows: 411 rows with profiles took 29.8 CPU s instead of 2.4 (2026-11-26, one run; the goal is 5).
Legend: R problems, K = 9 parameters, P points, G seeds.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.law import forms
from scalelab.laws.solve.problem import Columns, Derivatives, Moved, Problem, weighted_gram

UNITS = {forms.farseer: 1e9, forms.farseer_counts: 1.0}  # of N and D
SERIES = 0.1  # below this size of z, a series is more exact than the closed form
TERMS = 10
LEAST_POWER = 1e-8  # a smaller |gamma| is reported as this: a and b would be infinite
GROUPS = (slice(0, 3), slice(3, 6), slice(6, 9))  # places of (a1, b1, alpha), (a2, b2, beta), (a3, b3, gamma)


def box_cox(z: np.ndarray) -> np.ndarray:
    """(exp(z) - 1) / z, 1 at z = 0."""
    return np.expm1(z) / np.where(z == 0, 1.0, z) + (z == 0)


def box_cox_slopes(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(e, e', e''): `box_cox` with its first two derivatives."""
    e, power = box_cox(z), np.exp(z)
    small = np.abs(z) < SERIES
    safe = np.where(small, 1.0, z)
    first = (power - e) / safe
    second = (power - 2 * first) / safe
    if small.any():
        near = z[small]
        k = np.arange(TERMS)
        factorial = np.cumprod(np.arange(1, TERMS + 4, dtype=float))  # 1!, 2!, …
        first[small] = np.polynomial.polynomial.polyval(near, (k + 1) / factorial[k + 1])
        second[small] = np.polynomial.polynomial.polyval(near, (k + 1) * (k + 2) / factorial[k + 2])
    return e, first, second


class ExponentSlopes(NamedTuple):
    """g [R, P], its `slopes` by (s, c, gamma) [R, 3, P], and second derivatives by (s, gamma) and (gamma, gamma)."""

    g: np.ndarray
    slopes: np.ndarray
    by_both: np.ndarray
    by_gamma: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Exponent:
    """One g = a N^gamma + b of the law, at `log_n` [P] with its `centre`; `raw`: its coordinates are a, b and gamma."""

    log_n: np.ndarray
    centre: float
    raw: bool

    @functools.cached_property
    def tau(self) -> np.ndarray:
        """log N less its centre [P]."""
        return self.log_n - self.centre

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """The exponent [R, P] at its coordinates x [R, 3]."""
        s, c, gamma = (x[:, i : i + 1] for i in range(3))
        tau = self.tau
        return c + (s * np.exp(gamma * self.log_n) if self.raw else s * tau * box_cox(gamma * tau))

    def differentiate(self, x: np.ndarray) -> ExponentSlopes:
        """The exponent with its derivatives."""
        s, c, gamma = (x[:, i : i + 1] for i in range(3))
        if self.raw:
            power = np.exp(gamma * self.log_n)
            by_s, by_both, by_gamma = power, power * self.log_n, power * self.log_n**2
        else:
            e, first, second = box_cox_slopes(gamma * self.tau)
            by_s, by_both, by_gamma = self.tau * e, self.tau**2 * first, self.tau**3 * second
        slopes = np.stack([by_s, np.ones_like(by_s), s * by_both], axis=1)
        return ExponentSlopes(c + s * by_s, slopes, by_both, s * by_gamma)

    def to_params(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """(a, b, gamma) of coordinates x [3, R]."""
        s, c, gamma = x
        if self.raw:
            return s, c, gamma
        gamma = np.where(np.abs(gamma) < LEAST_POWER, np.where(gamma < 0, -LEAST_POWER, LEAST_POWER), gamma)
        return s / gamma * np.exp(-gamma * self.centre), c - s / gamma, gamma

    def from_params(self, params: np.ndarray) -> tuple[np.ndarray, ...]:
        """Coordinates of (a, b, gamma) [3, R]: the inverse of `to_params`."""
        a, b, gamma = params
        if self.raw:
            return a, b, gamma
        size = a * np.exp(gamma * self.centre)
        return gamma * size, b + size, gamma


class OuterSlopes(NamedTuple):
    """Residuals [R, P] with derivatives by g1, g2 and g3: `first` of each, `second` of pairs that have one."""

    residuals: np.ndarray
    first: list[np.ndarray]
    second: dict[tuple[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class FarseerProblem(Problem):
    """The fit of Farseer's law; arguments as in `pose.pose_problem`."""

    direct: tuple[str, ...] = ()
    centre_at: Columns | None = None

    @functools.cached_property
    def exponents(self) -> list[Exponent]:
        """g1, g2 and g3; raw where a or b must stand in x as it is."""
        unit, names = UNITS[self.law.function], list(self.law.params)
        log_n, centre = np.log(self.columns["N"] / unit), np.log((self.centre_at or self.columns)["N"] / unit).mean()
        raw = [bool({names[group.start], names[group.start + 1]} & set(self.direct)) for group in GROUPS]
        return [Exponent(log_n, centre, each) for each in raw]

    @functools.cached_property
    def log_d(self) -> np.ndarray:
        """log D [P]."""
        return np.log(self.columns["D"] / UNITS[self.law.function])

    @property
    def mixed(self) -> tuple[str, ...]:
        """The names of every a and b: slopes and values at the centre stand in their places."""
        names = list(self.law.params)
        return tuple(name for group in GROUPS for name in names[group.start : group.start + 2])

    def misfits(self, x: np.ndarray) -> np.ndarray:
        """The residuals [R, P]."""
        with np.errstate(all="ignore"):
            g = [exponent.evaluate(x[:, group]) for exponent, group in zip(self.exponents, GROUPS, strict=True)]
            decaying = g[1] - np.exp(g[0]) * self.log_d
            total = np.logaddexp(g[2], decaying) if self.objective.log else np.exp(g[2]) + np.exp(decaying)
            return total - self.wanted

    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals [R, P] and their derivatives [R, K, P]."""
        inner, outer = self._differentiate(x)
        return outer.residuals, _chain(outer, inner)

    def derivatives(self, x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        """Gradient, IRLS majoriser and exact Hessian."""
        objective = self.objective
        with np.errstate(all="ignore"):  # `newton.descend` drops starts whose derivative isn't finite
            inner, outer = self._differentiate(x)
            r, jac = outer.residuals - moved, _chain(outer, inner)
            pull = weights * objective.slope(r)
            majoriser = weighted_gram(jac, weights * objective.weight(r))
            hessian = weighted_gram(jac, weights * objective.bend(r))
            _add_outer_bend(hessian, outer, inner, pull)
            _add_inner_bend(hessian, outer, inner, pull)
            return (jac @ pull[..., None])[..., 0], majoriser, hessian

    def basis(self, searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """No terms, as no parameter is linear; the law as offset [G, P]."""
        return np.zeros((len(searched), 0, self.points)), self.misfits(searched) + self.wanted

    def to_params(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """The nine parameters of coordinates x."""
        params = np.array(np.moveaxis(x, -1, 0), float)
        for group, exponent in zip(GROUPS, self.exponents, strict=True):
            params[group] = exponent.to_params(params[group])
        return dict(zip(self.law.params, params, strict=True))

    def from_params(self, params: Mapping[str, Any]) -> np.ndarray:
        """The inverse of `to_params`."""
        x = np.stack(np.broadcast_arrays(*(np.asarray(params[name], float) for name in self.law.params)))
        for group, exponent in zip(GROUPS, self.exponents, strict=True):
            x[group] = exponent.from_params(x[group])
        return np.moveaxis(x, 0, -1)

    def _differentiate(self, x: np.ndarray) -> tuple[list[ExponentSlopes], OuterSlopes]:
        inner = [exponent.differentiate(x[:, group]) for exponent, group in zip(self.exponents, GROUPS, strict=True)]
        return inner, self._outer_slopes([part.g for part in inner])

    def _outer_slopes(self, g: list[np.ndarray]) -> OuterSlopes:
        m = -np.exp(g[0]) * self.log_d
        decaying = g[1] + m
        if self.objective.log:
            total = np.logaddexp(g[2], decaying)
            share, rest = np.exp(decaying - total), np.exp(g[2] - total)
            bend, cross = share * rest, -share * rest
            r, bend_3 = total - self.wanted, bend
        else:
            share, rest = np.exp(decaying), np.exp(g[2])
            bend, cross, r, bend_3 = share, np.zeros_like(share), rest + share - self.wanted, rest
        second = {(0, 0): bend * m**2 + share * m, (0, 1): bend * m, (1, 1): bend, (0, 2): cross * m, (1, 2): cross}
        return OuterSlopes(r, [share * m, share, rest], second | {(2, 2): bend_3})


def _chain(outer: OuterSlopes, inner: list[ExponentSlopes]) -> np.ndarray:
    """Derivatives of the residuals by x [R, K, P]."""
    return np.concatenate([by[:, None] * part.slopes for by, part in zip(outer.first, inner, strict=True)], axis=1)


def _add_outer_bend(hessian: np.ndarray, outer: OuterSlopes, inner: list[ExponentSlopes], pull: np.ndarray) -> None:
    """Add what the residuals' second derivatives by g1, g2 and g3 give, summed with weights `pull` [R, P]."""
    for (i, j), bend in outer.second.items():
        block = (inner[i].slopes * (pull * bend)[:, None]) @ inner[j].slopes.transpose(0, 2, 1)
        hessian[:, GROUPS[i], GROUPS[j]] += block
        if i != j:
            hessian[:, GROUPS[j], GROUPS[i]] += block.transpose(0, 2, 1)


def _add_inner_bend(hessian: np.ndarray, outer: OuterSlopes, inner: list[ExponentSlopes], pull: np.ndarray) -> None:
    """Add what the second derivatives of g1, g2 and g3 give."""
    for group, by, part in zip(GROUPS, outer.first, inner, strict=True):
        s, gamma = group.start, group.start + 2
        mixed = np.einsum("rp,rp->r", pull * by, part.by_both)
        hessian[:, s, gamma] += mixed
        hessian[:, gamma, s] += mixed
        hessian[:, gamma, gamma] += np.einsum("rp,rp->r", pull * by, part.by_gamma)
