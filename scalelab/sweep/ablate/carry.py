"""The tuned values of a side at every rung: a line through the rungs' optima, and what its values may cost."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.laws.use.settings.best import BestSettings, SettingGroup, fit_best_settings
from scalelab.sweep.ablate.study import Rung

SCATTER, EXPONENT_SD = 0.1, 0.25  # of optima about their line; of exponents of compute about 0 (see `carry_line`)
MOST_LOST = 0.01  # share of the loss that a badly known value, or one that its own trials speak against, may cost
LEAST_COST = 1e-9  # at twice the best value; what costs less is rounding of losses that do not bend
# How many standard errors a chosen value's loss must lie above the best trial's before it counts: then 2 % of studies
# whose values all cost less than MOST_LOST are accused, 3 % at a noise of 1.5 %, 7 % at 2 %
# (checks/results/carrying.md).
SURE_MISS = 2.2

Rows = Sequence[Mapping[str, Any]]  # a tuning trial each: side, C, loss (inf: diverged), and a value for each tuned key
Value = tuple[float, float, float]  # the value of a key with its 90 % interval


@dataclasses.dataclass(frozen=True)
class Miss:
    """What a chosen value costs at a rung by the trials there: the share of the loss `above` the best trial's, `error`
    the standard error of that by the noise of runs, and `best`, the value of the best trial."""

    above: float
    error: float
    best: float


def fit_sides(rows: Rows, keys: Sequence[str]) -> dict[str, BestSettings]:
    """{side: the optima of its rungs} from the trials that ended; a side of which none ended is missing.

    All sides are fitted together: how noisy a run is, how far a parabola holds and how lopsided the losses are is known
    better from all of their rungs than from the few of one side.
    """
    ended = [row for row in rows if math.isfinite(row["loss"])]
    names = list(dict.fromkeys(row["side"] for row in ended))
    if not ended:
        return {}
    table = {key: [row[key] for row in ended] for key in (*keys, "C", "loss")}
    table["side"] = [1 + names.index(row["side"]) for row in ended]
    best = fit_best_settings(table, keys, ["side", "C"], {key: ["C"] for key in keys})
    return {
        name: dataclasses.replace(best, groups=tuple(g for g in best.groups if g.values["side"] == 1 + i))
        for i, name in enumerate(names)
    }


def carry_line(best: BestSettings, k: int, key: str) -> tuple[Callable[[float], Value], str]:
    """({flops: (value, low, high)} as a function, how it was found) of the k-th key: a line through the rungs' optima.

    log value = a + b log C, each optimum with its own error and a scatter of 10 %, and b drawn towards 0 (sd 0.25): two
    or three optima alone tell no exponent, and a mean ignores what they do tell. A rung whose losses hardly bend counts
    with its wide error; one whose losses do not bend upwards is left out. If there is none at all, it is the mean of
    the best trials, and the interval is all that was tried.
    """
    used = [g for g in best.groups if g.optimum.at is not None and g.optimum.standard_errors is not None]
    if not used:
        logs = np.array([group_optimum(group, k) for group in best.groups])
        tried = np.array([group.optimum.tried[k] for group in best.groups])
        ends = math.exp(logs.mean()), math.exp(tried[:, 0].min()), math.exp(tried[:, 1].max())
        return (lambda flops: ends), f"{key}: the mean of the best trials; no rung has a lowest point"
    x = np.log([group.values["C"] for group in used])
    y = np.array([group_optimum(group, k) for group in used])
    errors = np.array([float(each[k]) for g in used if (each := g.optimum.standard_errors) is not None])
    weights, middle = 1 / (errors**2 + SCATTER**2), float(x.mean())
    design = np.column_stack([np.ones(len(x)), x - middle])
    covariance = np.linalg.inv(design.T @ (design * weights[:, None]) + np.diag([0.0, EXPONENT_SD**-2]))
    fitted = covariance @ (design.T @ (weights * y))
    missed = float((weights * (y - design @ fitted) ** 2).sum()) / max(1, len(x) - 1)
    covariance = covariance * max(1.0, missed)

    def at(flops: float) -> Value:
        place = np.array([1.0, math.log(flops) - middle])
        half = 1.645 * math.sqrt(place @ covariance @ place)
        value = float(place @ fitted)
        return math.exp(value), math.exp(value - half), math.exp(value + half)

    spread = 1.645 * math.sqrt(covariance[1, 1])
    words = f"90% of the exponent {fitted[1] - spread:.2g} to {fitted[1] + spread:.2g}"
    flat = sum(group.optimum.status == "flat" for group in used)
    hardly = f" ({flat} that hardly bend{'s' * (flat == 1)})" if flat else ""
    return at, f"{key} ~ C^{fitted[1]:.3g} through {len(used)} of {len(best.groups)} rungs{hardly}, {words}"


def group_optimum(group: SettingGroup, k: int) -> float:
    """The log of a rung's best value of the k-th key: its parabola's lowest point, kept inside what was tried."""
    optimum = group.optimum
    if optimum.at is None:
        return float(optimum.tried[k].mean())
    return float(np.clip(optimum.at[k], *optimum.tried[k]))


def doubtful_values(side: str, best: BestSettings, k: int, key: str, rungs: Sequence[Rung], at: Callable) -> list[str]:
    """A line for each rung at which the value may miss its optimum by so much that it costs more than MOST_LOST."""
    costs = [best.cost_of_factor(group, key) for group in best.groups]
    curved = [cost for cost in costs if cost is not None and cost > LEAST_COST]
    if not curved:
        return [f"the losses of {side} do not bend over {key} at any rung"]
    lines = []
    for rung in rungs:
        _, low, high = at(rung.flops)
        octaves = math.log2(high / low) / (2 * 1.645)
        if (lost := max(curved) * octaves**2) > MOST_LOST:
            lines.append(
                f"{key} of {side} at {rung.flops:.3g} FLOPs is known to lie in {low:.3g} to {high:.3g} only: it may "
                f"cost {lost:.1%} of the loss"
            )
    return lines


def measure_miss(rows: Rows, key: str, value: float, noise: float) -> Miss:
    """What a value of a key costs at the rung of these trials, some of which ended: their losses between its neighbours
    (a parabola through the three nearest values), against the best of them.

    Of several trials at a value, which differ in other keys, the best counts; one that diverged counts as the worst
    that ended. `noise`: of a run's log loss.
    """
    ended = [row["loss"] for row in rows if math.isfinite(row["loss"])]
    worst = max(ended)
    lowest: dict[float, float] = {}
    for row in rows:
        loss = row["loss"] if math.isfinite(row["loss"]) else worst
        lowest[row[key]] = min(loss, lowest.get(row[key], math.inf))
    values = sorted(lowest)
    logs = np.log([lowest[each] for each in values])
    first = int(logs.argmin())
    weights = _neighbour_weights(np.log(values), math.log(value))
    weights[first] -= 1
    return Miss(math.expm1(float(weights @ logs)), noise * float(np.linalg.norm(weights)), values[first])


def _neighbour_weights(x: np.ndarray, at: float) -> np.ndarray:
    """Weights of the values at the ascending x whose sum is the value `at`: Lagrange's, of the three nearest to it."""
    near = np.sort(np.argsort(np.abs(x - at), kind="stable")[:3])
    weights = np.zeros(len(x))
    for i in near:
        weights[i] = math.prod((at - x[j]) / (x[i] - x[j]) for j in near if j != i)
    return weights


def spoken_against(side: str, key: str, rows: Rows, noise: float, at: Callable[[float], Value]) -> list[str]:
    """A line for each tuned rung whose own trials show that the chosen value costs more than MOST_LOST, beyond noise.

    `rows`: the trials of the side.
    """
    lines = []
    for flops in sorted({row["C"] for row in rows}):
        there = [row for row in rows if row["C"] == flops]
        if not any(math.isfinite(row["loss"]) for row in there):
            lines.append(f"every tuning trial of {side} at {flops:.3g} FLOPs diverged")
            continue
        value = at(flops)[0]
        miss = measure_miss(there, key, value, noise)
        if miss.above > MOST_LOST and miss.above > SURE_MISS * miss.error:
            lines.append(
                f"{key} of {side} at {flops:.3g} FLOPs is {value:.3g}, where its trials' losses are {miss.above:.1%} "
                f"above the best trial's, at {miss.best:.3g}, and noise makes {SURE_MISS * miss.error:.1%} at most"
            )
    return lines
