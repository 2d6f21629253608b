"""Is the best trial better than the config as it is? Both are trained on fresh seeds, in pairs, before adoption."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from scipy import stats


@dataclasses.dataclass(frozen=True)
class Gain:
    """By how much losses of one setting lie below another's, over the same fresh seeds.

    `mean` in nats; `interval` at `level` by Student's t, None with one seed; `scatter`: standard deviation of the
    better setting's losses over seeds, None with one.
    """

    mean: float
    interval: tuple[float, float] | None
    scatter: float | None
    seeds: int
    level: float = 0.9


def compare_losses(before: Sequence[float], after: Sequence[float], level: float = 0.9) -> Gain:
    """The gain of `after` over `before`, each [seeds] in the same order; inf where a run diverged."""
    scatter = statistics.stdev(after) if len(after) > 1 and all(map(math.isfinite, after)) else None
    gains = [a - b for a, b in zip(before, after, strict=True) if math.isfinite(a) or math.isfinite(b)]
    if not gains:
        return Gain(0.0, None, scatter, len(after), level)
    mean = statistics.fmean(gains)
    if len(gains) < 2 or not math.isfinite(mean):
        return Gain(mean, None, scatter, len(after), level)
    half = float(stats.t.ppf((1 + level) / 2, len(gains) - 1)) * statistics.stdev(gains) / len(gains) ** 0.5
    return Gain(mean, (mean - half, mean + half), scatter, len(after), level)


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
    return f"keep the config as it is: the gain is not told apart from noise, {size}"
