"""Errors of losses measured over seeds, and draws of all rungs' mean losses: by Student's t, not a normal law.

Errors are of log losses, equal at all rungs. Their variance is drawn as well (nu s^2 / chi^2 of nu degrees of freedom),
so that a mean's draws follow Student's t exactly.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from scalelab.laws.use.multiplier.cells import Cell, Pair


@dataclasses.dataclass(frozen=True)
class Noise:
    """Relative standard deviations of a run's loss on each side, and of a pair's difference, with degrees of freedom.

    `difference_df` 0: no rung has two seeds on both sides, so there is no interval. `correlation`: between the sides'
    losses of a seed; None if they are not paired. `saved`: the share of the difference's variance that pairing takes
    off.
    """

    baseline: float
    variant: float
    difference: float
    baseline_df: int
    variant_df: int
    difference_df: int
    correlation: float | None
    saved: float | None
    shared: float  # correlation of the baseline's error and that of the difference


def measure_noise(pair: Pair) -> Noise:
    """Pool the scatter of seeds over the rungs of a pair."""
    base, base_df = _pooled([_deviations(cell) for cell in pair.baseline])
    other, other_df = _pooled([_deviations(cell) for cell in pair.variant])
    if not pair.paired:
        df = base_df + other_df if base_df and other_df else 0
        return Noise(base, other, float(np.hypot(base, other)), base_df, other_df, df, None, None, 0.0)
    ones = np.concatenate([_deviations(cell) for cell in pair.baseline])
    others = np.concatenate([_deviations(cell, list(one.losses)) for cell, one in _zip(pair)])
    difference = float(np.sqrt(((ones - others) ** 2).sum() / base_df)) if base_df else 0.0
    product = base * other * base_df
    correlation = float((ones * others).sum() / product) if product > 0 else None
    apart = base**2 + other**2
    saved = 1 - difference**2 / apart if apart > 0 else None
    shared = float((ones * (ones - others)).sum() / (base * difference * base_df)) if base * difference > 0 else 0.0
    return Noise(base, other, difference, base_df, other_df, base_df, correlation, saved, float(np.clip(shared, -1, 1)))


def draw_means(pair: Pair, noise: Noise, draws: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws of both sides' mean losses, each [draws, R]. They scatter about the measured ones by the seeds' noise."""
    ones, others = (np.array([cell.mean for cell in side]) for side in (pair.baseline, pair.variant))
    n, m = (np.array([cell.runs for cell in side]) for side in (pair.baseline, pair.variant))
    z, w = rng.standard_normal((2, draws, len(ones)))
    one = z * _drawn_sd(noise.baseline, noise.baseline_df, draws, rng) / n**0.5
    if pair.paired:
        mixed = noise.shared * z + (1 - noise.shared**2) ** 0.5 * w
        gap = mixed * _drawn_sd(noise.difference, noise.difference_df, draws, rng) / n**0.5
        return ones * np.exp(one), others * np.exp(one - gap)
    other = w * _drawn_sd(noise.variant, noise.variant_df, draws, rng) / m**0.5
    return ones * np.exp(one), others * np.exp(other)


def _drawn_sd(sd: float, df: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    return sd * (df / rng.chisquare(df, (draws, 1))) ** 0.5 if df else np.zeros((draws, 1))


def _deviations(cell: Cell, order: Sequence[str] | None = None) -> np.ndarray:
    """Log losses less their mean, in the order of these seeds."""
    logs = np.log([cell.losses[label] for label in (order if order is not None else cell.losses)])
    return logs - logs.mean() if len(logs) else logs


def _pooled(deviations: Sequence[np.ndarray]) -> tuple[float, int]:
    """(standard deviation, degrees of freedom)."""
    df = sum(max(0, len(each) - 1) for each in deviations)
    return (float(np.sqrt(sum((each**2).sum() for each in deviations) / df)) if df else 0.0), df


def _zip(pair: Pair) -> list[tuple[Cell, Cell]]:
    return list(zip(pair.variant, pair.baseline, strict=True))
