"""A run's loss curve with the LR of every step, thinned for a fit, and the sums over the LR that the laws need.

The warm-up is what comes before the LR first reaches its maximum. It counts in S1, and rows in it are not fitted. Its
rises count as changes for `multi_power`, whose published parameters reproduce the published curves only so, and not for
`annealing`, whose E is then the limit at a constant LR. Legend: T steps, P rows, K changes of the LR.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput

MOST_ROWS = 50  # of a run: more are averaged in windows; rows of a run are dependent, so more add little
MOST_CHANGES = 96  # of a run's LR, beside those that the rows separate: more are merged
WARMUP_CHANGES = 16  # of the warm-up
LEAST_LR = 1e-9  # of the peak: an LR of zero has no power
Columns = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A run's `lr` [T] of every step, and its `loss` [P] after `steps` [P]; both empty for a schedule alone.

    `counts` [P]: how many losses a row is the mean of.
    """

    name: str
    lr: np.ndarray
    steps: np.ndarray
    loss: np.ndarray
    counts: np.ndarray

    @property
    def warmup(self) -> int:
        """Steps before the LR first reaches its maximum."""
        return int(np.argmax(self.lr))

    @property
    def schedule(self) -> bytes:
        """A key that runs of one schedule share: their LRs to six digits of the peak."""
        return np.round(self.lr / self.lr.max(), 6).tobytes() + f"{self.lr.max():.5g}".encode()


def make_curve(name: str, lr: ArrayLike, steps: ArrayLike = (), loss: ArrayLike = ()) -> Curve:
    """A checked curve. BadInput for an LR that is negative, not finite or zero throughout, or for unordered steps."""
    rates, at, losses = (np.asarray(values, float) for values in (lr, steps, loss))
    if not rates.size or not np.isfinite(rates).all() or (rates < 0).any() or not rates.max() > 0:
        raise BadInput(f"{name}: the LR of each step must be finite, at least 0 and somewhere above")
    if len(at) != len(losses) or (np.diff(at) <= 0).any():
        raise BadInput(f"{name}: steps must rise, with one loss each")
    if len(at) and at[-1] > len(rates):
        raise BadInput(f"{name}: a loss stands at step {at[-1]:g}, and the schedule has {len(rates)} steps")
    if not np.isfinite(losses).all() or (losses <= 0).any():
        raise BadInput(f"{name}: losses must be finite and positive: a run that diverged can't be fitted")
    return Curve(name, rates, at, losses, np.ones(len(at)))


def thin_curve(curve: Curve, most: int = MOST_ROWS) -> Curve:
    """The rows after the warm-up, at most `most`: means over windows that are even in the square root of the step.

    So windows are narrow where the loss falls fast, and still many in a decay at the end.
    """
    after = curve.steps > curve.warmup
    steps, loss = curve.steps[after], curve.loss[after]
    labels = np.arange(len(steps))
    if len(steps) > most:
        root = np.sqrt(steps)
        labels = np.minimum(((root - root[0]) / (root[-1] - root[0]) * most).astype(int), most - 1)
        labels = np.unique(labels, return_inverse=True)[1]
    counts = np.bincount(labels) if len(labels) else np.empty(0)
    at, mean = (np.bincount(labels, values) / counts if len(labels) else values for values in (steps, loss))
    return Curve(curve.name, curve.lr, at, mean, counts)


def even_steps(curve: Curve, most: int = MOST_ROWS) -> np.ndarray:
    """Steps [P] after the warm-up up to the schedule's end, even in their square root."""
    first, last = curve.warmup + 1, len(curve.lr)
    return np.unique(np.round(np.linspace(np.sqrt(first), np.sqrt(last), most) ** 2))


def schedule_columns(curve: Curve, steps: np.ndarray, warmup: bool, changes: int = MOST_CHANGES) -> Columns:
    """The columns of `forms` at rows after `steps` [P] (a fraction of a step counts as that), and `step` itself.

    `warmup`: whether its rises are changes too.

    Changes of one sign between two rows, or between two of `changes` even places, are merged at their mean place: the
    sums are smooth there, so that what is neglected is of second order.
    """
    area_before = np.concatenate([[0.0], np.cumsum(curve.lr)])
    drops = -np.diff(curve.lr, prepend=0.0)
    drops[: 0 if warmup else curve.warmup + 1] = 0.0
    places = np.flatnonzero(drops)
    even = [np.linspace(0, end, n + 1) for end, n in ((len(curve.lr), changes), (curve.warmup + 1, WARMUP_CHANGES))]
    edges = np.unique(np.concatenate([np.ceil(steps), *even]))
    groups = 2 * np.searchsorted(edges, places, side="right") + (drops[places] < 0)
    _, labels = np.unique(groups, return_inverse=True)
    drop = np.bincount(labels, drops[places]) if len(places) else np.zeros(1)
    logs = np.log(np.maximum(curve.lr, LEAST_LR * curve.lr.max()))

    def merged(values: np.ndarray) -> np.ndarray:
        weighted = np.bincount(labels, np.abs(drops[places]) * values[places])
        return weighted / np.abs(drop) if len(places) else np.zeros(1)

    at, before, log_lr = (merged(values) for values in (np.arange(len(curve.lr)), area_before[:-1], logs))
    S1 = np.interp(steps, np.arange(len(area_before)), area_before)
    age = np.maximum(steps[:, None] - at, 0.0)
    area = np.maximum(S1[:, None] - before, 0.0)
    return {
        "step": np.asarray(steps, float), "S1": S1, "drop": np.where(age > 0, drop, 0.0), "age": age,
        "area": area, "lr": np.broadcast_to(np.exp(log_lr), age.shape),
    }  # fmt: skip


def stack_columns(each: Sequence[Columns]) -> Columns:
    """The columns of several curves as one table; curves with fewer changes get changes of zero."""
    widest = max(columns["drop"].shape[1] for columns in each)

    def padded(name: str, values: np.ndarray) -> np.ndarray:
        if values.ndim == 1:
            return values
        return np.pad(values, ((0, 0), (0, widest - values.shape[1])), constant_values=float(name == "lr"))

    return {name: np.concatenate([padded(name, columns[name]) for columns in each]) for name in each[0]}
