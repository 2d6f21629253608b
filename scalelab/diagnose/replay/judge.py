"""Judge which what-ifs cure a spike, how far above the best each ends, and its cost, beside the original run.

A what-if works if, from the window's first step on, no loss is an outlier for longer than a benign spike lasts, and the
last losses are back where the losses before the window were:

- an outlier is a loss whose logarithm is more than max(6 standard deviations, 0.02) above the mean of those before;
- the median of the last 8 is at most one standard deviation above the median of those before.

The numbers are those of the guard (scalelab/train/step/guard.py, incident.py).

Those that work are compared at equal steps: the mean of the last quarter of the losses, above the best one's. All pairs
are judged at once (Bonferroni, 5 % together) by the noise of such a mean. With several orders of the batches after the
window, each arm trained on each order, the noise is what the orders change beyond arm and order (randomized blocks).
With one order it is the scatter of 8-step means about a line through the losses before the window, as if arms shared no
batch: that of other batches, not of all that another seed changes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from scalelab.diagnose.replay.what_ifs import ORIGINAL, WhatIf
from scalelab.train.step.guard import LEAST_MARGIN, TINY
from scalelab.train.step.incident import BACK, BENIGN_STEPS

SIGMAS = 6.0
BEFORE, LEAST_BEFORE = 128, 16  # number of losses before the window that form the baseline
LEAST_BLOCKS = 4  # means of BACK losses before the window that tell their scatter
END_SHARE = 4  # arms are compared by the mean of the last 1 / END_SHARE of the losses
LEVEL = 0.05  # of all comparisons together
PEAK_SIGMAS = 2.0  # a peak is so far above the largest loss of the curve without the window's batches


class Verdict(NamedTuple):
    """The verdict on a what-if. `works`: as defined above; `peak`, `final`: largest loss, and median of the last ones.

    `outliers`: steps above the threshold; `steps`: to be trained again; `batches`: left out; `cost`: of these steps,
    None without a price. Of those that work: `nats` above the best at equal steps, with `error` (None: nothing tells
    it), and `is_tied` where it can't be told from the best.
    """

    name: str
    works: bool
    peak: float
    final: float
    outliers: int
    steps: int
    batches: int
    cost: float | None
    nats: float | None = None
    error: float | None = None
    is_tied: bool = False


class Baseline(NamedTuple):
    """The losses before the window: median and standard deviation of their logarithms, and the threshold.

    `noise`: standard deviation of a mean of BACK losses about their line, in nats, from `blocks` of them.
    """

    median: float
    std: float
    threshold: float
    noise: float | None = None
    blocks: int = 0


def measure_baseline(losses: Sequence[float]) -> Baseline | None:
    """Compute the baseline from the last losses before the window; None if fewer than LEAST_BEFORE are finite."""
    finite = [loss for loss in losses[-BEFORE:] if math.isfinite(loss)]
    if len(finite) < LEAST_BEFORE:
        return None
    logs = np.log(np.maximum(finite, TINY))
    std = float(np.std(logs, ddof=1))
    return Baseline(
        float(np.median(logs)), std, float(np.mean(logs)) + max(SIGMAS * std, LEAST_MARGIN), *_block_noise(finite)
    )


def _block_noise(losses: Sequence[float]) -> tuple[float | None, int]:
    """(the scatter of means of BACK losses about a line, how many there are); None of fewer than LEAST_BLOCKS."""
    blocks = len(losses) // BACK
    if blocks < LEAST_BLOCKS:
        return None, blocks
    means = np.reshape(losses[-blocks * BACK :], (blocks, BACK)).mean(1)
    x = np.arange(blocks) - (blocks - 1) / 2
    residuals = means - means.mean() - x * (x @ means) / (x @ x)
    return float(np.sqrt(residuals @ residuals / (blocks - 2))), blocks


def judge(
    what_ifs: Sequence[WhatIf],
    losses: Mapping[str, np.ndarray],
    baseline: Baseline,
    lost_steps: int,
    step_cost: float | None = None,
) -> list[Verdict]:
    """Judge each what-if, the best first: working ones, of these the ones that can't be told from the best, then by
    steps and batches lost, then by final loss.

    losses: {name: [n], or [orders, n] where all that work have several} from the window's first step on; `lost_steps`:
    steps from the checkpoint to the window's end, which a cure trains again and the original does not; `step_cost`:
    price of a step.
    """
    curves = {name: np.atleast_2d(each) for name, each in losses.items()}
    verdicts = [_judge_one(one, curves[one.name], baseline, lost_steps, step_cost) for one in what_ifs]
    verdicts = compare_ends(verdicts, curves, baseline)
    return sorted(
        verdicts,
        key=lambda v: (not v.works, not v.is_tied, v.steps, v.batches, v.final if v.final == v.final else math.inf),
    )


def _judge_one(
    one: WhatIf, losses: np.ndarray, baseline: Baseline, lost_steps: int, step_cost: float | None
) -> Verdict:
    logs = _safe_logs(losses)
    outliers, finals = np.sum(logs > baseline.threshold, axis=1), np.median(logs[:, -BACK:], axis=1)
    works = bool(np.all((outliers <= BENIGN_STEPS) & (finals <= baseline.median + baseline.std)))
    steps = 0 if one.name == ORIGINAL.name else lost_steps
    cost = None if step_cost is None else steps * step_cost
    peak, final = float(np.exp(logs.max())), float(np.exp(finals.mean()))
    return Verdict(one.name, works, peak, final, int(outliers.max()), steps, len(one.skip), cost)


def _safe_logs(losses: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(np.where(np.isfinite(losses), losses, np.inf), TINY)))


def compare_ends(verdicts: Sequence[Verdict], curves: Mapping[str, np.ndarray], baseline: Baseline) -> list[Verdict]:
    """Add to the verdicts of those that work how far above the best they end, and whether that can be told."""
    ends = {v.name: end_means(curves[v.name]) for v in verdicts if v.works}
    if not ends:
        return list(verdicts)
    best = min(ends, key=lambda name: float(ends[name].mean()))
    error = _pair_error(np.stack(list(ends.values())), baseline, _end_length(curves[best]))
    compared = []
    for verdict in verdicts:
        if verdict.works:
            nats = float(ends[verdict.name].mean() - ends[best].mean())
            own = 0.0 if verdict.name == best else error
            verdict = verdict._replace(nats=nats, error=own, is_tied=own is None or nats <= own)
        compared.append(verdict)
    return compared


def _end_length(losses: np.ndarray) -> int:
    return min(losses.shape[1], max(BACK, losses.shape[1] // END_SHARE))


def end_means(losses: np.ndarray) -> np.ndarray:
    """Means of the last losses [orders, n] by which arms are compared, [orders]."""
    return np.asarray(losses[:, -_end_length(losses) :].mean(axis=1))


def _pair_error(ends: np.ndarray, baseline: Baseline, length: int) -> float | None:
    """Half the interval of the difference of two of `ends` [arms, orders], all pairs together; None: nothing tells."""
    arms, orders = ends.shape
    if arms < 2:
        return 0.0
    if orders > 1:
        residuals = ends - ends.mean(1, keepdims=True) - ends.mean(0, keepdims=True) + ends.mean()
        freedom = (arms - 1) * (orders - 1)
        std = float(np.sqrt(np.sum(residuals**2) / freedom * 2 / orders))
    elif baseline.noise is None:
        return None
    else:
        freedom, std = baseline.blocks - 2, baseline.noise * math.sqrt(2 * BACK / length)
    pairs = arms * (arms - 1) / 2
    return float(special.stdtrit(freedom, 1 - LEVEL / (2 * pairs))) * std


def is_cured(losses: np.ndarray, clean: np.ndarray, near: int, baseline: Baseline) -> bool:
    """Whether a curve [n] has no peak in its first `near` steps, and works if `clean` does.

    `clean` [n] is the curve without any batch of the window; a peak lies far above its largest loss.
    """
    limit = float(_safe_logs(clean[:near]).max()) + max(PEAK_SIGMAS * baseline.std, LEAST_MARGIN)
    has_peak = float(_safe_logs(losses[:near]).max()) > min(limit, baseline.threshold)
    works = [_judge_one(ORIGINAL, np.atleast_2d(each), baseline, 0, None).works for each in (losses, clean)]
    return not has_peak and works[0] >= works[1]
