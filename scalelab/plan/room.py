"""Is there room on the devices that are here? Asked before a run compiles anything."""

import dataclasses

import jax

from scalelab import hardware
from scalelab.config import Static
from scalelab.model import count
from scalelab.parallel import mesh, rules
from scalelab.plan import megatron, saved
from scalelab.plan.memory import Memory, needed

SMALL = 0.05  # of a device's memory: what is clearly below isn't looked at, for its cost at every start (0.3 s of CPU)


def too_large(static: Static, trials: int = 1) -> Memory | None:
    """What a step would need where the present devices can't hold it; None where they can, or where nobody says what they hold.

    Estimates count for nothing here: what is refused cannot fit. `trials` are spread over the devices where they don't share a
    mesh, and step one after the other.
    BadInput for a layout that the devices don't make up or that can't be divided.
    """
    device = jax.local_devices()[0]
    capacity = hardware.capacity_bytes(device)
    layout = mesh.resolved(static.layout, jax.device_count())
    static = dataclasses.replace(static, layout=layout)
    trials = -(-trials // jax.local_device_count()) if layout.devices == 1 else trials
    if not capacity or _roughly(static, trials) < SMALL * capacity:
        return None
    rules.check(static, layout)
    found = needed(static, device.platform, capacity, trials)
    return found if found.least > capacity else None


def _roughly(static: Static, trials: int) -> float:
    """Bytes, rather too many: Adam's 16 a parameter, split by nothing, and all that a GPT in fp32 would save."""
    s = static.model
    gpt = megatron.Gpt(s.n_layers, s.d_model, s.n_heads, s.vocab_size, s.seq_len)
    activations = 4 * s.n_layers * megatron.layer_bytes(gpt, saved.rows(static))
    return 16 * trials * count.parameters(s)["total"] + activations
