"""One config on several numbers of devices, on the fastest layout that fits each: how many are needed."""

from collections.abc import Mapping

from ml_collections import ConfigDict

from scalelab.errors import BadInput
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.levers import without_mesh
from scalelab.plan.memory.search import fastest_fit
from scalelab.plan.step.efficiency import Efficiency, default_efficiency
from scalelab.plan.whole import Alternative, plan

MOST_COUNTS = 16
WITHIN = 1.05  # times the fewest device hours, within which more devices are worth it


def plan_counts(
    config: ConfigDict,
    machine: Machine,
    low: int,
    high: int,
    efficiency: Efficiency | None = None,
    price_per_hour: float | None = None,
) -> dict[int, Alternative | None]:
    """{devices: the fastest plan that fits, None: none does} for `low`, 2 `low`, 4 `low` … up to `high`.

    BadInput if `high` is below `low`, or for more than MOST_COUNTS.
    """
    if high < low:
        raise BadInput(f"--devices={low}..{high}: {high} is below {low}; nearest: {high}..{low}")
    counts = [low * 2**k for k in range((high // low).bit_length())]
    if len(counts) > MOST_COUNTS:
        raise BadInput(f"--devices={low}..{high} are {len(counts)} plans; nearest: {low}..{counts[MOST_COUNTS - 1]}")
    efficiency = efficiency or default_efficiency(machine)
    plans: dict[int, Alternative | None] = {}
    for devices in counts:
        option = fastest_fit(config, without_mesh(config), machine, devices, efficiency)
        if option is None:
            plans[devices] = None
            continue
        best = plan(
            option.config, machine, devices, efficiency=efficiency, price_per_hour=price_per_hour, search=False
        )  # fmt: skip
        plans[devices] = Alternative(option.changes, option.alters, best)
    return plans


def pick_count(fitting: Mapping[int, Alternative]) -> int:
    """The most devices within 5 % of the fewest device hours."""
    hours = {devices: option.plan.training.device_hours for devices, option in fitting.items()}
    return max(devices for devices, spent in hours.items() if spent <= WITHIN * min(hours.values()))
