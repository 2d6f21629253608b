"""The schedule of the lowest final loss that a fitted law of curves predicts (Luo et al. 2025, sec. 5).

Warm-up, peak and number of steps are those of the longest fitted run. After the warm-up the LR never rises, as in the
paper. It is linear between K + 1 places, where its share of the peak is searched; places are denser towards the end.
A fitted law is trusted only where runs were: the LR falls neither lower nor faster than one of them. (Free of that, the
law with gamma above 1 wants an LR of zero in the last step, for a loss of minus infinity.)
"""

import dataclasses
import itertools
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from scalelab.laws.curves import spread
from scalelab.laws.curves.curve import LEAST_LR, Curve, make_curve, schedule_columns
from scalelab.laws.curves.fit import FittedCurves, Prediction
from scalelab.laws.law import curve_forms as forms
from scalelab.laws.law.law import Law

PLACES = 40  # where the slope of the LR may change
CROWDING = 1.5  # place k is at 1 - (1 - k/K)^1.5 of what follows the warm-up
CHANGES = 4  # changes of the LR that stand for those of the steps between two places
NAME = "best schedule"
FILE = '''"""{title}

{what}
"""

import jax.numpy as jnp

# Shares of the steps after the warm-up, and of the peak LR there; the LR is linear between them.
PLACES = ({places})
SHARES = ({shares})


def lr(step, h):
    """The LR of a step: a linear warm-up, then a share of the peak."""
    rise = jnp.minimum(1.0, (step + 1.0) / jnp.maximum(h.schedule.warmup_steps, 1.0))
    first = jnp.maximum(h.schedule.warmup_steps - 1.0, 0.0)
    place = (step - first) / jnp.maximum(h.train.steps - 1.0 - first, 1.0)
    return h.optim.peak_lr * rise * jnp.interp(place, jnp.array(PLACES), jnp.array(SHARES))
'''
# Shares of the peak over what follows the warm-up, from which the search starts.
STARTS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda t: 1 - t,
    lambda t: 0.5 * (1 + np.cos(np.pi * t)),
    lambda t: np.minimum(1.0, 10 * (1 - t)),
    lambda t: np.where(t > 0.9, 3 * (1 - t), 1.0),
)


@dataclasses.dataclass(frozen=True, eq=False)
class BestSchedule:
    """A schedule as a `curve` without losses, its `prediction`, and `gains` over the fitted schedules.

    `lowest`, `fastest`: the bounds of the search, the lowest LR and the fastest fall in a step of the fitted runs, as
    shares of the peak. `gains`: {a run of each fitted schedule that is as long: (nats by which it ends higher, low,
    high)}. Intervals are of the law's parameters alone: they don't hold what the law's form gets wrong.
    """

    curve: Curve
    prediction: Prediction
    lowest: float
    fastest: float
    gains: dict[str, tuple[float, float, float]]

    @property
    def knots(self) -> tuple[np.ndarray, np.ndarray]:
        """(places [P], shares of the peak [P]) between which the LR is linear.

        A place is a share of the steps after the warm-up, from 0 at its last step to 1 at the run's last.
        """
        at = _places(self.curve)
        return (at - at[0]) / (at[-1] - at[0]), self.curve.lr[at] / self.curve.lr.max()


def write_schedule(best: BestSchedule, title: str, what: str) -> str:
    """The schedule as a Python file of a function `lr(step, h)`, which `schedule.name=FILE:lr` takes."""
    lists = (", ".join(f"{value:.6g}" for value in values) for values in best.knots)
    places, shares = (
        "\n" + textwrap.fill(each, 116, initial_indent="    ", subsequent_indent="    ") + ",\n" for each in lists
    )
    return FILE.format(title=title, what=what, places=places, shares=shares)


def find_best_schedule(fitted: FittedCurves) -> BestSchedule:
    """Minimise the final loss that the law predicts over schedules whose LR never rises after the warm-up."""
    longest = max(fitted.curves, key=lambda curve: len(curve.lr))
    after = [each.lr[each.warmup :] / each.lr.max() for each in fitted.curves]
    lowest, fastest = min(float(lr.min()) for lr in after), max(float(-np.diff(lr).min()) for lr in after)
    curve = minimise_final_loss(fitted.law, fitted.best.params, longest, lowest, fastest)
    rivals = {rival.schedule: rival for rival in fitted.curves if len(rival.lr) == len(curve.lr)}
    gains = {rival.name: _gain(fitted, rival, curve) for rival in rivals.values()}
    return BestSchedule(curve, fitted.predict(curve), lowest, fastest, gains)


def minimise_final_loss(
    law: Law, params: Mapping[str, float], like: Curve, lowest: float = 0.0, fastest: float = 1.0
) -> Curve:
    """The schedule of lowest final loss by a law with these parameters, with the warm-up, peak and steps of `like`.

    `lowest`, `fastest`: the least LR and the largest fall in a step, as shares of the peak.
    """
    at = _places(like)
    times = (at[1:] - at[0]) / (at[-1] - at[0])
    bounds = [(0.0, min(1.0, fastest * length)) for length in np.diff(at)]
    loss = _final_loss(law, params, like, at)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        slopes = jax.jit(jax.value_and_grad(lambda falls: loss(1 - jnp.cumsum(falls))))

        def value(falls: np.ndarray) -> tuple[float, np.ndarray]:
            found, slope = slopes(jnp.asarray(falls))
            return float(found), np.asarray(slope, float)

        last = [optimize.LinearConstraint(np.ones(len(times)), -np.inf, 1 - lowest)]
        ends = [
            optimize.minimize(
                value,
                np.diff(-start(times), prepend=-1.0),
                jac=True,
                method="SLSQP",
                constraints=last,
                bounds=bounds,
                options={"maxiter": 300, "ftol": 1e-8},
            )
            for start in STARTS
        ]
    best = min(ends, key=lambda end: float(end.fun))
    shares = np.concatenate([[1.0], np.clip(1 - np.cumsum(best.x), lowest, 1.0)])
    fall = like.lr.max() * np.interp(np.arange(at[0], len(like.lr)), at, shares)
    return make_curve(NAME, np.concatenate([like.lr[: at[0]], fall]))


def _places(curve: Curve) -> np.ndarray:
    """Steps [<= K + 1] between which the LR is linear, from the warm-up's last to the schedule's last."""
    shares = 1 - (1 - np.linspace(0, 1, PLACES + 1)) ** CROWDING
    return np.unique(np.round(curve.warmup + shares * (len(curve.lr) - 1 - curve.warmup)).astype(int))


def _final_loss(law: Law, params: Mapping[str, float], like: Curve, at: np.ndarray) -> Callable[[Any], Any]:
    """The law's loss after the last step, as a jax function of the shares [K] of the peak at all places but the first.

    Between two places the LR falls in CHANGES even steps.
    """
    steps, peak = len(like.lr), like.lr.max()
    rises, sum_before = _warmup_columns(law, like)
    edges = np.unique(np.concatenate([np.linspace(a, b, CHANGES + 1) for a, b in itertools.pairwise(at)]))
    starts, ends = edges[:-1] + 1, edges[1:] + 1  # in steps that have been made
    middles = (edges[:-1] + edges[1:]) / 2

    def loss(shares: Any) -> Any:
        levels = jnp.interp(middles, at, jnp.concatenate([jnp.ones(1), shares]))
        lr = jnp.maximum(levels, LEAST_LR) * peak
        after = jnp.cumsum((lr * (ends - starts))[::-1])[::-1]  # the LR's sum from each change to the end
        S1 = like.lr[: at[0] + 1].sum() + after[0]
        columns = {
            "S1": S1[None],
            "drop": _beside(rises["drop"], -jnp.diff(lr, prepend=peak)),
            "age": _beside(rises["age"], steps - starts),
            "area": _beside(S1 - sum_before, after),
            "lr": _beside(rises["lr"], lr),
        }
        return law.function(*(columns[name] for name in law.columns), **params)[0]

    return loss


def _warmup_columns(law: Law, like: Curve) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns [M] of the warm-up's rises at the last step, and the LR's sum before each."""
    flat = np.where(np.arange(len(like.lr)) < like.warmup, like.lr, like.lr.max())
    at_end = np.array([float(len(flat))])
    columns = schedule_columns(make_curve("", flat), at_end, law.name in forms.WARMUP_LAWS)
    rising = columns["drop"][0] < 0
    rises = {name: columns[name][0][rising] for name in ("drop", "age", "area", "lr")}
    return rises, columns["S1"][0] - rises["area"]


def _beside(rises: Any, falls: Any) -> Any:
    return jnp.concatenate([jnp.asarray(rises), jnp.asarray(falls)])[None]


def _gain(fitted: FittedCurves, rival: Curve, best: Curve) -> tuple[float, float, float]:
    """By how many nats a rival schedule ends higher, with the interval of the law's parameters."""
    steps = np.array([float(len(best.lr))])
    ends, samples = [], []
    for curve in (rival, best):
        columns = schedule_columns(curve, steps, fitted.law.name in forms.WARMUP_LAWS)
        ends.append(float(fitted.law(columns, fitted.best.params)[0]))
        samples.append(spread.sampled_losses(fitted.problem, columns, fitted.samples)[:, 0])
    low, high = np.nanpercentile(samples[0] - samples[1], [50 - 50 * fitted.level, 50 + 50 * fitted.level])
    return ends[0] - ends[1], float(low), float(high)
