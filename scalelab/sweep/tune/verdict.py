"""Is the best trial better than the config as it is? Both are trained on fresh seeds, in pairs, before adoption."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy import special

from scalelab.numbers.gaps import judge_pair
from scalelab.numbers.shared_noise import estimate_noise

ENOUGH_FREEDOM = 4  # degrees of freedom of the noise: with fewer, more seeds help most


@dataclasses.dataclass(frozen=True)
class Gain:
    """By how much losses of one setting lie below another's, over the same fresh seeds.

    `mean` in nats; `interval` at `level`, None with one seed, as sweeps judge it (`numbers.gaps`), from a standard
    `error` with `freedom` degrees of freedom; `scatter`: standard deviation of the better setting's losses over seeds,
    None with one.
    """

    mean: float
    interval: tuple[float, float] | None
    scatter: float | None
    seeds: int
    level: float = 0.9
    error: float | None = None
    freedom: int = 0


def compare_losses(
    before: Sequence[float], after: Sequence[float], level: float = 0.9, others: Sequence[Sequence[float]] = ()
) -> Gain:
    """The gain of `after` over `before`, each [seeds] in the same order; inf where a run diverged.

    `others`: losses of other settings over the same seeds, which tell the noise too. With none, or none that is finite,
    this is Student's paired t.
    """
    scatter = statistics.stdev(after) if len(after) > 1 and all(map(math.isfinite, after)) else None
    gains = [a - b for a, b in zip(before, after, strict=True) if math.isfinite(a) or math.isfinite(b)]
    if not gains:
        return Gain(0.0, None, scatter, len(after), level)
    mean = statistics.fmean(gains)
    if len(gains) < 2 or not math.isfinite(mean):
        return Gain(mean, None, scatter, len(after), level)
    ended = [i for i, pair in enumerate(zip(before, after, strict=True)) if all(map(math.isfinite, pair))]
    table = np.array([before, after, *others], float)[:, ended]
    noise = estimate_noise(table[np.isfinite(table).all(axis=1)])
    assert noise  # two settings over two seeds or more
    pair = judge_pair(noise, 0, 1, level)
    return Gain(mean, (pair.low, pair.high), scatter, len(after), level, pair.error, pair.freedom)


def judge_gain(gain: Gain) -> str:
    """The verdict in words; begins with adopt or keep."""
    if gain.mean == math.inf:
        return "adopt: the config as it is diverges"
    if gain.mean == -math.inf:
        return "keep the config as it is: the best trial diverges on another seed"
    if gain.interval is None:
        return f"keep the config as it is: a gain of {gain.mean:.4f} nats on one seed has no interval; --seeds=3"
    low, high = gain.interval
    size = f"{gain.mean:.4f} nats ({gain.level:.0%}: {low:.4f} to {high:.4f}) over {gain.seeds} fresh seeds"
    if low > 0:
        return f"adopt: better by {size}"
    if high < 0:
        return f"keep the config as it is: it is better by {-gain.mean:.4f} nats over {gain.seeds} fresh seeds"
    return f"keep the config as it is: the gain is not told apart from noise, {size}{_seeds_text(gain)}"


def _seeds_text(gain: Gain) -> str:
    """What more seeds would show, where few seeds leave a wide interval."""
    if gain.error is None or gain.freedom >= ENOUGH_FREEDOM:
        return ""
    seeds = max(2 * gain.seeds, 4)
    freedom = gain.freedom * (seeds - 1) / (gain.seeds - 1)
    shown = special.stdtrit(freedom, (1 + gain.level) / 2) * gain.error * (gain.seeds / seeds) ** 0.5
    return f"; {gain.seeds} seeds hardly tell: --seeds={seeds} would show a gain from about {shown:.2g}"
