"""Farseer's law in either unit: derivatives by hand, in coordinates that hardly confound its nine parameters.

L = exp(g3) + exp(g2 - exp(g1) log D), where each g = a N^gamma + b. As gamma goes to 0, a and b run off to plus and
minus infinity together, along a curved valley that no step follows far: a fit that has to change gamma's sign would
pass through infinity. So g is written as c + s (exp(gamma tau) - 1) / gamma (Box & Cox 1964), tau = log N less its
mean: c is g at the centre of the data and s its slope there, and gamma = 0 is a point like any other.
Legend: R problems, K = 9 parameters, P points, G seeds.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.law import forms
from scalelab.laws.law.law import Law
from scalelab.laws.law.objective import Objective
from scalelab.laws.solve.problem import Columns, Derivatives, Moved, Problem, coordinate_bounds

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


def build_farseer_problem(
    law: Law, columns: Columns, target: np.ndarray, objective: Objective, direct: tuple[str, ...],
    centre_at: Columns | None = None,
) -> Problem:  # fmt: skip
    """Build the problem for Farseer's law; arguments as in `pose.pose_problem`."""
    unit = UNITS[law.function]
    log_n, log_d = np.log(columns["N"] / unit), np.log(columns["D"] / unit)
    y, centre = objective.target(target), np.log((centre_at or columns)["N"] / unit).mean()
    tau, names = log_n - centre, list(law.params)
    raw = [bool({names[group.start], names[group.start + 1]} & set(direct)) for group in GROUPS]

    def exponent(x: np.ndarray, g: int) -> np.ndarray:
        """g_1, g_2 or g_3 at every row: [R, P]."""
        s, c, gamma = (x[:, i : i + 1] for i in range(3 * g, 3 * g + 3))
        return c + (s * np.exp(gamma * log_n) if raw[g] else s * tau * box_cox(gamma * tau))

    def exponent_slopes(x: np.ndarray, g: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(g, slopes [R, 3, P], second derivatives by (s, gamma) and (gamma, gamma))."""
        s, c, gamma = (x[:, i : i + 1] for i in range(3 * g, 3 * g + 3))
        if raw[g]:
            power = np.exp(gamma * log_n)
            by_s, by_both, by_gamma = power, power * log_n, power * log_n**2
        else:
            e, first, second = box_cox_slopes(gamma * tau)
            by_s, by_both, by_gamma = tau * e, tau**2 * first, tau**3 * second
        slopes = np.stack([by_s, np.ones_like(by_s), s * by_both], axis=1)
        return c + s * by_s, slopes, by_both, s * by_gamma

    def residuals(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            decay = np.exp(exponent(x, 0)) * log_d
            first, second = exponent(x, 2), exponent(x, 1) - decay
            return np.logaddexp(first, second) - y if objective.log else np.exp(first) + np.exp(second) - y

    def value(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> np.ndarray:
        with np.errstate(all="ignore"):
            total = np.sum(weights * objective.penalty(residuals(x) - moved), axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def outer_slopes(g: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray], dict[tuple[int, int], np.ndarray]]:
        """(residuals, their derivatives by g1, g2, g3, second derivatives by pairs of these), each [R, P]."""
        m = -np.exp(g[0]) * log_d
        second = g[1] + m
        if objective.log:
            total = np.logaddexp(g[2], second)
            share = np.exp(second - total)
            one, bend, cross = np.exp(g[2] - total), share * np.exp(g[2] - total), -share * np.exp(g[2] - total)
            r, own = total - y, bend
        else:
            one, share = np.exp(g[2]), np.exp(second)
            bend, cross, r, own = share, np.zeros_like(share), one + share - y, one
        both = {(0, 0): bend * m**2 + share * m, (0, 1): bend * m, (1, 1): bend, (0, 2): cross * m, (1, 2): cross}
        return r, [share * m, share, one], both | {(2, 2): own}

    def linearise(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [exponent_slopes(x, g) for g in range(3)]
        r, by_g, _ = outer_slopes([part[0] for part in parts])
        return r, np.concatenate([by[:, None] * part[1] for by, part in zip(by_g, parts, strict=True)], axis=1)

    def derivatives(x: np.ndarray, weights: np.ndarray, moved: Moved = 0.0) -> Derivatives:
        with np.errstate(all="ignore"):  # `newton.descend` drops starts whose derivative isn't finite
            parts = [exponent_slopes(x, g) for g in range(3)]
            r, by_g, both = outer_slopes([part[0] for part in parts])
            r = r - moved
            jac = np.concatenate([by[:, None] * part[1] for by, part in zip(by_g, parts, strict=True)], axis=1)
            pull = weights * objective.slope(r)
            transposed = jac.transpose(0, 2, 1)
            majoriser = (jac * (weights * objective.weight(r))[:, None]) @ transposed
            hessian = (jac * (weights * objective.bend(r))[:, None]) @ transposed
            for (i, j), bend in both.items():
                block = (parts[i][1] * (pull * bend)[:, None]) @ parts[j][1].transpose(0, 2, 1)
                hessian[:, GROUPS[i], GROUPS[j]] += block
                if i != j:
                    hessian[:, GROUPS[j], GROUPS[i]] += block.transpose(0, 2, 1)
            for group, by, (_, _, by_both, by_gamma) in zip(GROUPS, by_g, parts, strict=True):
                s, gamma = group.start, group.start + 2
                mixed = np.einsum("rp,rp->r", pull * by, by_both)
                hessian[:, s, gamma] += mixed
                hessian[:, gamma, s] += mixed
                hessian[:, gamma, gamma] += np.einsum("rp,rp->r", pull * by, by_gamma)
            return (jac @ pull[..., None])[..., 0], majoriser, hessian

    def basis(searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((len(searched), 0, len(target))), residuals(searched) + y

    def to_params(x: np.ndarray) -> dict[str, np.ndarray]:
        params = np.array(np.moveaxis(x, -1, 0), float)
        for group, is_raw in zip(GROUPS, raw, strict=True):
            if not is_raw:
                s, c, gamma = params[group]
                gamma = np.where(np.abs(gamma) < LEAST_POWER, np.where(gamma < 0, -LEAST_POWER, LEAST_POWER), gamma)
                params[group] = s / gamma * np.exp(-gamma * centre), c - s / gamma, gamma
        return dict(zip(law.params, params, strict=True))

    def from_params(params: Mapping[str, Any]) -> np.ndarray:
        x = np.stack(np.broadcast_arrays(*(np.asarray(params[name], float) for name in law.params)))
        for group, is_raw in zip(GROUPS, raw, strict=True):
            if not is_raw:
                a, b, gamma = x[group]
                size = a * np.exp(gamma * centre)
                x[group] = gamma * size, b + size, gamma
        return np.moveaxis(x, 0, -1)

    mixed = tuple(name for group in GROUPS for name in names[group.start : group.start + 2])
    return Problem(
        law, objective, columns, target, *coordinate_bounds(law), value, derivatives, basis, to_params, from_params,
        linearise, mixed,
    )  # fmt: skip
