"""Plan of a whole sweep: FLOPs, memory, hours and cost of every run, totals, packing, and the expected fit.

A config file lists its runs by `sweep(h)`; a study by `plan(arguments) -> PlannedStudy`, from the function that trains
it.
"""

import dataclasses
import heapq
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Static
from scalelab.config.files import run_user_file
from scalelab.errors import BadInput
from scalelab.parallel import mesh
from scalelab.plan.budget import lawbook
from scalelab.plan.budget.book import LawBook
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.memory import Memory, step_memory
from scalelab.plan.run.training import estimate_training
from scalelab.plan.step.efficiency import Efficiency, machine_platform
from scalelab.plan.step.time import StepTime, step_time
from scalelab.plan.sweep.forecast import Forecast, forecast_intervals
from scalelab.sweep import forks, trials

NOISE = 0.005  # default relative scatter of a run's loss; Besiroglu et al.'s 240 runs: 0.0075 rms
AHEAD = 10.0  # default budget of the expected intervals, over the largest run's


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedStudy:
    """The runs of a study, `{name: resolved config}` with `log.role` set in each, and the budget that it aims at.

    `expects`, `noise`: the expected law and relative noise, from an earlier study of its kind. `shows`: what a study
    that fits no law is expected to show, in place of a law's intervals.
    """

    runs: dict[str, ConfigDict]
    target_flops: float | None = None
    expects: LawBook | None = None
    noise: float | None = None
    shows: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run on `devices` devices. `n`: total parameters; `flops`: exact; wall-clock hours; `cost`: if priced."""

    name: str
    role: str
    pack: str
    n: int
    d: int
    flops: float
    steps: int
    devices: int
    memory_bytes: int
    fits: bool
    hours: float
    hours_low: float
    hours_high: float
    cost: float | None


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """All runs and their sums. `packs`: runs that share a compiled program, one after the other or at once.

    `wall_hours`: packs in their order, each on the first free devices, without compiling, reading data and checkpoints.
    `largest_bytes`: memory of the largest run; `too_large`: runs that don't fit. `forecast`: expected intervals of a
    fit, or None with the reason in `notes`.
    """

    source: str
    machine: str
    runs: tuple[PlannedRun, ...]
    packs: dict[str, tuple[str, ...]]
    tokens: int
    flops: float
    device_hours: float
    device_hours_low: float
    device_hours_high: float
    wall_hours: float
    cost: float | None
    largest_bytes: int
    capacity_bytes: int
    too_large: tuple[str, ...]
    forecast: Forecast | None
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]


def load_planned_study(path: str | pathlib.Path, arguments: Sequence[str] = ()) -> PlannedStudy:
    """The runs of a study or of a config's sweep, with the arguments of its own command. BadInput if it lists none."""
    path = pathlib.Path(path)
    module = run_user_file(path / "__main__.py" if path.is_dir() else path)
    if hasattr(module, "plan"):
        return module.plan(list(arguments))
    overrides, rest = config_lib.split_overrides(list(arguments))
    if rest:
        raise BadInput(f"{path} is a config: {rest[0]!r} is not one of --config.group.key=value")
    if not hasattr(module, "sweep"):
        raise BadInput(
            f"{path} tells no runs: a config has sweep(h), a study plan(arguments) (see experiments/isoflop.py)"
        )
    return PlannedStudy(trials.load_trials(path, overrides))


def sweep_plan(
    path: str | pathlib.Path,
    machine: Machine,
    arguments: Sequence[str] = (),
    devices: int = 1,
    efficiency: Efficiency | None = None,
    price_per_hour: float | None = None,
    law: str | None = None,
    noise: float | None = None,
) -> SweepPlan:
    """Plan the sweep of a file on `devices` devices of a machine; nothing is trained or allocated.

    `law` and `noise` (relative scatter of a run's loss) are assumed for the expected intervals; default: the study's,
    else besiroglu and 0.005.
    """
    study = load_planned_study(path, arguments)
    return plan_study(study, str(path), machine, devices, efficiency, price_per_hour, law, noise)


def plan_study(
    study: PlannedStudy,
    source: str,
    machine: Machine,
    devices: int = 1,
    efficiency: Efficiency | None = None,
    price_per_hour: float | None = None,
    law: str | None = None,
    noise: float | None = None,
) -> SweepPlan:
    """Plan a study that is not in a file, as `sweep_plan` does."""
    columns = forks.candidate_columns(study.runs)
    packs = {pack: tuple(names) for pack, names in trials.group_into_packs(study.runs).items()}
    pack_of = {name: pack for pack, names in packs.items() for name in names}
    estimates: dict[Static, tuple[Memory, StepTime]] = {}
    runs = []
    for i, (name, config) in enumerate(study.runs.items()):
        static = config_lib.static(config)
        static = dataclasses.replace(static, layout=mesh.resolve_layout(static.layout, devices))
        if static not in estimates:
            estimates[static] = step_memory(static, machine), step_time(static, machine, efficiency)
        sizes = {key: columns[key][i] for key in ("N", "D", "C")}
        runs.append(_plan_run(name, pack_of[name], config, static, sizes, machine, estimates[static], price_per_hour))
    memories = [memory for memory, _ in estimates.values()]
    costs = [run.cost for run in runs if run.cost is not None]
    expected, notes = (None, study.shows) if study.shows else _forecast_study(study, columns, law, noise)
    return SweepPlan(
        source=source,
        machine=machine.chip.name,
        runs=tuple(runs),
        packs=packs,
        tokens=sum(run.d for run in runs),
        flops=sum(run.flops for run in runs),
        device_hours=sum(run.hours * run.devices for run in runs),
        device_hours_low=sum(run.hours_low * run.devices for run in runs),
        device_hours_high=sum(run.hours_high * run.devices for run in runs),
        wall_hours=wall_hours(runs, packs, devices),
        cost=sum(costs) if costs else None,
        largest_bytes=max(memory.total for memory in memories),
        capacity_bytes=memories[0].capacity,
        too_large=tuple(run.name for run in runs if not run.fits),
        forecast=expected,
        assumptions=tuple(dict.fromkeys(line for _, step in estimates.values() for line in step.assumptions)),
        notes=(*_describe_packing(packs, machine), *notes),
    )


def _plan_run(
    name: str,
    pack: str,
    config: ConfigDict,
    static: Static,
    sizes: Mapping[str, float],
    machine: Machine,
    estimate: tuple[Memory, StepTime],
    price_per_hour: float | None,
) -> PlannedRun:
    memory, step = estimate
    training = estimate_training(static, machine, config.train.steps, step, price_per_hour)
    return PlannedRun(
        name=name,
        role=config.log.role,
        pack=pack,
        n=int(sizes["N"]),
        d=int(sizes["D"]),
        flops=float(sizes["C"]),
        steps=config.train.steps,
        devices=static.layout.devices,
        memory_bytes=memory.total,
        fits=memory.fits,
        hours=24 * training.days,
        hours_low=24 * training.days_low,
        hours_high=24 * training.days_high,
        cost=training.cost,
    )


def _describe_packing(packs: Mapping[str, Sequence[str]], machine: Machine) -> tuple[str, ...]:
    """A note on memory: on an accelerator the runs of a pack are on the device together."""
    most = max(map(len, packs.values()))
    if most == 1 or machine_platform(machine) == "cpu":
        return ()
    return (f"up to {most} runs of a pack lie on the devices at once (sweep.pack=turn: one after the other)",)


def wall_hours(runs: Sequence[PlannedRun], packs: Mapping[str, Sequence[str]], devices: int) -> float:
    """Hours until the last pack ends: packs in their order on the first free devices; a pack's runs take turns."""
    by_name = {run.name: run for run in runs}
    took = [sum(by_name[name].hours for name in names) for names in packs.values()]
    free_at = [0.0] * max(1, devices // max(run.devices for run in runs))
    for hours in took:
        heapq.heapreplace(free_at, free_at[0] + hours)
    return max(free_at)


def _forecast_study(
    study: PlannedStudy, columns: Mapping[str, np.ndarray], law: str | None, noise: float | None
) -> tuple[Forecast | None, tuple[str, ...]]:
    """(forecast of the runs that will be fitted, notes on its assumption or why there is none)."""
    roles = np.array([config.log.role for config in study.runs.values()])
    fitted = roles == "fit" if "fit" in roles else np.ones(len(roles), bool)
    used = {name: np.asarray(columns[name])[fitted] for name in ("N", "D", "C")}
    book = study.expects if law is None and study.expects else lawbook.load_law_book(law or lawbook.DEFAULT_LAW)
    scatter = noise or study.noise or NOISE
    target = study.target_flops or AHEAD * float(used["C"].max())
    notes = [f"{(~fitted).sum()} runs of another role than fit are not fitted"] if not fitted.all() else []
    if study.target_flops and "holdout" not in roles:
        notes.append(
            f"the held-out run of {study.target_flops:.3g} FLOPs is not counted above: the fit chooses its size"
        )
    if book is not study.expects:
        notes.append(f"expected by law {book.name}: name the law of your own earlier runs (--law=fit.json) for better")
    try:
        return forecast_intervals(book, scatter, used, target), tuple(notes)
    except BadInput as why:
        return None, (*notes, f"no fit to be expected of these runs: {why}")
