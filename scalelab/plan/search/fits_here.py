"""Whether a step fits the present devices, checked before a run compiles anything."""

import dataclasses

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Static
from scalelab.hardware import chips
from scalelab.model import count
from scalelab.parallel import mesh, rules
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import megatron
from scalelab.plan.memory.memory import Memory, memory_on_backend
from scalelab.plan.search.nearest import nearest_fit
from scalelab.plan.step.device_share import rows_per_device
from scalelab.plan.step.efficiency import default_efficiency

GIB = 2**30
SMALL = 0.05  # of a device's memory: what is clearly below isn't looked at, for its cost at every start (0.3 s of CPU)


def memory_if_too_large(static: Static, trials: int = 1) -> Memory | None:
    """Memory that a step needs if the present devices can't hold it; None if they can, or if their memory is not known.

    Estimates count for nothing here: what is refused cannot fit. `trials` are spread over the devices where they don't
    share a mesh, and step one after the other. BadInput for a layout that the devices don't make up or that can't be
    divided.
    """
    static, capacity = on_present_devices(static)
    if static.layout.devices == 1 and jax.default_backend() != "cpu":
        trials = -(-trials // jax.local_device_count())
    if not capacity or is_clearly_small(static, capacity, trials):
        return None
    rules.check_layout(static, static.layout)
    needed = memory_on_backend(static, jax.default_backend(), capacity, trials)
    return needed if needed.least > capacity else None


def suggest_fitting_change(config: ConfigDict) -> str:
    """The nearest plan of one run that fits the present devices, as options; "" if none does or the chip is unknown.

    `scalelab plan` names the same.
    """
    static, capacity = on_present_devices(config_lib.static(config))
    kind = jax.local_devices()[0].device_kind
    if jax.default_backend() != "cpu" and chips.find_chip(kind) is None:
        return ""
    on = load_machine("cpu" if jax.default_backend() == "cpu" else kind)
    on = dataclasses.replace(on, chip=dataclasses.replace(on.chip, given_bytes=capacity))
    nearest = nearest_fit(config, on, static.layout.devices, default_efficiency(on), static.layout)
    if nearest is None:
        return ""
    values = " ".join(f"--config.{key}={value}" for key, value in nearest.changes.items())
    numbers = f" (other numbers: {', '.join(nearest.alters)})" if nearest.alters else ""
    return f"; nearest that fits{numbers}: {values}"


def describe_excess(config: ConfigDict, memory: Memory, trials: int = 1) -> str:
    """What a step lacks on the present devices, and for a single run the nearest plan that fits."""
    least, capacity = memory.least / GIB, memory.capacity / GIB
    return (
        f"a step needs at least {least:,.2f} GiB a device and there are {capacity:,.2f}, "
        f"{least - capacity:,.2f} too few{suggest_fitting_change(config) if trials == 1 else ''}"
    )


def on_present_devices(static: Static) -> tuple[Static, int]:
    """`static` on the present devices, and the bytes that each has for it; CPU devices share their host's memory."""
    layout = mesh.resolve_layout(static.layout, jax.device_count())
    capacity = chips.capacity_bytes(jax.local_devices()[0])
    alone = layout.devices == 1 and jax.default_backend() == "cpu"
    return dataclasses.replace(static, layout=layout), capacity * (jax.local_device_count() if alone else 1)


def is_clearly_small(static: Static, capacity: int, trials: int = 1) -> bool:
    """Whether a rough count, rather too high, stays below SMALL of the capacity."""
    return _rough_bytes(static, trials) < SMALL * capacity


def _rough_bytes(static: Static, trials: int) -> float:
    """Bytes, rather too many: Adam's 16 a parameter, split by nothing, and all that a GPT in fp32 would save."""
    s = static.model
    gpt = megatron.GptShape(s.n_layers, s.d_model, s.n_heads, s.vocab_size, s.seq_len)
    activations = 4 * s.n_layers * megatron.layer_bytes(gpt, rows_per_device(static))
    return 16 * trials * count.count_parameters(s)["total"] + activations
