"""The mesh to plan for: what the user says, else the config's, else one that is chosen and said."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from scalelab.config import Layout, Static
from scalelab.errors import BadInput, nearest
from scalelab.parallel import mesh as mesh_lib
from scalelab.parallel import rules
from scalelab.parallel.ticks import SCHEDULES

NAMES = tuple(field.name for field in dataclasses.fields(Layout))


def parse(text: str) -> dict[str, Any]:
    """ "fsdp=8,tensor=8,sequence=true" -> {"fsdp": 8, "tensor": 8, "sequence": True}. BadInput for what is no key of `parallel`."""
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = part.partition("=")
        if key not in NAMES:
            raise BadInput(f"--mesh={text}: {key!r} is no axis or option of `parallel`{nearest(key, NAMES)}")
        if key == "schedule":
            if value not in SCHEDULES:
                raise BadInput(f"--mesh={text}: schedule={value!r}{nearest(value, SCHEDULES)}")
            found[key] = value
        elif key == "sequence":
            if value not in ("true", "false"):
                raise BadInput(f"--mesh={text}: sequence={value!r} is not true or false")
            found[key] = value == "true"
        elif value.removeprefix("-").isdigit():
            found[key] = int(value)
        else:
            raise BadInput(f"--mesh={text}: {key}={value!r} is no whole number")
    return found


def laid_out(
    static: Static, devices: int | None = None, mesh: str | Mapping[str, Any] | None = None
) -> tuple[Static, list[str]]:
    """`static` on a mesh of `devices` (None: as many as the mesh has), and what was chosen or would be refused by the trainer.

    Without `mesh` the config's `parallel`; where that is one device and there are more, they go to `fsdp` as far as width and
    batch can be divided, then to `tensor` as far as heads can, the rest to `data`. BadInput for sizes that don't make up the devices.
    """
    said: list[str] = []
    layout = static.layout
    if mesh is not None:
        asked = parse(mesh) if isinstance(mesh, str) else dict(mesh)
        layout = dataclasses.replace(layout, **dict.fromkeys(mesh_lib.AXES, 1) | asked)
    if devices is not None and devices < 1:
        raise BadInput(f"--devices={devices} is no number of devices; 1 or more")
    sizes = [getattr(layout, axis) for axis in mesh_lib.AXES]
    if devices is None:
        devices = math.prod(size for size in sizes if size > 0)
    if mesh is None and layout.devices == 1 < devices:
        layout, words = _chosen(static, layout, devices)
        said.append(words)
    elif layout.devices == 1 < devices:
        raise BadInput(
            f"--mesh={mesh} is a mesh of one, and there are {devices} devices; nearest: --mesh=fsdp={devices}"
        )
    layout = mesh_lib.resolved(layout, devices)
    model = dataclasses.replace(static.model, sequence_parallel=layout.sequence and layout.tensor != 1)
    static = dataclasses.replace(static, model=model, layout=layout)
    return static, said + refusals(static)


def _chosen(static: Static, layout: Layout, devices: int) -> tuple[Layout, str]:
    shape = static.model
    fsdp = math.gcd(devices, shape.d_model, static.global_batch // static.accumulate)
    tensor = math.gcd(devices // fsdp, shape.n_heads, shape.n_kv_heads, shape.d_ff, shape.vocab_size)
    sizes: dict[str, Any] = {"data": devices // (fsdp * tensor), "fsdp": fsdp, "tensor": tensor}
    said = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    return dataclasses.replace(layout, **sizes), f"mesh: {said}, chosen as the config has none"


def refusals(static: Static) -> list[str]:
    """Why the trainer would refuse this layout, in its own words: one line, or none."""
    try:
        rules.check(static, static.layout)
    except BadInput as why:
        return [f"the trainer refuses this: {why}"]
    return []
