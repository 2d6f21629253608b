"""Time, money and energy of a whole run, from the time of its steps."""

import dataclasses
from typing import Any

import numpy as np

from scalelab.config import Static
from scalelab.config.steps import batch_ramp
from scalelab.hardware.power import board_watts
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step.time import StepTime


@dataclasses.dataclass(frozen=True)
class Training:
    """A whole run: expected, and at the ends of the step's range. `cost`: in the price's currency; None without one.

    `energy_kwh`: of the chips alone, at full board power (so an upper bound of theirs); None where that is not known.
    """

    tokens: float
    days: float
    days_low: float
    days_high: float
    device_hours: float
    device_hours_low: float
    device_hours_high: float
    cost: float | None
    cost_low: float | None
    cost_high: float | None
    energy_kwh: float | None
    energy_kwh_low: float | None
    energy_kwh_high: float | None


def estimate_training(
    static: Static, machine: Machine, steps: int, step: StepTime, price_per_hour: float | None = None
) -> Training:
    """Days, device-hours, cost and energy of `steps` steps of time `step`, without interruptions.

    `price_per_hour`: of one device (default: the machine's). Under a batch warm-up a step counts by its micro-batches.
    """
    full = _full_steps(static, steps)
    price = machine.price_per_hour if price_per_hour is None else price_per_hour
    hours = {"": step.total_s, "_low": step.low_s, "_high": step.high_s}
    hours = {end: full * seconds / 3600 for end, seconds in hours.items()}
    devices = static.layout.devices
    costs: Any = {f"cost{end}": None if price is None else h * devices * price for end, h in hours.items()}
    watts = board_watts(machine.chip)
    energy: Any = {f"energy_kwh{end}": watts and h * devices * watts / 1000 for end, h in hours.items()}
    return Training(
        tokens=full * static.global_batch * static.model.seq_len,
        **{f"days{end}": h / 24 for end, h in hours.items()},
        **{f"device_hours{end}": h * devices for end, h in hours.items()},
        **costs,
        **energy,
    )


def _full_steps(static: Static, steps: int) -> float:
    """Steps with the full batch that hold as many micro-batches as `steps` do under the batch's warm-up."""
    return (
        int(batch_ramp.micro_batches_before(static.batch_ramp, static.accumulate, np.array([steps]))[0])
        / static.accumulate
    )
