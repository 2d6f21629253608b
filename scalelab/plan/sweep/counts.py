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
from scalelab.plan.machine.priced import paid_hours
from scalelab.plan.search.levers import round_batch, without_mesh
from scalelab.plan.search.nearest import Candidate, fastest_fit, with_even_batch, without_ramp
from scalelab.plan.step.efficiency import Efficiency, default_efficiency, peak_of_unit
from scalelab.plan.whole import PINNED, Alternative, plan
from scalelab.precision.policy import POLICIES

MOST_COUNTS = 16
LONGEST = 1000.0  # days of a run that is looked for by its cost
BEYOND = 4  # counts that fit and cost more than the money, after which no more are tried
WITHIN = 1.05  # times the least device hours or days: plans so near cannot be told apart
Plans = dict[int, Alternative | None]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a run may take: days, and money in the currency of the price; None: as much as it likes."""

    days: float | None = None
    cost: float | None = None

    def met(self, option: Alternative | None) -> bool:
        """Whether a plan fits and keeps them."""
        if option is None:
            return False
        run = option.plan.training
        return (self.days is None or run.days <= self.days) and (
            self.cost is None or (run.cost is not None and run.cost <= self.cost)
        )

    @property
    def text(self) -> str:
        """The options as one writes them."""
        parts = ([] if self.days is None else [f"--days={self.days:g}"]) + (
            [] if self.cost is None else [f"--budget={self.cost:g}"]
        )
        return " ".join(parts)


NO_LIMITS = Limits()


@dataclasses.dataclass(frozen=True, eq=False)
class _Question:
    """What is planned on each number of devices."""

    config: ConfigDict
    machine: Machine
    efficiency: Efficiency


def plan_counts(
    config: ConfigDict,
    machine: Machine,
    low: int | None = None,
    high: int | None = None,
    efficiency: Efficiency | None = None,
    limits: Limits = NO_LIMITS,
) -> Plans:
    """{devices: the fastest plan that fits, None: none does} for `low`, 2 `low`, 4 `low` … up to `high`.

    With `limits` and no range: the counts tried on the way to the fewest that take at most so many days, or to the most
    that cost at most so much. BadInput if `high` is below `low`, for more than MOST_COUNTS, for money without a price,
    and for limits that no count meets, with the nearest that works.
    """
    question = _Question(config, machine, efficiency or default_efficiency(machine))
    if limits.cost is not None:
        paid_hours(limits.cost, machine)
    if limits.days is not None and low is None and high is None:
        return _refuse_unmet(question, _counts_for_days(question, limits.days), limits)
    if limits.cost is not None and low is None and high is None:
        return _refuse_unmet(question, _counts_for_cost(question, limits.cost), limits)
    low, high = low or 1, high or MOST_DEVICES
    if high < low:
        raise BadInput(f"--devices={low}..{high}: {high} is below {low}; nearest: {high}..{low}")
    counts = [low * 2**k for k in range((high // low).bit_length())]
    if len(counts) > MOST_COUNTS:
        raise BadInput(f"--devices={low}..{high} are {len(counts)} plans; nearest: {low}..{counts[MOST_COUNTS - 1]}")
    return _refuse_unmet(question, {devices: _plan_on(question, devices) for devices in counts}, limits)


def _plan_on(question: _Question, devices: int) -> Alternative | None:
    """The fastest plan; without the batch's warm-up where that is more than 10 % faster."""
    config, machine, efficiency = question.config, question.machine, question.efficiency
    free = without_mesh(config)
    option = fastest_fit(config, free, machine, devices, efficiency)
    if option is None and (divided := round_batch(config, devices)):
        option = fastest_fit(config, free | divided, machine, devices, efficiency)
    made = _plan_candidate(question, option, devices)
    unpinned = _plan_candidate(question, without_ramp(config, machine, devices, efficiency), devices)
    if unpinned and not (made and unpinned.plan.time.total_s > PINNED * made.plan.time.total_s):
        return unpinned
    return made


def _plan_candidate(question: _Question, option: Candidate | None, devices: int) -> Alternative | None:
    if option is None:
        return None
    best = plan(option.config, question.machine, devices, efficiency=question.efficiency, search=False)
    return Alternative(option.changes, option.alters, best)


def plan_even(config: ConfigDict, option: Alternative, efficiency: Efficiency | None = None) -> Alternative | None:
    """The plan of a count with a batch near its odd one, for as many tokens; None where that is not much faster."""
    run, machine = option.plan, option.plan.machine
    question = _Question(config, machine, efficiency or default_efficiency(machine))
    if "train.global_batch" in option.changes:
        return None
    even = _plan_candidate(question, with_even_batch(config, machine, run.devices, question.efficiency), run.devices)
    return even if even and even.plan.training.days <= PINNED * run.training.days else None


def _counts_for_days(question: _Question, days: float) -> Plans:
    """Powers of two up to the first that meets the days, quarters below it, and its double."""
    least, plans = _fewest_by_flops(question, days), dict[int, Alternative | None]()
    powers = [2**k for k in range(MOST_DEVICES.bit_length()) if 2 * 2**k > min(least, MOST_DEVICES)]
    for devices in powers:
        plans[devices] = _plan_on(question, devices)
        if Limits(days).met(plans[devices]):
            break
    else:
        return plans | _largest_that_fits(question, min(plans), plans)
    for between in dict.fromkeys(int(share * devices / 2) for share in BETWEEN):
        if between in plans or not in_whole_nodes(between, question.machine):
            continue
        if option := _plan_on(question, between):
            plans[between] = option
        if Limits(days).met(option):
            break
    if 2 * devices <= MOST_DEVICES:
        plans[2 * devices] = _plan_on(question, 2 * devices)
    return dict(sorted(plans.items()))


def _counts_for_cost(question: _Question, cost: float) -> Plans:
    """Powers of two up to the first beyond the money after one within it; BEYOND of them where none is within it.

    From the first that may take at most LONGEST days.
    """
    plans, beyond, within = dict[int, Alternative | None](), 0, False
    least = _fewest_by_flops(question, LONGEST)
    for devices in (2**k for k in range(MOST_DEVICES.bit_length()) if 2**k >= min(least, MOST_DEVICES)):
        option = plans[devices] = _plan_on(question, devices)
        if option is None:
            if within:
                break
            continue
        within, beyond = within or Limits(cost=cost).met(option), beyond + (not Limits(cost=cost).met(option))
        if beyond >= (1 if within else BEYOND):
            break
    first = next((devices for devices, option in plans.items() if option), 1)
    return {devices: option for devices, option in plans.items() if devices >= first // 2}


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


def _refuse_unmet(question: _Question, plans: Plans, limits: Limits) -> Plans:
    """`plans` where one of them meets the limits. BadInput else, with what the nearest one takes."""
    if limits == NO_LIMITS or any(limits.met(option) for option in plans.values()):
        return plans
    fitting = {n: option.plan.training for n, option in plans.items() if option}
    most, chip = f" to {max(plans):,}" if len(plans) > 1 else "", question.machine.chip.name
    tried = f"{min(plans):,}{most} x {chip}"
    if not fitting:
        raise BadInput(f"{limits.text}: no layout fits on {tried}; nearest: a chip with more memory")
    if limits.days is None or any(Limits(limits.days).met(option) for option in plans.values()):
        least = min(fitting, key=lambda n: fitting[n].cost or 0.0 if Limits(limits.days).met(plans[n]) else math.inf)
        cost = round_up(fitting[least].cost or 0.0)
        raise BadInput(
            f"{limits.text}: the run costs more on {tried}, {cost:,.0f} at least; nearest: --budget={cost:.0f} (on "
            f"{least:,})"
        )
    fastest = min(fitting, key=lambda devices: fitting[devices].days)
    raise BadInput(
        f"{limits.text}: no count is so fast on {tried}; nearest: --days={round_up(fitting[fastest].days):g} (on "
        f"{fastest:,})"
    )


def pick_count(fitting: Mapping[int, Alternative], limits: Limits = NO_LIMITS) -> int:
    """The most devices within 5 % of the fewest device hours; with limits, of those that meet them.

    With days the fewest devices, with money alone the fewest within 5 % of the fastest run for it.
    """
    met = {devices: option for devices, option in fitting.items() if limits.met(option)}
    if limits.days is not None:
        return min(met)
    if limits.cost is not None:
        days = {devices: option.plan.training.days for devices, option in met.items()}
        return min(devices for devices, taken in days.items() if taken <= WITHIN * min(days.values()))
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
