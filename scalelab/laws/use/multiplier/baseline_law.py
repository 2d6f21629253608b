"""Many fits of L = E + A C^-alpha at once: [B, R] losses at R budgets, a scan of alpha, the rest in closed form.

For a given alpha, L is linear in E and A. Residuals are relative to the loss, whose errors are. E is not below 0.
Where N and D vary each on its own, a surface E + A N^-alpha + B D^-beta gives that law at the best N of each budget.
"""

import dataclasses
import math

import numpy as np
from scipy import special

from scalelab.laws.use.multiplier.cells import Pair, Surface

SCAN = np.geomspace(0.01, 3.0, 160)  # values of alpha
EXPONENTS = np.geomspace(0.05, 1.5, 24)  # values of a surface's alpha and beta
WINDOW = np.geomspace(1 / 2.5, 2.5, 16)  # draws look for them this near to those that fit the measured losses
FAR_BETTER = 0.001  # p of the test that one floor serves both sides, below which it is asked about
FLOORS_APART = 0.03  # of log E: nearer ones are not asked about
RATIOS_ALIKE = 0.5  # of the largest log ratio of losses: the least one, where another tokenizer is asked about
USUAL_M = 2.0  # nor are multipliers within this factor at every rung
LEAST_NOISE = 1e-4  # relative: that of losses written with four digits
BENDS = 24  # halvings towards the compute at which a bent law has the wanted loss
FLOOR = 1e-6  # of a loss: the least that a law's A, or a loss above E, is


@dataclasses.dataclass(frozen=True, eq=False)
class Laws:
    """E, A and alpha of B laws, each [B]; `C` is counted in `unit` FLOPs, so that A is a loss."""

    E: np.ndarray
    A: np.ndarray
    alpha: np.ndarray
    unit: float

    def log_compute_ratio(self, reached: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """log of the factor on compute that takes a law from loss `reached` to `wanted`, each [B, R].

        The law keeps E and alpha and goes through `reached` exactly: its lack of fit does not enter. A loss at or below
        E would need infinite compute; it counts as a share FLOOR above E.
        """
        gaps = [np.maximum(losses - self.E[:, None], FLOOR * losses) for losses in (reached, wanted)]
        return np.log(gaps[0] / gaps[1]) / self.alpha[:, None]

    def ratio_through(self, x: np.ndarray, reached: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Like `log_compute_ratio`, by the law bent so that it goes through all of `reached` [B, R], at log FLOPs `x`.

        Between rungs the log of its lack of fit is interpolated, beyond them it stays as it is at the last one: where
        the baseline reached the wanted loss itself, its runs tell the compute.
        """
        ratio = self.log_compute_ratio(reached, wanted)
        if len(x) < 2 or not (self.A > 0).all():
            return ratio
        order = np.argsort(x)
        places, gaps = x[order], np.diff(x[order])
        log_unit = math.log(self.unit)
        law = self.E[:, None] + self.A[:, None] * np.exp(-self.alpha[:, None] * (places - log_unit))
        misfit = np.log(reached[:, order] / law)
        own = np.log(reached / (self.E[:, None] + self.A[:, None] * np.exp(-self.alpha[:, None] * (x - log_unit))))
        each = np.arange(len(reached))[:, None]
        for _ in range(BENDS):
            there = np.clip(x + ratio, places[0], places[-1])
            left = np.clip(np.searchsorted(places, there, side="right") - 1, 0, len(gaps) - 1)
            share = (there - places[left]) / gaps[left]
            bent = misfit[each, left] * (1 - share) + misfit[each, left + 1] * share
            ratio = (ratio + self.log_compute_ratio(reached * np.exp(-own), wanted * np.exp(-bent))) / 2
        return ratio


def fit_laws(flops: np.ndarray, losses: np.ndarray, weights: np.ndarray, fix: dict[str, float]) -> Laws:
    """Fit B laws to `losses` [B, R] at `flops` [R]; `weights` [R]: runs behind each; `fix`: E and alpha that are given.

    With E and alpha given one rung is enough, with one of them two, else three.
    """
    unit = float(np.exp(np.log(flops).mean()))
    x = np.log(flops / unit)
    w = weights / losses**2  # [B, R]: squares of relative residuals
    alphas = np.array([fix["alpha"]]) if "alpha" in fix else SCAN
    E, A = _offsets(np.exp(-alphas[:, None] * x), losses, w, fix.get("E"))
    miss = losses[:, None, :] - E[:, :, None] - A[:, :, None] * np.exp(-alphas[:, None] * x)
    best = np.argmin((w[:, None, :] * miss**2).sum(-1), axis=1)
    each = np.arange(len(losses))
    return Laws(E[each, best], A[each, best], alphas[best], unit)


def fit_pair_laws(pair: Pair, ones: np.ndarray, others: np.ndarray, fix: dict[str, float]) -> Laws:
    """Fit B laws to the baseline's losses at the pair's rungs, `ones` [B, R], and `others` [B, K] of `measured_others`.

    Where N and D vary each on its own the law is that of the surface through all cells, and `ones` do not count.
    """
    if pair.surface is not None and "alpha" not in fix:
        return fit_surfaces(pair.surface, others, fix)
    cells = (*pair.baseline, *pair.law_only)
    flops, weights = (np.array([getattr(cell, key) for cell in cells], float) for key in ("flops", "law_runs"))
    return fit_laws(flops, np.concatenate([ones, others], 1), weights, fix)


def measured_others(pair: Pair, fix: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """(losses, runs behind each), [K], that the baseline's law takes beside those of the pair's rungs."""
    if pair.surface is not None and "alpha" not in fix:
        return pair.surface.losses, pair.surface.runs
    cells = pair.law_only
    return np.array([cell.mean for cell in cells]), np.array([cell.law_runs for cell in cells], float)


@dataclasses.dataclass(frozen=True)
class Floors:
    """E of baseline and variant where each has its own, and p of the test that they have one."""

    baseline: float
    variant: float
    p: float


def compare_floors(rungs: np.ndarray, noise: float, df: float) -> Floors | None:
    """Whether a variant's losses have a floor of their own, as those of another tokenizer have; None: no sign of it.

    `rungs` [R, 5]: FLOPs, both sides' mean losses, seeds behind each and the multiplier; `noise`: relative s.d. of a
    pair's difference with `df`. E + A C^-alpha with one alpha, A for each side and one E is tested against two E (F
    test). A multiplier that falls to 1 bends the law the other way (a higher floor for the lower losses). One that
    grows bends it in the same way: another tokenizer also changes losses by one factor at all rungs, which multipliers
    beyond USUAL_M are needed for.
    """
    flops, ones, others, seeds, m = rungs.T
    freedom, ratios = 2 * len(flops) - 5, np.log(others / ones)
    one_way = bool(np.all(ratios > 0) or np.all(ratios < 0))
    alike = one_way and np.abs(ratios).min() >= RATIOS_ALIKE * np.abs(ratios).max()
    if freedom < 1 or not alike or np.all(np.abs(np.log(m)) < math.log(USUAL_M)):
        return None
    side = np.repeat([0.0, 1.0], len(flops))
    y = np.concatenate([ones, others])
    root = np.tile(seeds, 2) ** 0.5 / y
    x = np.tile(np.log(flops) - np.log(flops).mean(), 2)
    costs, floors = [], np.zeros(2)
    for two in (False, True):
        powers = np.exp(-SCAN[:, None] * x)
        columns = [(1 - side) * powers, side * powers, *([1 - side, side] if two else [np.ones_like(side)])]
        X = np.stack([np.broadcast_to(each, powers.shape) for each in columns], 2) * root[:, None]
        solved = np.linalg.pinv(X) @ (y * root)
        cost = ((y * root - np.einsum("gkc,gc->gk", X, solved)) ** 2).sum(1)
        cost = np.where((solved > 0).all(1), cost, np.inf)
        costs.append(float(cost.min()))
        floors = solved[int(np.argmin(cost)), -2:]
    apart = math.log(floors[1] / floors[0]) if math.isfinite(costs[1]) else 0.0
    if abs(apart) < FLOORS_APART or apart * ratios.mean() < 0:
        return None
    variance = max((costs[1] + noise**2 / 2 * df) / (freedom + df), LEAST_NOISE**2)
    better = max(costs[0] - costs[1], 0.0) / variance
    p = float(special.fdtrc(1, freedom + df, better)) if math.isfinite(costs[0]) else 0.0
    return Floors(float(floors[0]), float(floors[1]), p) if p < FAR_BETTER else None


def _offsets(powers: np.ndarray, losses: np.ndarray, w: np.ndarray, E: float | None) -> tuple[np.ndarray, np.ndarray]:
    """E and A, each [B, values of alpha], by weighted least squares; `powers` [values, R] are C^-alpha."""
    total = w.sum(1)[:, None]
    p, y = w @ powers.T, (w * losses).sum(1)[:, None]  # [B, values], [B, 1]
    pp, py = w @ (powers**2).T, (w * losses) @ powers.T
    through_zero = py / pp
    if E is not None:
        return np.full_like(p, E), (py - E * p) / pp
    spread = pp - p**2 / total
    A = (py - p * y / total) / np.where(spread > 0, spread, 1.0)
    free = (y - A * p) / total
    inside = (free >= 0) & (spread > 1e-12 * pp)
    return np.where(inside, free, 0.0), np.where(inside, A, through_zero)


def fit_surfaces(surface: Surface, losses: np.ndarray, fix: dict[str, float]) -> Laws:
    """Fit B surfaces to `losses` [B, K] of the surface's cells: their laws along the best N of each budget.

    C = k N D is least for a loss where alpha A N^-alpha = beta B D^-beta; the loss there falls as
    C^-(alpha beta / (alpha + beta)) (Hoffmann et al. 2022, equation 4).
    """
    measured = _scan_surfaces(surface, surface.losses[None], (EXPONENTS, EXPONENTS), fix)
    near = [float(each[0]) * WINDOW for each in measured[3:]]
    E, A, B, alpha, beta = _scan_surfaces(surface, losses, (near[0], near[1]), fix)
    with np.errstate(divide="ignore", invalid="ignore"):
        G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
        height = A * G**-alpha + B * G**beta
    sizes = [float(np.exp(np.log(values).mean())) for values in (surface.params, surface.tokens)]
    falls = np.where((A > 0) & (B > 0), height, 0.0)
    return Laws(E, falls, alpha * beta / (alpha + beta), surface.factor * sizes[0] * sizes[1])


def _scan_surfaces(
    surface: Surface, losses: np.ndarray, exponents: tuple[np.ndarray, np.ndarray], fix: dict[str, float]
) -> tuple[np.ndarray, ...]:
    """E, A, B, alpha and beta, each [B], by weighted least squares at each pair of exponents; A and B not below 0."""
    grid = np.stack([each.ravel() for each in np.meshgrid(*exponents, indexing="ij")])  # [2, G]
    logs = [np.log(values) - np.log(values).mean() for values in (surface.params, surface.tokens)]
    powers = [np.exp(-exponent[:, None] * x) for exponent, x in zip(grid, logs, strict=True)]  # [G, K]
    root = surface.runs**0.5 / surface.losses
    fits = []
    for E in (fix["E"],) if "E" in fix else (None, 0.0):
        columns = [*powers, *([np.ones_like(powers[0])] if E is None else [])]
        X = np.stack(columns, 2) * root[:, None]  # [G, K, 2 or 3]
        y = ((losses - (E or 0.0)) * root).T  # [K, B]
        solved = np.linalg.pinv(X) @ y  # [G, 2 or 3, B]
        cost = (y**2).sum(0) - np.einsum("gcb,gcb->gb", solved, np.swapaxes(X, 1, 2) @ y)
        floors = solved[:, 2] if E is None else np.full_like(cost, E)
        fits.append((np.where((solved[:, :2] > 0).all(1) & (floors >= 0), cost, np.inf), solved[:, :2], floors))
    cost = np.concatenate([each[0] for each in fits])
    best, draws = np.argmin(cost, axis=0), np.arange(len(losses))
    A, B = np.concatenate([each[1] for each in fits])[best, :, draws].T
    solvable = np.isfinite(cost[best, draws])
    alpha, beta = grid[:, best % grid.shape[1]]
    E_best = np.concatenate([each[2] for each in fits])[best, draws]
    return E_best, np.where(solvable, A, 0.0), np.where(solvable, B, 0.0), alpha, beta
