"""Plan runs and sweeps from Python, as `scalelab plan` does. Nothing is trained or allocated."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from scalelab import config as config_lib
from scalelab.api.arguments import (
    FUNCTION,
    POSITIVE,
    Kind,
    Path,
    check_arguments,
    check_value,
    instance,
    names_of,
    optional,
    whole,
)
from scalelab.api.defaults import FREE
from scalelab.api.door import Config, Overrides, add_overrides, load_config, sweep_path
from scalelab.config import CommandLine, Layout
from scalelab.errors import BadInput
from scalelab.plan.machine.machine import Machine
from scalelab.plan.machine.priced import load_machines, refuse_missing_unit
from scalelab.plan.measure import Measurement, ThroughputPoint, measure_throughput
from scalelab.plan.search.single_gpu import SingleGpuFit, list_fits
from scalelab.plan.sweep import counts
from scalelab.plan.sweep.against import compare_plans, parse_against
from scalelab.plan.whole import RESTART_S, Alternative, Plan, Terms
from scalelab.plan.whole import plan as plan_run

if TYPE_CHECKING:
    from scalelab.plan.calibrate import Calibration
    from scalelab.plan.step.efficiency import Efficiency
    from scalelab.plan.sweep.against import PlanComparison
    from scalelab.plan.sweep.sweep import SweepPlan

Hardware = Union[Path, "Machine"]
SERVED = Kind(
    "two whole numbers, sequences and tokens, such as (1, 0)",
    lambda pair: (
        isinstance(pair, tuple | list) and len(pair) == 2 and whole(1).fits(pair[0]) and whole(0).fits(pair[1])
    ),
)
AMOUNTS = dict.fromkeys(
    ("price_per_hour", "critical_tokens", "mtbf_s", "restart_s", "write_bytes_per_s"), optional(POSITIVE)
)


@check_arguments(devices=optional(whole(1)), serve=SERVED, free=names_of(FREE), **AMOUNTS)
def plan(
    config: Config,
    hardware: Hardware = "cpu",
    devices: int | None = None,
    mesh: str | Mapping[str, object] | Layout | None = None,
    overrides: Overrides | None = None,
    *,
    efficiency: "Efficiency | None" = None,
    price_per_hour: float | None = None,
    critical_tokens: float | None = None,
    mtbf_s: float | None = None,
    restart_s: float | None = None,
    write_bytes_per_s: float | None = None,
    compile: bool = False,
    serve: tuple[int, int] = (1, 0),
    free: tuple[str, ...] = (),
) -> Plan:
    """Plan a run before it starts (`scalelab plan --config`): parameters, FLOPs, memory, time, cost.

    `config`: a file's path or a tree; `hardware`: a name, a JSON file's path or a `Machine`; `efficiency`: shares of
    the datasheet, e.g. those of `calibrate`; `mtbf_s`, `restart_s`: seconds between failures, and to go on after one;
    `compile`: also compile the step for the machine; `serve`: sequences served at once and their tokens (0:
    model.seq_len); `free`: of ("precision", "optimizer"), what the plan chooses as well.
    """
    check_value("mesh", mesh, optional(instance("a text such as 'fsdp=8', a dict or a Layout", str, Mapping, Layout)))
    run_config, machine = load_config(config, overrides), name_machine(hardware, price_per_hour)
    refuse_missing_unit(run_config.precision.name, machine)
    restart_s = RESTART_S if restart_s is None else restart_s
    terms = Terms(critical_tokens, mtbf_s, restart_s, write_bytes_per_s, (serve[0], serve[1]))
    return plan_run(
        run_config, machine, devices, mesh, efficiency=efficiency, terms=terms, compile=compile, free=tuple(free)
    )


@check_arguments(devices=optional(whole(1)), price_per_hour=optional(POSITIVE))
def plan_against(
    config: Config,
    against: str,
    hardware: Hardware = "cpu",
    devices: int | None = None,
    mesh: str | Mapping[str, object] | Layout | None = None,
    overrides: Overrides | None = None,
    *,
    efficiency: "Efficiency | None" = None,
    price_per_hour: float | None = None,
) -> "PlanComparison":
    """Plan a run and a changed one, side by side (`scalelab plan --config --against`).

    `against`: another config, keys as `precision.name=bf16`, or both, with commas; `hardware`, `devices` and `price`
    are keys too. All that it does not change is the first plan's.
    """
    check_value("against", against, instance("a text such as 'precision.name=bf16'", str))
    other, second_keys, changes = parse_against(against)
    if efficiency is not None and "hardware" in second_keys:
        raise BadInput(
            f"--against=hardware={second_keys['hardware']} with --calibrate: what was measured holds for one machine; "
            "nearest: leave --calibrate out"
        )
    first_config = load_config(config, overrides)
    second_config = load_config(
        config if other is None else other, add_overrides(CommandLine(overrides or {}), changes)
    )
    machine = name_machine(hardware, price_per_hour)
    options: dict[str, Any] = {"hardware": machine, "devices": devices, "price": None}
    has_price = ":" in second_keys.get("hardware", "")
    second_options = options | {"price": None if has_price else price_per_hour} | second_keys
    plans = []
    for run, chosen in ((first_config, options), (second_config, second_options)):
        count, price = (None if chosen[key] is None else _number(key, chosen[key]) for key in ("devices", "price"))
        kind, n = chosen["hardware"], None if count is None else int(count)
        plans.append(plan(run, kind, n, mesh, efficiency=efficiency, price_per_hour=price))
    leaves = [config_lib.leaves(run) for run in (first_config, second_config)]
    return compare_plans(plans[0], plans[1], *leaves)


@check_arguments(
    **dict.fromkeys(("low", "high"), optional(whole(1))),
    **dict.fromkeys(("days", "dollars", "price_per_hour"), optional(POSITIVE)),
)
def plan_counts(
    config: Config,
    hardware: Hardware,
    low: int | None = None,
    high: int | None = None,
    overrides: Overrides | None = None,
    *,
    efficiency: "Efficiency | None" = None,
    price_per_hour: float | None = None,
    days: float | None = None,
    dollars: float | None = None,
) -> dict[int, Alternative | None]:
    """Plan a run on `low`, 2 `low`, 4 `low` … devices up to `high` (`scalelab plan --config --devices=LOW..HIGH`).

    {devices: the fastest plan that fits, None: none does}; the mesh of the config is not kept. `days` without a range:
    the counts tried on the way to the fewest devices that take at most so many (`--days`); `dollars` likewise: to the
    most that cost at most so much (`--budget`). BadInput where none does.
    """
    run_config, machine = load_config(config, overrides), name_machine(hardware, price_per_hour)
    refuse_missing_unit(run_config.precision.name, machine)
    return counts.plan_counts(run_config, machine, low, high, efficiency, counts.Limits(days, dollars))


def _number(key: str, value: Any) -> float:
    """A number of --against. BadInput for a text that is none, or a count that is not whole."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not number > 0 or (key == "devices" and number != int(number)):
        raise BadInput(f"--against: {key}={value} is not a number above 0; e.g. {key}={8 if key == 'devices' else 2.5}")
    return number


def name_machine(hardware: Hardware, price_per_hour: float | None = None) -> Machine:
    """The one machine that is named. BadInput for several kinds."""
    machines = name_machines(hardware, price_per_hour)
    if len(machines) > 1:
        first, second, *_ = (kind.strip() for kind in str(hardware).split(",") if kind.strip())
        raise BadInput(
            f"--hardware={hardware}: several kinds compete for a budget (--params with --tokens, --flops, --budget); a "
            f"config is planned on one; nearest: --hardware={first} --against=hardware={second}"
        )
    return machines[0]


def name_machines(hardware: Hardware, price_per_hour: float | None) -> tuple[Machine, ...]:
    """The machines that are named, or the one that is given, at this price of a device-hour if there is one."""
    check_value("hardware", hardware, instance("a name, a JSON file's path or a Machine", str, os.PathLike, Machine))
    if not isinstance(hardware, Machine):
        return load_machines(os.fspath(hardware), price_per_hour)
    return (hardware if price_per_hour is None else dataclasses.replace(hardware, price_per_hour=price_per_hour),)


@check_arguments()
def calibrate(runs: Path, hardware: Hardware = "cpu") -> "Calibration":
    """Estimate the hardware's `efficiency` from measured runs, and how well it transfers (`plan --calibrate`)."""
    from scalelab.plan.calibrate import calibrate_efficiency

    return calibrate_efficiency(runs, name_machine(hardware))


@check_arguments()
def single_gpu(
    config: Config, hardware: Hardware = "cpu", overrides: Overrides | None = None
) -> tuple[SingleGpuFit, ...]:
    """List the ways to hold the model on one device, with the largest micro-batch of each (`plan --single-gpu`)."""
    return list_fits(config_lib.static(load_config(config, overrides)), name_machine(hardware))


@check_arguments(progress=optional(FUNCTION))
def measure(
    config: Config,
    plan: Plan,
    overrides: Overrides | None = None,
    *,
    efficiency: "Efficiency | None" = None,
    progress: Callable[[ThroughputPoint], None] | None = None,
) -> Measurement:
    """Run the planned step here with growing micro-batches: tokens/s beside the prediction (`plan --measure`)."""
    check_value("plan", plan, instance("a plan, as `scalelab.api.plan` returns it", Plan))
    run_config = load_config(config, overrides).copy_and_resolve_references()
    run_config.parallel.update(dataclasses.asdict(plan.layout))
    return measure_throughput(run_config, plan.machine, efficiency, progress=progress or (lambda point: None))


@check_arguments(devices=whole(1), price_per_hour=optional(POSITIVE), noise=optional(POSITIVE))
def plan_sweep(
    sweep: Path,
    hardware: Hardware = "cpu",
    study: Sequence[str] = (),
    *,
    devices: int = 1,
    efficiency: "Efficiency | None" = None,
    price_per_hour: float | None = None,
    law: str | None = None,
    noise: float | None = None,
) -> "SweepPlan":
    """Plan every run of a study or of a config's sweep(h) (`scalelab plan --sweep`); `study`: the study's options."""
    from scalelab.plan.sweep.sweep import sweep_plan

    path = sweep_path(os.fspath(sweep))
    return sweep_plan(path, name_machine(hardware), study, devices, efficiency, price_per_hour, law, noise)
