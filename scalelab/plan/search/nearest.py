"""The nearest plan that fits: a config with the fewest kinds of changes, on the fastest layout that it has then."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config import Layout, Static
from scalelab.config.steps.schedule_steps import forget_derived_steps
from scalelab.errors import BadInput
from scalelab.hardware.device_memory import usable_bytes
from scalelab.parallel import rules
from scalelab.plan.machine.layout import apply_mesh
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.held import state_bytes_on_devices
from scalelab.plan.memory.host import host_memory
from scalelab.plan.search import levers
from scalelab.plan.search.advice import fits_exactly, is_usable, iterate_advice, list_fastest, list_nearly_fitting
from scalelab.plan.search.candidates import REMAT
from scalelab.plan.step.efficiency import Efficiency, peak_of_unit
from scalelab.plan.step.time import expected_s
from scalelab.precision.policy import POLICIES
from scalelab.train.step.hooks import refuse_unsupported
from scalelab.train.step.update.per_layer import refusals

# Config keys that leave the numbers of a training as they are, to rounding: all others change them.
SAME_NUMBERS = ("train.accumulate", "model.remat", "parallel.", "train.updates", "train.moments", levers.PRODUCTS)
DROPS = "parallel.expert_buffer"  # what goes to an expert beyond it is left out
COUNTED = 4  # exact counts of memory in the search for the rest of a mesh
LARGEST_FACTOR = 1024  # times the devices asked, in the search for how many fit


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A config that fits. `changes`: keys and values as on the command line; `alters`: those that change numbers."""

    config: ConfigDict
    static: Static
    changes: dict[str, Any]

    @property
    def alters(self) -> tuple[str, ...]:
        """The changed keys that give a training other numbers, beyond rounding."""
        return keys_that_alter(self.changes)


def keys_that_alter(keys: Iterable[str]) -> tuple[str, ...]:
    """Those of changed config keys that give a training other numbers, beyond rounding."""
    return tuple(key for key in keys if key == DROPS or not key.startswith(SAME_NUMBERS))


def find_refusal(static: Static) -> str | None:
    """Why the trainer refuses a step on its layout; None if it takes it."""
    try:
        refuse_unsupported(static)
        refusals.refuse_unsupported(static)
        rules.check_layout(static, static.layout)
    except BadInput as why:
        return str(why)
    return None


def fits(static: Static, machine: Machine) -> bool:
    """Whether a step fits the device, counted exactly, and its moments the host where they lie there."""
    host = host_memory(static, machine)
    return fits_exactly(static, machine) and (host is None or host.fits is not False)


def nearest_fit(
    config: ConfigDict, machine: Machine, devices: int, efficiency: Efficiency, layout: Layout | None = None
) -> Candidate | None:
    """The first of the levers' changes under which a layout fits, and its fastest layout; None if none does.

    `layout`: the one asked for, where it is not the config's.
    """
    static = dataclasses.replace(config_lib.static(config), layout=layout or config_lib.static(config).layout)
    placed = dataclasses.replace(static, layout=Layout(fsdp=devices))
    for changes in levers.list_changes(config, placed, machine):
        if (candidate := fastest_fit(config, changes, machine, devices, efficiency, layout)) is not None:
            return candidate
    return None


def without_ramp(config: ConfigDict, machine: Machine, devices: int, efficiency: Efficiency) -> Candidate | None:
    """The fastest plan that fits without the batch's warm-up, whose first batch limits layouts; None without one.

    It takes fewer steps, for as many tokens.
    """
    changes = levers.remove_ramp(config)
    if not changes:
        return None
    steps = levers.steps_for_tokens(config, config.train.global_batch)
    return fastest_fit(config, changes | steps, machine, devices, efficiency)


def with_even_batch(config: ConfigDict, machine: Machine, devices: int, efficiency: Efficiency) -> Candidate | None:
    """The fastest plan that fits with a batch near an odd one, for as many tokens; None where the batch is not odd."""
    changes = levers.even_batch(config, devices)
    if not changes:
        return None
    return fastest_fit(config, changes | levers.without_mesh(config), machine, devices, efficiency)


def fill_mesh(
    config: ConfigDict, machine: Machine, devices: int, efficiency: Efficiency, asked: dict[str, int]
) -> Candidate | None:
    """The fastest plan on a mesh that has the sizes `asked` of some axes; None where the trainer takes none.

    Of the first COUNTED options that seem to fit the first that does, else the fastest.
    """
    before = config_lib.static(config)
    free = next((axis for axis in ("data", "fsdp", "tensor", "context", "stage", "expert") if axis not in asked), None)
    if free is None:
        return None
    sizes: dict[str, Any] = {free: devices // math.prod(asked.values())} | asked
    start = dataclasses.replace(before, layout=dataclasses.replace(before.layout, **sizes))
    made: list[Candidate] = []
    for option in list_fastest(start, machine, efficiency, asked):
        keys = levers.changed_keys(before, option)
        try:
            changed = config_lib.resolve(config_lib.override(config, keys))
            static, _ = apply_mesh(config_lib.static(changed), devices)
        except BadInput:
            continue
        if find_refusal(static) is None:
            made.append(Candidate(changed, static, keys))
            if fits(static, machine):
                return made[-1]
            if len(made) == COUNTED:
                break
    return made[0] if made else None


def free_fit(
    config: ConfigDict, machine: Machine, devices: int, efficiency: Efficiency, free: tuple[str, ...]
) -> Candidate | None:
    """The fastest plan that fits where precision or optimizer are `free`; None where none does.

    Each key that changes a training's numbers has to be worth 1 % of the step.
    """
    tried = [
        fastest_fit(config, changes | levers.without_mesh(config), machine, devices, efficiency)
        for changes in levers.list_free(config, machine, free)
    ]
    fitting = [candidate for candidate in tried if candidate]

    def weighted_s(made: Candidate) -> float:
        return expected_s(made.static, machine, efficiency) * 1.01 ** len(made.alters)

    return min(fitting, key=weighted_s, default=None)


def in_16_bits(config: ConfigDict, placed: Static, machine: Machine) -> Candidate | None:
    """An fp32 plan in bf16, on the mesh where it is `placed`; None if it isn't fp32, or the chip has no such unit."""
    if POLICIES[placed.precision].forward != "float32" or "bfloat16" not in machine.chip.flops:
        return None
    changes = {"precision.name": "bf16"} | levers.changed_keys(config_lib.static(config), placed)
    try:
        made = config_lib.resolve(config_lib.override(config, changes))
        static, _ = apply_mesh(config_lib.static(made), placed.layout.devices)
    except BadInput:
        return None
    return Candidate(made, static, changes) if find_refusal(static) is None and fits(static, machine) else None


def fewer_devices(config: ConfigDict, machine: Machine, devices: int, efficiency: Efficiency) -> Candidate | None:
    """The config as it is on the most devices below `devices` that are a power of two; None where it doesn't fit there.

    Widths are seldom divided by 9, so 72 devices may hold less of a model than 64 of them. Of more devices than
    sequences also a half, a quarter … of that power, for a million of them have no layout.
    """
    powers = [2**k for k in range((devices - 1).bit_length() - 1, -1, -1)]
    counts = [n for n in powers if n == powers[0] or 2 * n > config.train.global_batch]
    if devices <= config.train.global_batch and devices == 2 ** (devices.bit_length() - 1):
        return None
    fits_on = (fastest_fit(config, levers.without_mesh(config), machine, n, efficiency) for n in counts)
    return next(filter(None, fits_on), None)


def devices_that_fit(config: ConfigDict, machine: Machine, devices: int, efficiency: Efficiency) -> Candidate | None:
    """The config as it is on the first of 2, 4, 8 … times as many devices on which it fits, in its fastest layout."""
    counts = [devices * 2**k for k in range(1, LARGEST_FACTOR.bit_length())]
    fits_on = (fastest_fit(config, levers.without_mesh(config), machine, n, efficiency) for n in counts)
    return next(filter(None, fits_on), None)


def fastest_fit(
    config: ConfigDict,
    changes: levers.Changes,
    machine: Machine,
    devices: int,
    efficiency: Efficiency,
    layout: Layout | None = None,
) -> Candidate | None:
    """The fastest layout of the changed config that fits; None where none does, or the trainer refuses the changes."""
    before = config_lib.static(config)
    others = {key: text for key, text in changes.items() if not key.startswith("parallel.")}  # a mesh is in the option
    try:
        changed = _change(config, changes)
        for unit in {getattr(POLICIES[config_lib.static(changed).precision], name) for name in ("unit", "compute")}:
            peak_of_unit(machine, unit)  # refuses a format that the chip doesn't multiply
        if state_bytes_on_devices(config_lib.static(changed)) > devices * usable_bytes(machine.chip):
            return None
        start, _ = apply_mesh(config_lib.static(changed), devices, layout if devices > 1 else None)
        for option in _by_time(start, machine, efficiency):
            keys = levers.changed_keys(before, option)
            made = _change(config, others | keys)
            placed, _ = apply_mesh(config_lib.static(made), devices)
            if find_refusal(placed) is None and fits(placed, machine):
                return Candidate(made, placed, _typed(config, others) | keys)
    except BadInput:
        return None
    return None


def _change(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
    """`config` with these changes, resolved; lengths of its schedule that are derived follow a changed batch or run."""
    if {"train.global_batch", "train.steps"} & set(changes):
        config = config.copy_and_resolve_references()
        forget_derived_steps(config)
    return config_lib.resolve(config_lib.override(config, changes))


def _by_time(start: Static, machine: Machine, efficiency: Efficiency) -> Iterator[Static]:
    """Layouts of a config by predicted time, each with its best of other kinds of changes, itself among them."""
    if start.model.remat not in REMAT:  # a policy to be chosen
        start = dataclasses.replace(start, model=dataclasses.replace(start.model, remat=REMAT[0]))
    if start.updates_layers:  # takes one layout
        yield start
        return
    found = False
    for way in iterate_advice(start, machine, efficiency):
        found = True
        yield way.option
    if not found and not is_usable(start, machine):
        yield from (way.option for way in list_nearly_fitting(start, machine, efficiency))
    if find_refusal(start) is None and fits(start, machine):
        yield start


def _typed(config: ConfigDict, changes: levers.Changes) -> dict[str, Any]:
    """`changes` as one writes them: what the config's own optimizer filled in need not be unset."""
    origins = config_lib.config_value_origins(config)
    return {
        key: int(text) if text.isdigit() else text
        for key, text in changes.items()
        if text != "none" or origins.get(key) != set_by.DEFAULT
    }
