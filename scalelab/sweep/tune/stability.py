"""What tuning learns of stability: the LR that diverges without warm-up, the warm-up that bears more, and clipping."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LR_KEY, WARMUP_KEY, CLIP_KEY = "optim.peak_lr", "schedule.warmup_steps", "optim.clip_norm"
PROBES = 8  # learning rates without warm-up
WARMUP_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)  # of a run's steps
BEYOND_UNSTABLE = 10.0  # warm-up should bear this times the unstable LR (Godbole et al. 2023)
CLIP_QUANTILE = 0.9  # of gradient norms before clipping (Godbole et al. 2023)
MOST_CLIPPED = 0.5  # share of steps; above it, clipping acts as a lower LR


@dataclasses.dataclass(frozen=True)
class Unstable:
    """The least LR that diverged without warm-up, None if none did; `stable`: the largest below it that did not."""

    least: float | None
    stable: float | None


def probe_rates(low: float, high: float) -> list[float]:
    """Learning rates from `low` to `high`, evenly in logs."""
    return np.geomspace(low, high, PROBES).tolist()


def find_unstable(losses: Mapping[float, float]) -> Unstable:
    """The unstable LR of {LR: loss, inf if it diverged}."""
    lost = [rate for rate, loss in losses.items() if not math.isfinite(loss)]
    least = min(lost, default=None)
    return Unstable(least, max((rate for rate in losses if least is None or rate < least), default=None))


def warmup_ladder(steps: int, own: int) -> list[int]:
    """Warm-ups to try for a run of so many steps: the config's own, and longer ones."""
    return sorted({own, *(max(1, round(share * steps)) for share in WARMUP_SHARES if share * steps > own)})


def warmed_rate(unstable: float, high: float) -> float:
    """The LR that warm-up should bear: 10 times the unstable one, but not above the tuned range."""
    return min(BEYOND_UNSTABLE * unstable, high)


def shortest_warmup(losses: Mapping[int, float]) -> int | None:
    """The least of {warm-up steps: loss} that did not diverge; None if all did."""
    return min((steps for steps, loss in losses.items() if math.isfinite(loss)), default=None)


@dataclasses.dataclass(frozen=True)
class Clipping:
    """Gradient norms of a run after its warm-up: their 90th percentile, and the share of steps above the clip norm."""

    quantile: float
    share_clipped: float | None  # None: the run does not clip

    @property
    def too_often(self) -> bool:
        """Whether clipping acts as a lower learning rate."""
        return self.share_clipped is not None and self.share_clipped > MOST_CLIPPED


def read_clipping(metrics: Sequence[Mapping[str, Any]], warmup: int, clip_norm: float) -> Clipping | None:
    """Clipping of a run from its logged steps; None where none has a gradient norm. `clip_norm` 0: no clipping."""
    lines = [each for each in metrics if each.get("grad_norm") is not None and each["step"] > warmup]
    if not lines:
        return None
    norms = [each["grad_norm"] for each in lines]
    quantile = float(np.quantile(norms, CLIP_QUANTILE))
    if not clip_norm:
        return Clipping(quantile, None)
    return Clipping(quantile, statistics.fmean(norm > clip_norm for norm in norms))
