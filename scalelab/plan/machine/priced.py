"""Machines as a command names them: `h100`, `h100:2.5` with the price of a device-hour, several with commas, `auto`."""

import dataclasses

from scalelab.errors import BadInput
from scalelab.hardware.doctor import local_devices
from scalelab.plan.machine.machine import KNOWN_MACHINES, Machine, load_machine, this_cpu

AUTO = "auto"  # the devices that jax sees here, as `scalelab doctor` names them


def load_machines(text: str, price_per_hour: float | None = None) -> tuple[Machine, ...]:
    """The machines of `KIND[:PRICE],…`. BadInput for an unknown kind, a price that is not above 0, and `price_per_hour`
    beside several kinds or beside a price in the text.
    """
    machines = tuple(_load_one(part.strip()) for part in text.split(",") if part.strip())
    if not machines:
        raise BadInput(f"--hardware={text}: no machine; e.g. --hardware=h100 or --hardware=h100:2.5,a100:1.3")
    if price_per_hour is None:
        return machines
    if len(machines) > 1 or (machines[0].price_per_hour is not None and ":" in text):
        kinds = [part.split(":")[0].strip() for part in text.split(",")]
        raise BadInput(
            f"--price={price_per_hour:g} is the price of one kind; nearest: "
            f"--hardware={','.join(f'{kind}:{price_per_hour:g}' for kind in kinds)}"
        )
    return (dataclasses.replace(machines[0], price_per_hour=price_per_hour),)


def _load_one(text: str) -> Machine:
    kind, colon, price = text.rpartition(":")
    if not colon:
        return _auto_machine() if text.lower() == AUTO else load_machine(text)
    machine = _auto_machine() if kind.lower() == AUTO else load_machine(kind)
    try:
        per_hour = float(price.strip().removeprefix("$"))
    except ValueError:
        per_hour = 0.0
    if not 0 < per_hour < float("inf"):
        raise BadInput(f"--hardware={text}: {price!r} is not a price of a device-hour; e.g. --hardware={kind}:2.5")
    return dataclasses.replace(machine, price_per_hour=per_hour)


def _auto_machine() -> Machine:
    """The machine of the first device that jax sees, with the memory that this device gives a program."""
    devices, why = local_devices()
    if not devices:
        raise BadInput(f"--hardware=auto: no device is here ({why}); nearest: --hardware=cpu")
    if devices[0].platform == "cpu":
        return this_cpu()
    kind = devices[0].device_kind
    try:
        machine = load_machine(kind)
    except BadInput:
        raise BadInput(
            f"--hardware=auto: the table has no chip {kind!r}; nearest: one of {', '.join(KNOWN_MACHINES)}, or "
            "FILE.json of your own"
        ) from None
    given = (devices[0].memory_stats() or {}).get("bytes_limit")
    return dataclasses.replace(machine, chip=dataclasses.replace(machine.chip, given_bytes=given and int(given)))


def short_name(machine: Machine) -> str:
    """The machine as --hardware takes it."""
    chips = {chip: short for short, (chip, *_) in KNOWN_MACHINES.items()}
    return chips.get(machine.chip.name, "cpu" if machine.chip.name == "CPU" else f"'{machine.source}'")


def paid_hours(dollars: float, machine: Machine) -> float:
    """Device-hours that the money buys at the machine's price. BadInput without a price, or for less than one."""
    price = machine.price_per_hour
    if price is None:
        raise BadInput(
            f"--budget={dollars:g}: the price of a device-hour of {machine.chip.name} is not known; give it: "
            f"--hardware=KIND:PRICE, e.g. --hardware={short_name(machine)}:2.5"
        )
    if dollars < price:
        raise BadInput(
            f"--budget={dollars:g} is below one device-hour of {machine.chip.name}; nearest: --budget={price:g}"
        )
    return dollars / price


def refuse_missing_unit(precision: str, machine: Machine) -> None:
    """Raise BadInput for fp8 on an accelerator without fp8 units."""
    if not precision.startswith("fp8") or "float8" in machine.chip.flops or machine.chip.name.startswith("CPU"):
        return
    nearest = "bf16" if "bfloat16" in machine.chip.flops else "fp16"
    raise BadInput(
        f"precision.name={precision}: {machine.chip.name} has no fp8 unit; nearest: --config.precision.name={nearest}, "
        "or a chip that has one, e.g. --hardware=h100"
    )
