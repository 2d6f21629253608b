"""One config on several numbers of devices, on the fastest layout that fits each: how many are needed."""

import dataclasses
import math
from collections.abc import Mapping

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.plan.budget.fit_machine import BETWEEN, DAY_S, MOST_DEVICES, in_whole_nodes, round_up
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.levers import without_mesh
from scalelab.plan.memory.search import fastest_fit
from scalelab.plan.step.efficiency import Efficiency, default_efficiency
from scalelab.plan.step.time import peak_of_unit
from scalelab.plan.whole import Alternative, plan
from scalelab.precision.policy import POLICIES

MOST_COUNTS = 16
WITHIN = 1.05  # times the fewest device hours, within which more devices are worth it
Plans = dict[int, Alternative | None]


@dataclasses.dataclass(frozen=True, eq=False)
class _Question:
    """What is planned on each number of devices."""

    config: ConfigDict
    machine: Machine
    efficiency: Efficiency
    price_per_hour: float | None


def plan_counts(
    config: ConfigDict,
    machine: Machine,
    low: int | None = None,
    high: int | None = None,
    efficiency: Efficiency | None = None,
    price_per_hour: float | None = None,
    days: float | None = None,
) -> Plans:
    """{devices: the fastest plan that fits, None: none does} for `low`, 2 `low`, 4 `low` … up to `high`.

    With `days` and no range: the counts tried on the way to the fewest that take at most so many. BadInput if `high`
    is below `low`, for more than MOST_COUNTS, and for days that no count meets, with the nearest that works.
    """
    question = _Question(config, machine, efficiency or default_efficiency(machine), price_per_hour)
    if days is not None and low is None and high is None:
        return _counts_for_days(question, days)
    low, high = low or 1, high or MOST_DEVICES
    if high < low:
        raise BadInput(f"--devices={low}..{high}: {high} is below {low}; nearest: {high}..{low}")
    counts = [low * 2**k for k in range((high // low).bit_length())]
    if len(counts) > MOST_COUNTS:
        raise BadInput(f"--devices={low}..{high} are {len(counts)} plans; nearest: {low}..{counts[MOST_COUNTS - 1]}")
    plans = {devices: _plan_on(question, devices) for devices in counts}
    if days is not None and not any(_meets(option, days) for option in plans.values()):
        raise _too_few_days(question, plans, days)
    return plans


def _plan_on(question: _Question, devices: int) -> Alternative | None:
    config, machine, efficiency = question.config, question.machine, question.efficiency
    option = fastest_fit(config, without_mesh(config), machine, devices, efficiency)
    if option is None:
        return None
    best = plan(
        option.config, machine, devices, efficiency=efficiency, price_per_hour=question.price_per_hour, search=False
    )  # fmt: skip
    return Alternative(option.changes, option.alters, best)


def _counts_for_days(question: _Question, days: float) -> Plans:
    """Powers of two up to the first that meets the days, quarters below it, and its double."""
    least, plans = _fewest_by_flops(question, days), dict[int, Alternative | None]()
    powers = [2**k for k in range(MOST_DEVICES.bit_length()) if 2 * 2**k > min(least, MOST_DEVICES)]
    for devices in powers:
        plans[devices] = _plan_on(question, devices)
        if _meets(plans[devices], days):
            break
    else:
        raise _too_few_days(question, plans | _largest_that_fits(question, min(plans), plans), days)
    for between in dict.fromkeys(int(share * devices / 2) for share in BETWEEN):
        if between in plans or not in_whole_nodes(between, question.machine):
            continue
        if option := _plan_on(question, between):
            plans[between] = option
        if _meets(option, days):
            break
    if 2 * devices <= MOST_DEVICES:
        plans[2 * devices] = _plan_on(question, 2 * devices)
    return dict(sorted(plans.items()))


def _largest_that_fits(question: _Question, below: int, plans: Plans) -> Plans:
    """`plans`, or where none of them has a layout that of the most devices `below` so many that has one."""
    while not any(plans.values()) and below > 1:
        below //= 2
        plans = {below: _plan_on(question, below)}
    return plans


def _fewest_by_flops(question: _Question, days: float) -> int:
    """Devices that no run can do with fewer: the FLOPs of the model at the peak of the unit that it uses."""
    config = config_lib.resolve(question.config)
    static = config_lib.static(config)
    flops = count.flops_per_token(static.model)["exact"] * schedule_steps.tokens_before(config, config.train.steps)
    peak, _ = peak_of_unit(question.machine, POLICIES[static.precision].unit)
    return max(1, math.ceil(min(flops / (peak * days * DAY_S), MOST_DEVICES)))


def _meets(option: Alternative | None, days: float) -> bool:
    return option is not None and option.plan.training.days <= days


def _too_few_days(question: _Question, plans: Plans, days: float) -> BadInput:
    """Why no count meets the days, with those of the fastest."""
    fitting, chip = {n: option.plan.training.days for n, option in plans.items() if option}, question.machine.chip.name
    tried = f"{min(plans):,} to {max(plans):,} x {chip}"
    if not fitting:
        return BadInput(f"--days={days:g}: no layout fits on {tried}; nearest: a chip with more memory")
    fastest = min(fitting, key=lambda devices: fitting[devices])
    return BadInput(
        f"--days={days:g}: no count is so fast on {tried}; nearest: --days={round_up(fitting[fastest]):g} (on "
        f"{fastest:,})"
    )


def pick_count(fitting: Mapping[int, Alternative], days: float | None = None) -> int:
    """The most devices within 5 % of the fewest device hours; with `days` the fewest that take at most so many."""
    if days is not None:
        return min(devices for devices, option in fitting.items() if _meets(option, days))
    hours = {devices: option.plan.training.device_hours for devices, option in fitting.items()}
    return max(devices for devices, spent in hours.items() if spent <= WITHIN * min(hours.values()))


def list_front(rows: Mapping[int, tuple[float, float, float]]) -> list[int]:
    """Counts that no other beats in (device hours, days, -free memory): none of the three worse, one better."""

    def beaten(row: tuple[float, ...]) -> bool:
        return any(
            other != row and all(theirs <= ours for theirs, ours in zip(other, row, strict=True))
            for other in rows.values()
        )

    return [devices for devices, row in rows.items() if not beaten(row)]
