"""`scalelab plan --config=… --devices=LOW..HIGH`: from how many devices on it fits, and what each count takes."""

import argparse
import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

from scalelab import api
from scalelab.commands.plan import waiting
from scalelab.commands.plan.options import RUN_OPTIONS
from scalelab.commands.plan.verdict_text import (
    DAY_S,
    GIB,
    Command,
    command_line,
    describe_even,
    describe_fit,
    describe_run,
    describe_setup,
    format_duration,
    format_figures,
    time_unit,
)
from scalelab.errors import BadInput
from scalelab.parallel import mesh
from scalelab.plan.sweep.counts import NO_LIMITS, Limits, list_front, pick_count, plan_even


def compare_counts(options: Any, config: Any, efficiency: Any) -> dict[str, Any]:
    """Plan one config on several numbers of devices, as JSON; printed unless JSON goes to standard output."""
    low, high = _find_range(options)
    if given := [name for name in RUN_OPTIONS if getattr(options, name) not in (None, False)]:
        nearest = f"--devices={low}" if low else f"leave --{'days' if options.budget is None else 'budget'} out"
        raise BadInput(f"--{given[0].replace('_', '-')} is for one number of devices; nearest: {nearest}")
    limits = Limits(options.days, options.budget)
    with waiting.show_search():
        plans = api.plan_counts(
            config,
            options.hardware,
            low,
            high,
            efficiency=efficiency,
            price_per_hour=options.price,
            days=options.days,
            dollars=options.budget,
        )

    fitting = {devices: option for devices, option in plans.items() if option}
    chosen = pick_count(fitting, limits) if fitting else None
    even = plan_even(config, fitting[chosen], efficiency) if chosen else None
    if options.json != "-":
        counted = argparse.Namespace(**vars(options) | {"devices": True})  # which each plan has of its own
        print("\n".join(describe_counts(plans, functools.partial(command_line, counted), limits, even)))
    front = list_front(_merits(fitting))
    counts = [
        {"devices": devices} | (option.to_json() | {"front": devices in front} if option else {})
        for devices, option in plans.items()
    ]
    beside = {"even": even.to_json()} if even else {}
    return {"fits_from_devices": min(fitting, default=None), "pick": chosen, "counts": counts} | beside


def _find_range(options: Any) -> tuple[int | None, int | None]:
    """The ends of --devices; (None, None) where days or money choose. BadInput for one number beside them."""
    if isinstance(options.devices, str):
        return parse_range(options.devices)
    if options.devices is not None:
        raise BadInput(
            f"--devices={options.devices} with {Limits(options.days, options.budget).text}: the limit chooses the "
            f"number; nearest: --devices=1..{options.devices}, or leave one of them out"
        )
    return None, None


def _merits(fitting: Mapping[int, Any]) -> dict[int, tuple[float, float, float]]:
    """(device hours, days, -free memory) of each count."""
    return {
        devices: (option.plan.training.device_hours, option.plan.training.days, -option.plan.memory.margin_bytes)
        for devices, option in fitting.items()
    }


def parse_range(text: str) -> tuple[int, int]:
    """Read "8..512" as (8, 512). BadInput where it is something else."""
    ends = text.split("..")
    if len(ends) != 2 or not all(end.isdecimal() and 0 < int(end) < 10**9 for end in ends):
        known = len(ends) == 2 and all(end.isdecimal() for end in ends)
        nearest = "..".join(str(min(max(1, int(end)), 10**9 - 1)) for end in ends) if known else ""
        hint = f"nearest: --devices={nearest}" if known else "e.g. --devices=8..512"
        raise BadInput(f"--devices={text} is not a range of devices; {hint}")
    return int(ends[0]), int(ends[1])


def describe_counts(
    plans: Mapping[int, Any], command: Command, limits: Limits = NO_LIMITS, even: Any = None
) -> list[str]:
    """Format the plans of several counts; `pick_count` says which one is meant. `even`: `plan_even` of that one."""
    fitting = {devices: option for devices, option in plans.items() if option}
    if not fitting:
        return [f"fits on none of {', '.join(f'{devices:,}' for devices in plans)} devices; try more"]
    devices = pick_count(fitting, limits)
    meant, front = fitting[devices].plan, list_front(_merits(fitting))
    slowest = max(option.plan.training.days for option in fitting.values())
    name, unit = time_unit(slowest * DAY_S)
    first = f"fits from {min(fitting):,} devices on ({meant.machine.chip.name}); pick: {devices:,}, the most devices "
    first += "within 5 % of the fewest device hours"
    if limits != NO_LIMITS:
        first = f"{describe_fit(meant)}; {_describe_pick(limits)}"
    if alters := fitting[devices].alters:
        first += f"; it changes the numbers of the training: {', '.join(alters)}"
    text = [
        first,
        describe_setup(meant),
        describe_run(meant),
        f"paste: {command(meant, fitting[devices].changes)}",
        *describe_even(dataclasses.replace(meant, even=even), command),
        "",
        f"  {'devices':>8} {name:>8} {'device hours':>13} {'cost':>12} {'MFU %':>6} {'spare GiB':>10}  plan",
    ]
    for count, option in plans.items():
        mark = mark_count(count, devices, front)
        text.append(mark + _row(count, option.plan, unit) if option else f"  {count:>8,}  does not fit")
    return [*text, describe_marks(devices, front)]


def _describe_pick(limits: Limits) -> str:
    """What the pick is under its limits."""
    days = "" if limits.days is None else f"take at most {format_duration(limits.days * DAY_S)}"
    cost = "" if limits.cost is None else f"cost at most {limits.cost:,.0f}"
    which = "fewest tried" if days else "fewest within 5 % of the fastest tried"
    return f"the {which} that {' and '.join(filter(None, [days, cost]))}"


def mark_count(devices: int, pick: int, front: Collection[int]) -> str:
    """The first two characters of a count's row."""
    return "> " if devices == pick else "* " if devices in front else "  "


def describe_marks(pick: int, front: Collection[int]) -> str:
    """Say what the marks of a table of counts mean."""
    legend = "> the pick, * the rest of the front: no other count is as good in days, device hours and spare memory"
    return legend if pick in front else f"{legend}; another count is better than the pick in all three"


def _row(devices: int, plan: Any, unit: float) -> str:
    run = plan.training
    cost = "-" if run.cost is None else f"{run.cost:,.0f}"
    layout = mesh.describe_mesh(dataclasses.asdict(plan.layout))
    return (
        f"{devices:>8,} {format_figures(run.days * DAY_S / unit):>8} {format_figures(run.device_hours):>13} {cost:>12} "
        f"{100 * plan.time.mfu:>6.1f} {format_figures(plan.memory.margin_bytes / GIB):>10}  "
        f"{layout}; remat {plan.static.model.remat}; x {plan.static.accumulate} accumulated"
    )
