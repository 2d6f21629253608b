"""Equal tuning of all sides: as many trials at the same rungs, edges widened, laws that carry optima up."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.laws.use.settings.best import BestSettings
from scalelab.sweep import grid
from scalelab.sweep.ablate import carry
from scalelab.sweep.ablate.sides import Side
from scalelab.sweep.ablate.study import LR_KEY, Ablation, Rung, make_run

LR_STEP, OTHER_STEP = 2.0, 3.0  # between neighbouring values: octaves of LR; decay and the like matter less
LR_REACH, OTHER_REACH = 2, 1  # steps to each side of the rule's own value
MOST_WIDENINGS = 4

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


def carry_up(study: Ablation, losses: Mapping[Cell, Losses]) -> dict[str, TunedSide]:
    """{side: its tuned values at every rung}, from the trials of all sides: by a line over the budget for each."""
    rows = {side.name: trial_rows(study, side, losses) for side in study.sides}
    best = carry.fit_sides([row for each in rows.values() for row in each], study.tuned)
    edges = {side.name: _edges(study, side, losses) for side in study.sides}
    return {
        name: settle(name, each, best.get(name), study.tuned, study.rungs, edges[name]) for name, each in rows.items()
    }


def settle(
    name: str,
    rows: list[dict[str, Any]],
    best: BestSettings | None,
    keys: Sequence[str],
    rungs: Sequence[Rung],
    edges: Mapping[float, str],
) -> TunedSide:
    """The tuned values of a side from its `rows` and the optima of its rungs; None: every trial of it diverged.

    `edges`: {flops: why} of rungs whose best trial lies at an end of what was tried.
    """
    if best is None:
        return TunedSide(name, None, {}, {}, rows, [f"every tuning trial of {name} diverged"])
    noise = best.noise.sd if math.isfinite(best.noise.sd) else 0.0
    settings: dict[float, dict[str, tuple[float, float, float]]] = {rung.flops: {} for rung in rungs}
    how, problems = {}, list(edges.values())
    inside = [row for row in rows if row["C"] not in edges]
    for k, key in enumerate(keys):
        chosen, how[key] = carry.carry_line(best, k, key)
        problems += carry.doubtful_values(name, best, k, key, rungs, chosen)
        problems += carry.spoken_against(name, key, inside, noise, chosen)
        for rung in rungs:
            settings[rung.flops][key] = chosen(rung.flops)
    return TunedSide(name, best, settings, how, rows, problems)


def trial_rows(study: Ablation, side: Side, losses: Mapping[Cell, Losses]) -> list[dict[str, Any]]:
    """The tuning trials of a side, a row each: side, C (the rung's budget), loss, point, and the tuned keys' values."""
    return [
        {"side": side.name, "C": rung.flops, "loss": loss, "point": point}
        | {key: config_lib.leaves(tuning_run(study, side, rung, point))[key] for key in study.tuned}
        for rung in study.tuned_rungs
        for point, loss in losses[side.name, rung.flops].items()
    ]


def _edges(study: Ablation, side: Side, losses: Mapping[Cell, Losses]) -> dict[float, str]:
    """{flops: a line} for each rung whose best trial is still at an end after all widening."""
    return {
        rung.flops: f"the best {', '.join(study.tuned)} of {side.name} at {rung.flops:.3g} FLOPs is at an end of what "
        "was tried"
        for rung in study.tuned_rungs
        if point_beyond(study.tuned, losses[side.name, rung.flops]) is not None
    }
