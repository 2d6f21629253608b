"""How many devices of a machine train a shape on so many tokens: the layout of each count, its days, and the pick.

`choose_layout` is the only place that asks for a layout.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.plan.budget.shape import Shape, build_config
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.search.nearest import Candidate, fastest_fit, nearest_fit
from scalelab.plan.step.efficiency import default_efficiency
from scalelab.plan.step.time import expected_s

if TYPE_CHECKING:
    from ml_collections import ConfigDict

MOST_DEVICES = 65_536
DEFAULT_DAYS = 30.0  # the run's length where neither devices nor days are given
DAY_S = 86_400.0
WASTE = 1.3  # times the device-hours of half the devices, beyond which more devices are not worth it
FASTEST_SHARE = 0.9  # of a chip's peak: fewer devices than this needs are not tried
BETWEEN = (1.25, 1.5, 1.75)  # of a power of two: counts tried between one that is too slow and its double
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # the first that a chip has


@dataclasses.dataclass(frozen=True)
class Count:
    """One number of devices: the config's `changes` that fit best, a step's expected seconds, the run's days.

    `alters`: the changed keys that give a training other numbers.
    """

    devices: int
    step_s: float
    steps: int
    batch_tokens: int
    days: float
    device_hours: float
    margin_bytes: int
    changes: Mapping[str, Any]
    alters: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Request:
    """What a run is asked to be: a machine, `devices` or `days` (both None: DEFAULT_DAYS), and keys of its config."""

    machine: Machine
    devices: int | None = None
    days: float | None = None
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def run_config(shape: Shape, tokens: float, devices: int, request: Request) -> "ConfigDict":
    """The unresolved config of a shape on so many tokens and devices, with the request's keys."""
    unit = next((name for name in PRECISIONS if name in request.machine.chip.flops), "float32")
    tree = build_config(shape, tokens, devices, PRECISIONS[unit])
    return config_lib.override(tree, dict(request.overrides))


def choose_layout(config: "ConfigDict", machine: Machine, devices: int, alter: bool = False) -> Candidate | None:
    """The fastest layout that fits; None where none does.

    `alter`: where none does, the nearest config that fits, by the levers that change numbers (`levers.py`).
    """
    efficiency = default_efficiency(machine)
    try:
        resolved = config_lib.resolve(config)
        fit = fastest_fit(resolved, {}, machine, devices, efficiency)
        return nearest_fit(resolved, machine, devices, efficiency) if fit is None and alter else fit
    except BadInput:
        return None


def try_count(shape: Shape, tokens: float, devices: int, request: Request) -> Count | None:
    """The run on so many devices; None where no layout fits, and on the devices asked for where nothing does."""
    machine = request.machine
    fit = choose_layout(run_config(shape, tokens, devices, request), machine, devices, devices == request.devices)
    if fit is None:
        return None
    step_s = expected_s(fit.static, machine, default_efficiency(machine))
    steps, batch_tokens = fit.config.train.steps, fit.config.train.global_batch * fit.config.model.seq_len
    seconds, margin = step_s * steps, step_memory(fit.static, machine).margin_bytes
    return Count(
        devices, step_s, steps, batch_tokens, seconds / DAY_S, seconds * devices / 3600, margin, fit.changes, fit.alters
    )


def pick_count(shape: Shape, tokens: float, request: Request) -> tuple[Count, tuple[Count, ...]]:
    """(the pick, all counts that were tried): the request's devices, or the fewest that meet its days.

    Without either, the fewest that take DEFAULT_DAYS, or where none does the fastest count; and fewer as long as half
    the devices take WASTE times less device-hours. Where half or twice as many are better in days, device-hours and
    spare memory alike, they are the pick. BadInput where the devices hold no layout, and where no count meets the
    days, with the nearest that works.
    """
    counts: dict[int, Count | None] = {}

    def measure(devices: int) -> Count | None:
        if devices not in counts:
            counts[devices] = try_count(shape, tokens, devices, request)
        return counts[devices]

    if request.devices is not None:
        if pick := measure(request.devices):
            return pick, (pick,)
        near = next((n for n in _powers(request.devices + 1) if measure(n)), None)
        hint = f"nearest: --devices={near}" if near else f"no count up to {MOST_DEVICES:,} does"
        name = f"{shape.total / 1e9:.3g}B parameters on {request.devices:,} x {request.machine.chip.name}"
        raise BadInput(f"{name}: no layout that the trainer accepts fits; {hint}")
    days = DEFAULT_DAYS if request.days is None else request.days
    pick = None
    for devices in _powers(_fewest(shape, tokens, request.machine, days)):
        option = measure(devices)
        if option and option.days <= days:
            pick = option
            break
    if pick is None:
        pick = _fastest(shape, request, counts, days)
    while request.days is None and pick.devices > 1:
        fewer = measure(pick.devices // 2)
        if fewer is None or fewer.device_hours * WASTE > pick.device_hours:
            break
        pick = fewer
    for share in BETWEEN:
        devices = int(share * pick.devices / 2)
        if (
            pick.devices > 8
            and pick.days <= days
            and in_whole_nodes(devices, request.machine)
            and (option := measure(devices))
            and option.days <= days
        ):
            pick = option
            break
    for devices in (pick.devices // 2, pick.devices * 2):
        option = measure(devices) if 1 <= devices <= MOST_DEVICES else None
        if option and _beats(option, pick):
            pick = option
    return pick, tuple(count for _, count in sorted(counts.items()) if count)


def _beats(option: Count, pick: Count) -> bool:
    """Whether an option is better in days, device-hours and spare memory alike."""
    shorter, cheaper = option.days < pick.days, option.device_hours < pick.device_hours
    return shorter and cheaper and option.margin_bytes > pick.margin_bytes


def _fastest(shape: Shape, request: Request, counts: Mapping[int, Count | None], days: float) -> Count:
    """The fastest count, where no days were asked. BadInput where they were."""
    tried = [count for _, count in sorted(counts.items()) if count]
    name = f"{shape.total / 1e9:.3g}B parameters on {request.machine.chip.name}"
    if not tried:
        raise BadInput(
            f"{name}: no count up to {MOST_DEVICES:,} devices holds it; nearest: fewer parameters, or a chip with more "
            f"than {request.machine.chip.hbm_bytes / 1e9:.0f} GB"
        )
    fastest = min(tried, key=lambda count: count.days)
    if request.days is None:
        return fastest
    raise BadInput(
        f"--days={days:g}: no count up to {MOST_DEVICES:,} devices is so fast for {name}; nearest: "
        f"--days={round_up(fastest.days):g} (on {fastest.devices:,})"
    )


def in_whole_nodes(devices: int, machine: Machine) -> bool:
    """Whether a count is of whole nodes, or below one."""
    return devices % machine.devices_per_node == 0 or devices < machine.devices_per_node


def round_up(days: float) -> float:
    """`days` with three digits, rounded up."""
    return float(f"{days * 1.005:.3g}")


def _powers(least: int) -> list[int]:
    """Powers of two from `least` to MOST_DEVICES."""
    return [2**k for k in range(MOST_DEVICES.bit_length()) if least <= 2**k <= MOST_DEVICES]


def _fewest(shape: Shape, tokens: float, machine: Machine, days: float) -> int:
    """Devices that no run can do with fewer: FLOPs by 6N at FASTEST_SHARE of the peak of the unit that it uses."""
    peak = max(machine.chip.flops.values())
    least = 6 * (shape.total - shape.vocab_size * shape.d_model) * tokens / (peak * FASTEST_SHARE * days * DAY_S)
    return min(int(least) + 1, MOST_DEVICES)
