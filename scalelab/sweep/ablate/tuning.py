"""Equal tuning of all sides: as many trials at the same rungs, edges widened, laws that carry optima up."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.laws.use.settings.best import BestSettings, SettingGroup, fit_best_settings
from scalelab.sweep import grid
from scalelab.sweep.ablate.sides import Side
from scalelab.sweep.ablate.study import LR_KEY, Ablation, Rung, make_run

LR_STEP, OTHER_STEP = 2.0, 3.0  # between neighbouring values: octaves of LR; decay and the like matter less
LR_REACH, OTHER_REACH = 2, 1  # steps to each side of the rule's own value
MOST_WIDENINGS = 4
SCATTER, EXPONENT_SD = 0.1, 0.25  # of optima about their line; of exponents of compute about 0 (see `carry_line`)
MOST_LOST = 0.01  # share of the loss that a badly known value may cost
LEAST_COST = 1e-9  # at twice the best value; what costs less is rounding of losses that do not bend

Point = tuple[float, ...]  # a factor for each tuned key, on the rule's own value
Losses = dict[Point, float]  # inf: the trial diverged
Cell = tuple[str, float]  # (side, budget in FLOPs)


def step_of(key: str) -> float:
    """The factor between neighbouring values of a key."""
    return LR_STEP if key == LR_KEY else OTHER_STEP


def first_points(keys: Sequence[str]) -> list[Point]:
    """The grid that every side and rung begins with."""
    reach = {key: LR_REACH if key == LR_KEY else OTHER_REACH for key in keys}
    axes = [grid.sweep(key, [step_of(key) ** i for i in range(-reach[key], reach[key] + 1)]) for key in keys]
    return [tuple(point[key] for key in keys) for point in grid.product(axes)]


def best_point(losses: Losses) -> Point:
    """The point of the lowest loss; where all diverged, the one with the smallest values."""
    return min(losses, key=lambda point: (losses[point], point))


def point_beyond(keys: Sequence[str], losses: Losses) -> Point | None:
    """The next point outwards if the best lies at an end of what was tried, else None."""
    best = best_point(losses)
    lost = math.isinf(losses[best])
    for k, key in enumerate(keys):
        tried = [point[k] for point in losses]
        if best[k] == min(tried) or lost:
            return _moved(best, k, min(tried) / step_of(key))
        if best[k] == max(tried):
            return _moved(best, k, max(tried) * step_of(key))
    return None


def point_between(keys: Sequence[str], losses: Losses) -> Point:
    """A point halfway from the best to its better neighbour in LR: the trial of a side that needs no wider range."""
    best, k = best_point(losses), list(keys).index(LR_KEY)
    line = sorted(point[k] for point in losses if _moved(point, k, best[k]) == best)
    near = [value for value in (_below(line, best[k]), _above(line, best[k])) if value is not None]
    towards = min(near, key=lambda value: losses[_moved(best, k, value)])
    return _moved(best, k, (best[k] * towards) ** 0.5)


def widen_alike(keys: Sequence[str], losses: Mapping[Cell, Losses]) -> dict[Cell, Point]:
    """One more point for every side of each rung where a side's best lies at an end; {} where none does."""
    beyond = {cell: point_beyond(keys, tried) for cell, tried in losses.items()}
    rungs = {flops for (_, flops), point in beyond.items() if point is not None}
    return {
        cell: outwards if (outwards := beyond[cell]) is not None else point_between(keys, losses[cell])
        for cell in losses
        if cell[1] in rungs
    }


def _moved(point: Point, k: int, value: float) -> Point:
    return (*point[:k], value, *point[k + 1 :])


def _below(line: Sequence[float], value: float) -> float | None:
    return max((each for each in line if each < value), default=None)


def _above(line: Sequence[float], value: float) -> float | None:
    return min((each for each in line if each > value), default=None)


def name_trial(side: Side, rung: Rung, keys: Sequence[str], point: Point) -> str:
    """The folder name of a tuning trial."""
    parts = [f"{key.split('.')[-1]}x{factor:.4g}" for key, factor in zip(keys, point, strict=True)]
    return "-".join([f"tune-{side.name}-{rung.flops:.3g}", *parts])


def tuning_run(study: Ablation, side: Side, rung: Rung, point: Point) -> ConfigDict:
    """The trial of a side at a rung: the tuned keys at the rule's own values times the point's factors."""
    own = config_lib.leaves(make_run(study, side, rung, 0))
    values = {key: own[key] * factor for key, factor in zip(study.tuned, point, strict=True)}
    return make_run(study, side, rung, 0, values, role="check")


def tune_sides(study: Ablation, train: Callable[[Mapping[str, ConfigDict]], Mapping[str, float]]) -> dict[Cell, Losses]:
    """Train the grid of every side at every tuned rung, then widen. `train` returns {trial: loss}.

    The losses of all trials, as many for each side.
    """
    cells = [(side, rung) for rung in reversed(study.tuned_rungs) for side in study.sides]
    wanted: dict[Cell, list[Point]] = {(s.name, r.flops): first_points(study.tuned) for s, r in cells}
    losses: dict[Cell, Losses] = {cell: {} for cell in wanted}
    for _ in range(1 + MOST_WIDENINGS):
        trials, places = {}, {}
        for side, rung in cells:
            for point in wanted.get((side.name, rung.flops), []):
                name = name_trial(side, rung, study.tuned, point)
                trials[name] = tuning_run(study, side, rung, point)
                places[name] = (side.name, rung.flops), point
        ended = train(trials)
        for name, (cell, point) in places.items():
            losses[cell][point] = ended[name]
        wanted = {cell: [point] for cell, point in widen_alike(study.tuned, losses).items()}
        if not wanted:
            break
    return losses


@dataclasses.dataclass(frozen=True, eq=False)
class TunedSide:
    """What tuning found for a side: `best` (optima of each rung, laws), the `settings` {flops: {key: (value, low,
    high)}} of all rungs, `rows` of trials, and `problems`, for which there can be no verdict."""

    name: str
    best: BestSettings | None
    settings: dict[float, dict[str, tuple[float, float, float]]]
    how: dict[str, str]
    rows: list[dict[str, Any]]
    problems: list[str]


def carry_up(study: Ablation, side: Side, losses: Mapping[Cell, Losses]) -> TunedSide:
    """The tuned values of a side at every rung, from its trials: by a line over the budget."""
    rows: list[dict[str, Any]] = [
        {"side": side.name, "C": rung.flops, "loss": loss, "point": point}
        | {key: config_lib.leaves(tuning_run(study, side, rung, point))[key] for key in study.tuned}
        for rung in study.tuned_rungs
        for point, loss in losses[side.name, rung.flops].items()
    ]
    ended = [row for row in rows if math.isfinite(row["loss"])]
    if not ended:
        return TunedSide(side.name, None, {}, {}, rows, [f"every tuning trial of {side.name} diverged"])
    best = fit_best_settings(
        {key: [row[key] for row in ended] for key in (*study.tuned, "C", "loss")}, study.tuned, ["C"]
    )
    settings: dict[float, dict[str, tuple[float, float, float]]] = {rung.flops: {} for rung in study.rungs}
    how, problems = {}, _edges(study, side, losses)
    for k, key in enumerate(study.tuned):
        chosen, how[key] = carry_line(best, k, key)
        problems += doubtful_values(side.name, best, k, key, study.rungs, chosen)
        for rung in study.rungs:
            settings[rung.flops][key] = chosen(rung.flops)
    return TunedSide(side.name, best, settings, how, rows, problems)


def carry_line(best: BestSettings, k: int, key: str) -> tuple[Callable[[float], tuple[float, float, float]], str]:
    """({flops: (value, low, high)} as a function, how it was found) of the k-th key: a line through the rungs' optima.

    log value = a + b log C, each optimum with its own error and a scatter of 10 %, and b drawn towards 0 (sd 0.25): two
    or three optima alone tell no exponent, and a mean ignores what they do tell. A rung without an optimum is left out;
    if there is none at all, it is the mean of the best trials, and the interval is all that was tried.
    """
    used = [g for g in best.groups if g.optimum.status == "used" and g.optimum.standard_errors is not None]
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

    def at(flops: float) -> tuple[float, float, float]:
        place = np.array([1.0, math.log(flops) - middle])
        half = 1.645 * math.sqrt(place @ covariance @ place)
        value = float(place @ fitted)
        return math.exp(value), math.exp(value - half), math.exp(value + half)

    spread = 1.645 * math.sqrt(covariance[1, 1])
    words = f"90% of the exponent {fitted[1] - spread:.2g} to {fitted[1] + spread:.2g}"
    return at, f"{key} ~ C^{fitted[1]:.3g} through {len(used)} of {len(best.groups)} rungs, {words}"


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


def group_optimum(group: SettingGroup, k: int) -> float:
    """The log of a rung's best value of the k-th key: its parabola's lowest point, kept inside what was tried."""
    optimum = group.optimum
    if optimum.at is None:
        return float(optimum.tried[k].mean())
    return float(np.clip(optimum.at[k], *optimum.tried[k]))


def _edges(study: Ablation, side: Side, losses: Mapping[Cell, Losses]) -> list[str]:
    """A line for each rung whose best trial is still at an end after all widening."""
    return [
        f"the best {', '.join(study.tuned)} of {side.name} at {rung.flops:.3g} FLOPs is at an end of what was tried"
        for rung in study.tuned_rungs
        if point_beyond(study.tuned, losses[side.name, rung.flops]) is not None
    ]
