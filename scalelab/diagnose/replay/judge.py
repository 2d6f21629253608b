"""Judge which what-ifs cure a spike, and the cost of each, beside the original run.

A what-if works if, from the window's first step on, no loss is an outlier for longer than a benign spike lasts, and the
last losses are back where the losses before the window were:

- an outlier is a loss whose logarithm is more than max(6 standard deviations, 0.02) above the mean of those before;
- the median of the last 8 is at most one standard deviation above the median of those before.

The numbers are those of the guard (scalelab/train/step/guard.py, incident.py).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.diagnose.replay.what_ifs import ORIGINAL, WhatIf
from scalelab.train.step.guard import LEAST_MARGIN, TINY
from scalelab.train.step.incident import BACK, BENIGN_STEPS

SIGMAS = 6.0
BEFORE, LEAST_BEFORE = 128, 16  # number of losses before the window that form the baseline


class Verdict(NamedTuple):
    """The verdict on a what-if. `works`: as defined above; `peak`, `final`: largest loss, and median of the last ones.

    `outliers`: steps above the threshold; `steps`: to be trained again; `batches`: left out; `cost`: of these steps,
    None without a price.
    """

    name: str
    works: bool
    peak: float
    final: float
    outliers: int
    steps: int
    batches: int
    cost: float | None


class Baseline(NamedTuple):
    """The losses before the window: median and standard deviation of their logarithms, and the threshold."""

    median: float
    std: float
    threshold: float


def measure_baseline(losses: Sequence[float]) -> Baseline | None:
    """Compute the baseline from the last losses before the window; None if fewer than LEAST_BEFORE are finite."""
    finite = [loss for loss in losses[-BEFORE:] if math.isfinite(loss)]
    if len(finite) < LEAST_BEFORE:
        return None
    logs = np.log(np.maximum(finite, TINY))
    std = float(np.std(logs, ddof=1))
    return Baseline(float(np.median(logs)), std, float(np.mean(logs)) + max(SIGMAS * std, LEAST_MARGIN))


def judge(
    what_ifs: Sequence[WhatIf],
    losses: Mapping[str, np.ndarray],
    baseline: Baseline,
    lost_steps: int,
    step_cost: float | None = None,
) -> list[Verdict]:
    """Judge each what-if, the best first: working ones, then by steps and batches lost, then by final loss.

    losses: {name: [n]} from the window's first step on; `lost_steps`: steps from the checkpoint to the window's end,
    which a cure trains again and the original does not; `step_cost`: price of a step.
    """
    verdicts = [_judge_one(one, losses[one.name], baseline, lost_steps, step_cost) for one in what_ifs]
    return sorted(
        verdicts, key=lambda v: (not v.works, v.steps, v.batches, v.final if v.final == v.final else math.inf)
    )


def _judge_one(
    one: WhatIf, losses: np.ndarray, baseline: Baseline, lost_steps: int, step_cost: float | None
) -> Verdict:
    logs = np.log(np.maximum(np.where(np.isfinite(losses), losses, np.inf), TINY))
    outliers = int(np.sum(logs > baseline.threshold))
    final = float(np.median(logs[-BACK:]))
    works = outliers <= BENIGN_STEPS and final <= baseline.median + baseline.std
    steps = 0 if one.name == ORIGINAL.name else lost_steps
    cost = None if step_cost is None else steps * step_cost
    return Verdict(
        one.name, works, float(np.exp(logs.max())), float(np.exp(final)), outliers, steps, len(one.skip), cost
    )
