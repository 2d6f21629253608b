"""The noise of single runs in several settings over seeds, each setting's variance drawn towards a common one.

A loss is its setting's mean + an effect of its seed that all settings share (first weights, batches: a block) + noise
of the setting's own variance. The variances follow a scaled inverse chi-squared law of `d` degrees of freedom: with two
or three seeds a setting's own is hardly known, so it is drawn towards the common one, as far as the table shows them
alike (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3(1)). `d` and the scale are unknown too: a Gibbs sampler integrates
over them. Legend: K settings, S seeds, F seeds whose effects are free (all but the first), B chains.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

MOST_CHAINS, LEAST_CHAINS, CELLS = 1024, 16, 2**15  # chains times settings: the more settings, the fewer chains
MOST_EFFECTS = 16  # of seeds that are sampled: with more seeds they are known well enough
STEPS, BURN_IN = 16, 8  # of the sampler
ALIKENESS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 64.0])  # values of `d`, each as likely before; 64: almost equal
MOST_TESTS, LEAST_TESTS, TEST_CELLS = 2000, 200, 2**19  # tables with equal variances; their cells together
MOST_CELLS = 2**22  # of LEAST_TESTS tables: larger ones are not tested


class Noise(NamedTuple):
    """Means [K] of settings and the noise around them.

    `variances` [K] of one run, `draws` [B, K] of them, `freedom`: residual degrees, `sd`: of one run, all settings
    together. `blocks`: effects of seeds are set aside. `equal`: the p-value of equal variances, None where unknown.
    `common`: one variance was taken for all settings.
    `counts` [K] of runs; `shares` [K, F] of each free seed in a setting's mean, `covariance` [F, F] of their effects.
    """

    means: np.ndarray
    variances: np.ndarray
    draws: np.ndarray
    freedom: int
    sd: float
    blocks: bool
    common: bool
    equal: float | None
    counts: np.ndarray
    shares: np.ndarray
    covariance: np.ndarray


class _Table(NamedTuple):
    """Squared sums about means [K], their derivatives by the free effects [K, F], `centring` [K, F, F] of these."""

    squares: np.ndarray
    slopes: np.ndarray
    centring: np.ndarray
    dof: np.ndarray
    freedom: int


def estimate_noise(losses: np.ndarray, blocks: bool = True) -> Noise | None:
    """Estimate the noise in losses [K, S], nan where a setting lacks a seed; None if nothing was repeated.

    Without `blocks`, or where shared seeds don't connect all settings, the effect of a seed counts as noise.
    """
    there = np.isfinite(losses)
    blocks = blocks and _is_connected(there)
    if not blocks:  # columns mean nothing: the losses of each setting go to the left
        order = np.argsort(~there, axis=1, kind="stable")[:, : there.sum(1).max()]
        losses, there = (np.take_along_axis(each, order, axis=1) for each in (losses, there))
    centre, counts = losses[there].mean(), there.sum(1)
    y = np.where(there, losses - centre, 0.0)
    free = np.flatnonzero(there.any(0))[1:] if blocks else np.array([], int)
    table = _make_table(y, there, counts, free)
    if table.freedom < 1:
        return None
    random = np.random.default_rng(0)
    sd = float(np.sqrt(max(_solve(table, np.ones((1, len(y))))[2][0], 0.0) / table.freedom))
    common = sd == 0 or len(y) == 1 or (blocks and len(y) == 2)
    if common:  # of two settings only the sum of their variances is seen
        draws = sd**2 * table.freedom / random.chisquare(table.freedom, (MOST_CHAINS, 1)) * np.ones(len(y))
        variances = np.full(len(y), sd**2)
    else:
        variances, draws = _sample_variances(table, sd, random)
    precision, effects, _ = _solve(table, 1 / variances[None] if sd else np.ones((1, len(y))))
    shares = there[:, free] / counts[:, None]
    means = centre + y.sum(1) / counts - shares @ effects[0]
    covariance = np.linalg.inv(precision[0]) * (1 if sd else 0)
    equal = _test_equal(y, there, counts, free, random) if sd else None
    return Noise(means, variances, draws, table.freedom, sd, blocks, common, equal, counts, shares, covariance)


def select_settings(noise: Noise, places: Sequence[int]) -> Noise:
    """The noise of some settings, by their places: what they share stays that of all."""
    at = list(places)
    means, variances, draws = noise.means[at], noise.variances[at], noise.draws[:, at]
    return noise._replace(
        means=means, variances=variances, draws=draws, counts=noise.counts[at], shares=noise.shares[at]
    )


def _is_connected(there: np.ndarray) -> bool:
    """Whether each setting can be reached from any other over seeds that both have."""
    reached: np.ndarray = np.zeros(len(there), bool)
    reached[0], before = True, 0
    while before < reached.sum():
        before = reached.sum()
        reached = np.asarray(there[:, np.asarray(there[reached].any(0))].any(1))
    return bool(reached.all())


def _make_table(y: np.ndarray, there: np.ndarray, counts: np.ndarray, free: np.ndarray) -> _Table:
    part = there[:, free].astype(float)
    centring = part[:, :, None] * np.eye(len(free)) - part[:, :, None] * part[:, None, :] / counts[:, None, None]
    centred = np.where(there, y - (y.sum(1) / counts)[:, None], 0.0)
    freedom = int(there.sum() - len(y) - len(free))
    return _Table((centred**2).sum(1), centred[:, free], centring, counts - 1, freedom)


def _solve(table: _Table, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(precision [B, F, F] and effects [B, F] of the free seeds, weighted squares left [B]) by weights [B, K]."""
    precision = np.tensordot(weights, table.centring, 1)
    right = weights @ table.slopes
    effects = np.linalg.solve(precision, right[..., None])[..., 0]
    return precision, effects, weights @ table.squares - (right * effects).sum(1)


def _sample_variances(table: _Table, sd: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(variances [K]: harmonic means scaled to `sd` together; draws [B, K]) after STEPS from the pooled variance."""
    n_settings = len(table.dof)
    chains = int(np.clip(CELLS // n_settings, LEAST_CHAINS, MOST_CHAINS))
    table = _fix_effects(table) if table.slopes.shape[1] > MOST_EFFECTS else table
    d = random.choice(ALIKENESS, (chains, 1))
    scale, draws = np.full((chains, 1), sd**2), np.full((chains, n_settings), sd**2)
    inverse = np.zeros(n_settings)
    for step in range(STEPS):
        precision, effects, squares = _solve(table, 1 / draws)
        common = (squares / random.chisquare(table.freedom, chains))[:, None]  # all variances move together
        scale = scale * common
        normals = random.standard_normal(effects.shape)[..., None]
        root = np.linalg.cholesky(precision).swapaxes(1, 2)
        effects = effects + np.sqrt(common) * np.linalg.solve(root, normals)[..., 0]
        squares_each = _squares_left(table, effects)
        d = _draw_alikeness(table.dof, squares_each, scale, random)
        total = d * scale + squares_each
        if step >= BURN_IN:
            inverse += ((d + table.dof) / total).mean(0) / (STEPS - BURN_IN)
        draws = total / random.chisquare(d + table.dof)
        scale = random.gamma(n_settings * d / 2) / (d / 2 * (1 / draws).sum(1, keepdims=True))
    return sd**2 / inverse / np.average(1 / inverse, weights=table.dof), draws


def _squares_left(table: _Table, effects: np.ndarray) -> np.ndarray:
    """Squares [B, K] of each setting about its mean, given the effects [B, F] of seeds."""
    pairs = (effects[:, :, None] * effects[:, None, :]).reshape(len(effects), -1)
    flat = table.centring.reshape(len(table.dof), -1)
    return np.maximum(table.squares - 2 * effects @ table.slopes.T + pairs @ flat.T, 0.0)


def _fix_effects(table: _Table) -> _Table:
    """The table without seeds: their effects are taken by least squares, and squares scaled by what these took away."""
    effects = _solve(table, np.ones((1, len(table.dof))))[1]
    dof = int(table.dof.sum())
    squares = _squares_left(table, effects)[0] * dof / table.freedom
    return _Table(squares, table.slopes[:, :0], table.centring[:, :0, :0], table.dof, dof)


def _draw_alikeness(dof: np.ndarray, squares: np.ndarray, scale: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw `d` [B, 1] given squares [B, K] of single settings and the common scale [B, 1], variances integrated."""
    logs = []
    for d in ALIKENESS:
        constant = (special.gammaln((d + dof) / 2) - special.gammaln(d / 2)).sum()
        common = len(dof) * d / 2 * np.log(d * scale[:, 0])
        logs.append(constant + common - np.log(d * scale + squares) @ ((d + dof) / 2))
    weights = np.exp(np.array(logs) - np.max(logs, axis=0))
    steps = np.cumsum(weights, axis=0)
    return ALIKENESS[(random.random(steps.shape[1]) * steps[-1] > steps).sum(0)][:, None]


def _test_equal(
    y: np.ndarray, there: np.ndarray, counts: np.ndarray, free: np.ndarray, random: np.random.Generator
) -> float | None:
    """The p-value of equal variances: Cochran's share of the noisiest setting, beside normal tables of this design."""
    several = (counts > 1).sum()
    if several < 2 or (len(free) and len(y) < 3) or LEAST_TESTS * y.size > MOST_CELLS:
        return None
    number = int(np.clip(TEST_CELLS // y.size, LEAST_TESTS, MOST_TESTS))
    normals = np.where(there, random.standard_normal((number, *y.shape)), 0.0)
    shares = [_largest_share(each, there, counts, free) for each in (y[None], normals)]
    return float((1 + (shares[1] >= shares[0]).sum()) / (1 + number))


def _largest_share(y: np.ndarray, there: np.ndarray, counts: np.ndarray, free: np.ndarray) -> np.ndarray:
    """The largest setting's share of squared residuals by degree of freedom, in tables [B, K, S]."""
    centred = np.where(there, y - (y.sum(2) / counts)[:, :, None], 0.0)
    if len(free):
        full = np.eye(y.shape[2]) * there[:, :, None] - there[:, :, None] * there[:, None, :] / counts[:, None, None]
        precision = full.sum(0)[np.ix_(free, free)]
        effects = np.zeros((len(y), y.shape[2]))
        effects[:, free] = np.linalg.solve(precision, centred[:, :, free].sum(1).T).T
        centred = centred - np.einsum("kst,bt->bks", full, effects)
    squares = (centred**2).sum(2)[:, counts > 1] / (counts[counts > 1] - 1)
    return np.asarray(squares.max(1) / squares.sum(1))
