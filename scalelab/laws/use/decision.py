"""How to spend a budget by a fitted law, with intervals: N, D, D/N, the loss, and the compute wasted by error.

Legend: R resamples, S sizes tried.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.law import chinchilla_optimum, forms
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.law import Law
from scalelab.laws.solve.optimum import FitError, Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust.discrepancy import Discrepancy
from scalelab.laws.trust.uncertainty import Bootstrap, central_interval, predict_run

SIZES = 400  # grid points of log N for laws without a closed form
CLOSER = np.linspace(-1.5, 1.5, 100)  # a finer grid about the lowest of these, in their steps
BELOW = (-10.0, 1.0, 60)  # grid of log N about the best size of a larger budget: from, to, points
NEAR, NEAR_SIZES = 30.0, 81  # the same about the best size of the law alone, where each law has a budget of its own
SPAN = 1e4  # the grid spans this factor around sqrt(C / k) on both sides: D/N from 1e-8 to 1e8


class Interval(NamedTuple):
    """A point estimate and its interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Decision:
    """How to spend C = k N D FLOPs, with intervals; `loss` is that of one run at the point estimate of N and D.

    `waste`: the share of C that the point estimate wastes if a resampled law is the true one; its `value` is the mean,
    and the worst (1 - level) / 2 of them exceed `high`. Resamples whose law has no best size count in N and D (as 0 or
    infinite), not in the waste.
    """

    C: float
    k: float
    N: Interval
    D: Interval
    tokens_per_param: Interval
    loss: Interval
    waste: Interval
    level: float

    def to_json(self) -> dict[str, Any]:
        """The values by name, and `intervals` by the same names."""
        each = {name: getattr(self, name) for name in ("N", "D", "tokens_per_param", "loss", "waste")}
        intervals = {name: [interval.low, interval.high] for name, interval in each.items()}
        values = {name: interval.value for name, interval in each.items()}
        return {"C": self.C, "k": self.k, **values, "intervals": intervals, "level": self.level}


def optimal_size(
    law: Law, params: Mapping[str, Any], C: float | np.ndarray, k: float, held: Mapping[str, float]
) -> np.ndarray:
    """The N [R] of least loss where C = k N D, for parameters [R] and one C or [R]; 0 or inf at the edge of the search.

    Chinchilla's law has a closed form. Any other law of N and D is minimised over a grid, then over a finer one about
    its lowest point, with a parabola there: the slope of `data_constrained` has a kink where N and D are best without
    repetition.
    """
    arrays = {name: np.atleast_1d(np.asarray(value, float)) for name, value in params.items()}
    if law.function is forms.chinchilla:
        return chinchilla_optimum.optimal_allocation(chinchilla_optimum.ChinchillaParams(**arrays), C, k).N
    C = np.asarray(C, float).reshape(-1, 1)
    columns = {name: value[:, None] for name, value in arrays.items()}

    def lowest(log_n: np.ndarray) -> np.ndarray:
        loss = losses_at_budget(law, columns, np.exp(log_n), C, k, held)
        return _parabola_minimum(np.broadcast_to(log_n, loss.shape), loss)

    coarse = lowest(0.5 * np.log(C / k) + np.linspace(-np.log(SPAN), np.log(SPAN), SIZES))
    inner = np.isfinite(coarse)
    step = 2 * np.log(SPAN) / (SIZES - 1)
    fine = lowest(np.where(inner, coarse, 0.0)[:, None] + step * CLOSER)
    return np.exp(np.where(inner & np.isfinite(fine), fine, coarse))


def _parabola_minimum(log_n: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Where each row is lowest [R], by a parabola through the lowest of evenly spaced log_n [R, S] and its neighbours.

    -inf or inf if the lowest is the first or the last.
    """
    last = loss.shape[1] - 1
    at = np.where(np.isfinite(loss), loss, np.inf).argmin(axis=1)
    middle = np.clip(at, 1, last - 1)
    left, here, right = (np.take_along_axis(loss, (middle + i)[:, None], axis=1)[:, 0] for i in (-1, 0, 1))
    bend = left - 2 * here + right
    shift = np.where(bend > 0, 0.5 * (left - right) / np.where(bend > 0, bend, 1.0), 0.0)
    place = np.take_along_axis(log_n, middle[:, None], axis=1)[:, 0] + shift * (log_n[:, 1] - log_n[:, 0])
    return np.select([at == 0, at == last], [-np.inf, np.inf], place)


def losses_at_budget(
    law: Law,
    params: Mapping[str, np.ndarray],
    N: np.ndarray,
    C: float | np.ndarray,
    k: float,
    held: Mapping[str, float],
) -> np.ndarray:
    """Losses of the law at size N and D = C / (k N), other columns held."""
    return law(split_columns(N, C, k, held), params)


def split_columns(N: np.ndarray, C: float | np.ndarray, k: float, held: Mapping[str, float]) -> dict[str, Any]:
    """All columns of a run of size N and D = C / (k N), others held."""
    return {**held, "N": N, "D": C / (k * N), "C": C + 0 * N, "M": C / (k * N * N)}


def decide_allocation(
    problem: Problem,
    best: Optimum,
    boot: Bootstrap,
    C: float,
    k: float = FLOPS_PER_PARAM_TOKEN,
    level: float = 0.9,
    held: Mapping[str, float] = {},
) -> Decision:
    """Choose the best N and D for C = k N D FLOPs, with intervals from the resamples, the loss there, and the waste.

    `held` fixes the law's other columns (unique tokens, say). BadInput for a law without N and D or a column neither
    known nor held, FitError if the law or every resample has no interior optimum.
    """
    law = problem.law
    if not (np.isfinite(C) and C > 0):
        raise BadInput(f"C = {C:g}: a budget is a positive number of FLOPs")
    if "M" not in law.columns and not {"N", "D"} <= set(law.columns):
        raise BadInput(f"law {law.name!r} has no N and D to split a budget between")
    check_held_columns(law, held)
    point = float(optimal_size(law, best.params, C, k, held)[0])
    if not (np.isfinite(point) and point > 0):
        raise FitError(
            f"the law has no compute-optimal size at {C:.3g} FLOPs: its loss falls to the edge of what is tried"
        )
    spread = sizes_with_misfit(law, boot.params, boot.misfit, C, k, held)
    tokens = C / (k * point)
    loss = predict_run(problem, best, boot, {**held, "N": point, "D": tokens, "C": C, "M": tokens / point}, level)
    sound = np.isfinite(spread) & (spread > 0)
    if not sound.any():
        raise FitError(f"no resample has a compute-optimal size at {C:.3g} FLOPs: the runs don't determine one")
    draws = {name: values[sound] for name, values in boot.params.items()}
    misfit = boot.misfit.select(np.flatnonzero(sound)) if boot.misfit else None
    wasted = waste_with_misfit(law, draws, misfit, point, spread[sound], C, k, held)
    with np.errstate(divide="ignore"):
        tokens_spread, ratio_spread = C / (k * spread), C / (k * spread**2)
    return Decision(
        C=C,
        k=k,
        N=_interval_about(point, spread, level),
        D=_interval_about(tokens, tokens_spread, level),
        tokens_per_param=_interval_about(tokens / point, ratio_spread, level),
        loss=Interval(loss.loss, loss.low, loss.high),
        waste=Interval(float(np.mean(wasted)), *central_interval(wasted, level)),
        level=level,
    )


def _interval_about(value: float, draws: np.ndarray, level: float) -> Interval:
    """The central interval of draws, wide enough to hold the value, where the law misses on one side."""
    low, high = central_interval(draws[~np.isnan(draws)], level)
    return Interval(value, min(low, value), max(high, value))


def sizes_with_misfit(
    law: Law,
    draws: Mapping[str, np.ndarray],
    misfit: Discrepancy | None,
    C: float,
    k: float,
    held: Mapping[str, float],
) -> np.ndarray:
    """The best size [R] of each resampled law times its misfit; as of the law alone where that has no best size."""
    spread = optimal_size(law, draws, C, k, held)
    sound = np.isfinite(spread) & (spread > 0)
    if misfit is None or not sound.any():
        return spread
    log_n = np.median(np.log(spread[sound])) + np.linspace(-np.log(SPAN), np.log(SPAN), SIZES)
    params = {name: values[:, None] for name, values in draws.items()}
    loss = losses_at_budget(law, params, np.exp(log_n), C, k, held)
    loss = misfit.correct(loss, misfit.at(split_columns(np.exp(log_n), C, k, held)))
    sizes = np.exp(_parabola_minimum(np.broadcast_to(log_n, loss.shape), loss))
    return np.where(sound & ~np.isnan(sizes), sizes, spread)


def each_size_with_misfit(
    law: Law, draws: Mapping[str, np.ndarray], misfit: Discrepancy, C: np.ndarray, k: float, held: Mapping[str, float]
) -> np.ndarray:
    """As `sizes_with_misfit`, each law at a budget of its own, C [R], near the best size of the law alone."""
    spread = optimal_size(law, draws, C, k, held)
    sound = np.isfinite(spread) & (spread > 0) & np.isfinite(C)
    log_n = np.log(np.where(sound, spread, 1.0))[:, None] + np.linspace(-np.log(NEAR), np.log(NEAR), NEAR_SIZES)
    params = {name: values[:, None] for name, values in draws.items()}
    columns = split_columns(np.exp(log_n), np.where(sound, C, 1.0)[:, None], k, held)
    loss = misfit.correct(law(columns, params), misfit.beside(columns))
    sizes = np.exp(_parabola_minimum(log_n, loss))
    return np.where(sound & ~np.isnan(sizes), sizes, spread)


def waste_with_misfit(
    law: Law,
    draws: Mapping[str, np.ndarray],
    misfit: Discrepancy | None,
    point: float,
    spread: np.ndarray,
    C: float,
    k: float,
    held: Mapping[str, float],
) -> np.ndarray:
    """`wasted_share` [R] by each resampled law times its misfit, whose best sizes are `spread` [R].

    The misfit's gap in loss is made up along the law's own optimum.
    """
    if misfit is None:
        return wasted_share(law, draws, point, spread, C, k, held)
    best = optimal_size(law, draws, C, k, held)
    chosen, lowest = (
        misfit.correct(losses_at_budget(law, draws, N, C, k, held), misfit.along(split_columns(N, C, k, held)))
        for N in (np.full_like(best, point), spread)
    )
    reached = losses_at_budget(law, draws, best, C, k, held) * np.maximum(chosen / lowest, 1.0)
    return _share_below(law, draws, reached, best, C, k, held)


def check_held_columns(law: Law, held: Mapping[str, float]) -> None:
    """BadInput if the law has a column that is not held and does not follow from the budget's split."""
    if missing := [name for name in law.columns if name not in {"N", "D", "C", "M", *held}]:
        values = ",".join(f"{name}=VALUE" for name in missing)
        raise BadInput(
            f"law {law.name!r} also needs {', '.join(missing)} to be held at a value to split a budget: "
            f"--target-values={values}"
        )


def wasted_share(
    law: Law,
    params: Mapping[str, np.ndarray],
    chosen: float,
    best: np.ndarray,
    C: float,
    k: float,
    held: Mapping[str, float] = {},
) -> np.ndarray:
    """The share [R] of C that size `chosen` wastes if laws `params` [R] are true, whose best sizes are `best` [R].

    It is 1 - C'/C, where the best split of C' reaches the loss of the chosen split of C ("deadweight compute",
    arXiv 2603.22339). C' is found by bisection along each law's own best loss.
    """
    reached = losses_at_budget(law, params, np.full_like(best, chosen), C, k, held)
    return _share_below(law, params, reached, best, C, k, held)


def _share_below(
    law: Law,
    params: Mapping[str, np.ndarray],
    reached: np.ndarray,
    best: np.ndarray,
    C: float,
    k: float,
    held: Mapping[str, float],
) -> np.ndarray:
    """1 - C'/C [R], where the best split of C' by each law reaches the loss `reached` [R]; `best` [R]: that of C."""
    low, high = np.full_like(best, -14.0), np.zeros_like(best)  # log(C' / C)
    for _ in range(40):
        middle = 0.5 * (low + high)
        sizes = _best_size_each(law, params, C * np.exp(middle), best, k, held)
        enough = losses_at_budget(law, params, sizes, C * np.exp(middle), k, held) <= reached
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return 1.0 - np.exp(high)


def _best_size_each(
    law: Law, params: Mapping[str, np.ndarray], C: np.ndarray, near: np.ndarray, k: float, held: Mapping[str, float]
) -> np.ndarray:
    """Best size of each law at its own budget C [R]: closed form, else searched below `near` (for a larger budget)."""
    if law.function is forms.chinchilla:
        return chinchilla_optimum.optimal_allocation(chinchilla_optimum.ChinchillaParams(**params), C, k).N
    log_n = np.log(near)[:, None] + np.linspace(*BELOW)
    arrays = {name: np.asarray(value)[:, None] for name, value in params.items()}
    lowest = _parabola_minimum(log_n, losses_at_budget(law, arrays, np.exp(log_n), C[:, None], k, held))
    return np.exp(np.clip(lowest, log_n[:, 0], log_n[:, -1]))
